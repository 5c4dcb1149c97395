"""Training on the device. Source: SDK reference 3 (only its name is public; the signature is ours)."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from sambaflow.samba.sambatensor import unwrap
from sambaflow.sessions import current_session


def train(
    model: nn.Module, loader: Iterable[Any], num_epochs: int = 1, hyperparam_dict: Mapping[str, Any] | None = None,
    loss_index: int = 0, **run_arguments: Any,
) -> list[float]:  # fmt: skip
    """Run complete training steps of a traced model over batches of SambaTensors; return the mean loss of each epoch.

    Afterwards, the host's parameters equal the device's.
    """
    means = []
    for _ in range(num_epochs):
        losses = []
        for batch in loader:
            outputs = current_session().run(
                batch, model.output_tensors, hyperparam_dict=hyperparam_dict, **run_arguments
            )
            losses.append(float(unwrap(outputs[loss_index]).float().mean()))
        means.append(sum(losses) / max(len(losses), 1))
    current_session().to_cpu(model)
    return means


__all__ = ["train"]

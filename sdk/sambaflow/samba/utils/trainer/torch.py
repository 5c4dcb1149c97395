"""Training on the host, for comparison. Source: SDK reference 3 (only its name is public; the signature is ours)."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from sambaflow.samba.sambatensor import unwrap
from sambaflow.tracing.tracer import flatten_tensors


def train(
    model: nn.Module, loader: Iterable[Any], optimizer: Any, num_epochs: int = 1, loss_index: int = 0
) -> list[float]:
    """Train with plain torch steps over batches of tensors; the model returns its loss. Return the mean loss of each
    epoch.
    """
    means = []
    for _ in range(num_epochs):
        losses = []
        for batch in loader:
            optimizer.zero_grad()
            loss = unwrap(flatten_tensors(model(*flatten_tensors(batch)))[loss_index]).mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        means.append(sum(losses) / max(len(losses), 1))
    return means


__all__ = ["train"]

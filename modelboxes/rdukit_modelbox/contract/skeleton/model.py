"""The model of this box. Processes that run verbs import it; the serving process never does.

Axes: B batch, F features, C classes.
"""

import torch
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.registry import ModelEntry


class Model(nn.Module):
    """(rows [B, F], targets [B]) → (loss [], logits [B, C]); rows alone → logits."""

    def __init__(self, num_features: int = 784, hidden_size: int = 64, num_classes: int = 10) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, hidden_size)
        self.answer = nn.Linear(hidden_size, num_classes)
        self.criterion = nn.CrossEntropyLoss()

    def forward(
        self, rows: torch.Tensor, targets: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        logits: torch.Tensor = self.answer(torch.relu(self.hidden(rows)))
        return logits if targets is None else (self.criterion(logits, targets), logits)


def make_inputs(
    batch_size: int, num_features: int = 784, hidden_size: int = 64, num_classes: int = 10
) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs to trace with, the batch first: ``image`` [B, F] and ``label`` [B]."""
    image = samba.randn(batch_size, num_features, name="image", batch_dim=0)
    return image, samba.randint(num_classes, (batch_size,), name="label", batch_dim=0)


def make_model() -> ModelEntry:
    """Make the model; ``module: model.py:make_model`` in modelbox.yaml names this function."""
    return ModelEntry(
        name="my_model",
        title="Two linear layers",
        task="classification",
        licence="Apache-2.0",
        source="ours",
        sizes={"num_features": 784, "hidden_size": 64, "num_classes": 10},
        build=Model,
        make_inputs=make_inputs,
    )

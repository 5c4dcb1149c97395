"""A multi-layer perceptron: two linear layers with a ReLU between; the model of the serving comparisons.

With one class it predicts a number: the loss is the mean squared error, and the label a float.

Axes: B batch, F features, C classes.
"""

import torch
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.registry import model


def make_inputs(
    batch_size: int, num_features: int = 64, hidden_size: int = 256, num_classes: int = 10
) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs: ``rows`` [batch, features] and ``label`` [batch]."""
    rows = samba.randn(batch_size, num_features, name="rows", batch_dim=0)
    if num_classes == 1:
        return rows, samba.randn(batch_size, name="label", batch_dim=0)
    return rows, samba.randint(num_classes, (batch_size,), name="label", batch_dim=0)


@model(
    name="mlp",
    title="Multi-layer perceptron",
    task="classification",
    licence="Apache-2.0",
    source="Rumelhart, Hinton and Williams, Learning representations by back-propagating errors (1986)",
    sizes={"num_features": 64, "hidden_size": 256, "num_classes": 10},
    make_inputs=make_inputs,
)
class MultiLayerPerceptron(nn.Module):
    """(rows [B, F], targets [B]) → (loss [], logits [B, C]); rows alone → logits."""

    def __init__(self, num_features: int = 64, hidden_size: int = 256, num_classes: int = 10) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, hidden_size)
        self.answer = nn.Linear(hidden_size, num_classes)
        self.predicts_number = num_classes == 1
        self.criterion = nn.MSELoss() if self.predicts_number else nn.CrossEntropyLoss()

    def forward(
        self, rows: torch.Tensor, targets: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        logits: torch.Tensor = self.answer(torch.relu(self.hidden(rows)))
        if targets is None:
            return logits
        return self.criterion(logits.flatten() if self.predicts_number else logits, targets), logits

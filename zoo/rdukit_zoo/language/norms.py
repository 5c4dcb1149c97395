"""Norms that several decoders have."""

import torch
import torch.nn.functional as F
from torch import nn


class RootMeanSquare(nn.Module):
    """Divides by the root of the mean square over the last axis; multiplies by the weight, or by 1 + weight."""

    def __init__(self, width: int, epsilon: float, adds_one: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if adds_one else torch.ones(width))
        self.epsilon, self.adds_one = epsilon, adds_one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight + 1 if self.adds_one else self.weight, self.epsilon)

"""Exponential moving average of a model's weights (EMA).

Source: Polyak and Juditsky (1992); with torch's ``AveragedModel`` and ``get_ema_multi_avg_fn`` as the reference.
"""

from collections.abc import Collection, Mapping

import torch

Tensors = Mapping[str, torch.Tensor]


class WeightAverage:
    """Average of the trained weights: it begins as the weights after the first step.

    Buffers, such as running statistics, and frozen weights are not averaged: the newest step's are used.
    """

    def __init__(self, decay: float, trained: Collection[str], weights: Tensors | None = None) -> None:
        """Continue from the average ``weights``; None before the first step.

        Args:
            decay: share of the former average in the next one.
            trained: names of the weights that training changes.
        """
        self._decay = decay
        self._trained = frozenset(trained)
        self._weights: dict[str, torch.Tensor] = dict(weights or {})

    def add(self, weights: Tensors) -> None:
        """Count the weights after a step; weights that are not averaged must not change."""
        former = self._weights
        self._weights = {
            name: torch.lerp(former[name].float(), value.float(), 1 - self._decay).to(value.dtype)
            if former and name in self._trained
            else value
            for name, value in weights.items()
        }

    @property
    def weights(self) -> Tensors:
        """Return the average by name; empty before the first step."""
        return self._weights

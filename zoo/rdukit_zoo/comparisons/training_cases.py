"""The models and batches that the training comparisons share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit_zoo.comparisons.models.gpt2 import Gpt2
from rdukit_zoo.comparisons.models.small import ConvForecaster, LeNet, LstmForecaster, Perceptron

BATCH: Final = 32
WORDS: Final = 50257


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """A model with its batch; forward takes the batch's tensors in order and gives the loss [].

    ``mode`` is the optimization level our side compiles with, ``precision`` its arithmetic; the peers are f32.
    """

    name: str
    build: Callable[[], nn.Module]
    make_batch: Callable[[], Mapping[str, torch.Tensor]]
    mode: str = "o3"
    precision: str = "f32"


def _classes(*shape: int) -> Mapping[str, torch.Tensor]:
    return {"image": torch.randn(shape), "label": torch.randint(10, (shape[0],))}


def _series(*shape: int) -> Mapping[str, torch.Tensor]:
    return {"window": torch.randn(shape), "future": torch.randn(shape[0], 12)}


def _text() -> Mapping[str, torch.Tensor]:
    return {"tokens": torch.randint(WORDS, (1, 128)), "targets": torch.randint(WORDS, (1, 128))}


_ALL: Final = (
    TrainingCase("mlp", Perceptron, lambda: _classes(BATCH, 784)),
    TrainingCase("lstm", LstmForecaster, lambda: _series(BATCH, 24, 8)),
    TrainingCase("conv1d", ConvForecaster, lambda: _series(BATCH, 8, 96)),
    TrainingCase("lenet", LeNet, lambda: _classes(BATCH, 1, 28, 28)),
    TrainingCase("gpt2", Gpt2, _text),
    TrainingCase("mlp-wide", lambda: Perceptron(2048, 2048, 10, 2), lambda: _classes(512, 2048)),
)

CASES: Final[Mapping[str, TrainingCase]] = {
    **{case.name: case for case in _ALL},
    "gpt2-bf16": replace(next(case for case in _ALL if case.name == "gpt2"), name="gpt2-bf16", precision="bf16"),
}


def get_case(name: str) -> TrainingCase:
    """The case called ``name``.

    Raises:
        InvalidArgument: no such case; the message lists the names.
    """
    if name not in CASES:
        raise InvalidArgument(f"there is no training case {name!r}; legal: {', '.join(CASES)}")
    return CASES[name]


def make_case(case: TrainingCase, seed: int = 0) -> tuple[nn.Module, Mapping[str, torch.Tensor]]:
    """The module and one batch, the same for the same seed."""
    torch.manual_seed(seed)
    return case.build(), case.make_batch()

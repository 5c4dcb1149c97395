"""State that forward changes outside of the model: the graph must not depend on it, or the compile is refused."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import TraceError
from sambaflow import samba
from support import shows
from support.programs import compare_step, compile_model

pytestmark = shows("pytorch")

CALLS = 0
STATE: dict[str, Any] = {"n": 0, "tensor": torch.ones(4)}
TABLE: dict[int, float] = {}


class Settings:
    scale = 1.0


class Schedule:
    def __init__(self) -> None:
        self.step = 0

    def __call__(self) -> float:
        self.step += 1
        return float(self.step)


SCHEDULE = Schedule()


def counter() -> Callable[[], float]:
    count = 0

    def call() -> float:
        nonlocal count
        count += 1
        return float(count)

    return call


NEXT = counter()


class Scaled(nn.Module):
    kept = 0

    def __init__(self, scale: Callable[["Scaled"], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale(self)


def by_global(model: Scaled) -> float:
    global CALLS
    CALLS += 1
    return float(CALLS)


def by_class_attribute(model: Scaled) -> float:
    type(model).kept += 1
    return float(Scaled.kept)


def by_other_class(model: Scaled) -> float:
    Settings.scale *= 2
    return Settings.scale


def by_item(model: Scaled) -> float:
    STATE["n"] += 1
    return float(STATE["n"])


def by_tensor(model: Scaled) -> Any:
    STATE["tensor"] = STATE["tensor"] * 2
    return STATE["tensor"]


def by_closure(model: Scaled) -> float:
    return NEXT()


def by_partial(model: Scaled) -> float:
    return functools.partial(by_attribute_of_function, model)()


def by_object(model: Scaled) -> float:
    return SCHEDULE()


def by_attribute_of_function(model: Scaled) -> float:
    by_attribute_of_function.calls = getattr(by_attribute_of_function, "calls", 0) + 1  # type: ignore[attr-defined]
    return float(by_attribute_of_function.calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("scale", "named"),
    [
        (by_global, "test_program_state.CALLS"),
        (by_class_attribute, "Scaled.kept"),
        (by_other_class, "Settings.scale"),
        (by_item, "test_program_state.STATE.n"),
        (by_tensor, "test_program_state.STATE.tensor"),
        (by_closure, "counter.<locals>.call.count"),
        (by_object, "test_program_state.SCHEDULE.step"),
        (by_attribute_of_function, "by_attribute_of_function.calls"),
        (by_partial, "by_attribute_of_function.calls"),
    ],
)
def test_a_graph_that_changes_with_outside_state_is_refused(scale: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=f"forward changes .*{named}.* the graph changes with it"):
        compile_model(Scaled(scale), (samba.randn(2, 6, name="x", batch_dim=0),), None, tmp_path)


def by_table(model: Scaled) -> Any:
    global CALLS
    CALLS += 1
    if 4 not in TABLE:
        TABLE[4] = 0.5
    return TABLE[4]


def test_outside_state_that_changes_nothing_is_kept(tmp_path: Path) -> None:
    before = CALLS
    compare_step(Scaled(by_table), (samba.randn(2, 6, name="x", batch_dim=0),), tmp_path)
    assert before + 1 <= CALLS
    assert 4 in TABLE

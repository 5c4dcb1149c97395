"""What a program changes after tracing and forward reads, wherever it is kept: the next run takes it, or refuses it.

Forward on the host sees each change, so the device has to give the same number or none.
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rdukit.errors import PefMismatch
from sambaflow import samba
from sambaflow.samba import utils
from support import shows
from support.programs import Loaded, load_model

pytestmark = shows("pytorch", "training-loops-model")

FACTORS = {"of": 1.0}
FACTOR = 1.0


@dataclass(slots=True)
class Slots:
    """Settings without a dict."""

    factor: float = 1.0


class Schedule:
    """A factor that a method gives."""

    common = 1.0

    def __init__(self) -> None:
        self.factor = 1.0

    def value(self) -> float:
        return self.factor * Schedule.common


class Net(nn.Module):
    """(x [8, 4]) → [8, 3], times what ``factor`` finds in the model or elsewhere."""

    def __init__(self, factor: Callable[[Any], Any]) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 3), factor
        self.plain, self.array, self.tensor = np.float32(1), np.ones(3, np.float32), torch.ones(3)
        self.settings, self.slots, self.schedule = SimpleNamespace(inner=Slots()), Slots(), Schedule()
        self.value, self.bound = self.schedule.value, functools.partial(Schedule.value, self.schedule)
        self.items: list[Any] = [torch.ones(3), {"a": 1.0}]
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("none", None)
        self.register_buffer("count", torch.tensor(1), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.linear(x) * self.factor(self)


def set_global(model: Any) -> None:
    global FACTOR
    FACTOR = 3.0


def set_none(model: Any) -> None:
    model.none = torch.full((3,), 3.0)


def first_of(model: Any) -> float:
    return float(model.array[0])


#: What forward multiplies by, and what the program then does.
TAKEN: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a buffer, assigned": (lambda m: m.scale, lambda m: setattr(m, "scale", torch.full((3,), 3.0))),
    "a buffer, registered": (lambda m: m.scale, lambda m: m.register_buffer("scale", torch.full((3,), 3.0))),
    "a tensor, assigned": (lambda m: m.tensor, lambda m: setattr(m, "tensor", torch.full((3,), 3.0))),
    "a tensor in a list": (lambda m: m.items[0], lambda m: m.items.__setitem__(0, torch.full((3,), 3.0))),
    "an array, filled": (lambda m: torch.from_numpy(m.array), lambda m: m.array.fill(3)),
}
REFUSED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a scalar of numpy": (lambda m: float(m.plain), lambda m: setattr(m, "plain", np.float32(3))),
    "an item of an array": (first_of, lambda m: m.array.fill(3)),
    "an object's attribute": (lambda m: m.settings.inner.factor, lambda m: setattr(m.settings.inner, "factor", 3.0)),
    "a slot": (lambda m: m.slots.factor, lambda m: setattr(m.slots, "factor", 3.0)),
    "the object of a method": (lambda m: m.value(), lambda m: setattr(m.schedule, "factor", 3.0)),
    "the object of a partial": (lambda m: m.bound(), lambda m: setattr(m.schedule, "factor", 3.0)),
    "a class attribute": (lambda m: m.value(), lambda m: setattr(Schedule, "common", 3.0)),
    "a mixed list": (lambda m: m.items[1]["a"], lambda m: m.items[1].update(a=3.0)),
    "a global": (lambda m: FACTOR, set_global),
    "a global dict": (lambda m: FACTORS["of"], lambda m: FACTORS.update(of=3.0)),
    "another shape of a buffer": (lambda m: m.scale, lambda m: setattr(m, "scale", torch.full((1,), 3.0))),
    "a buffer that was None": (lambda m: 1.0 if m.none is None else m.none, set_none),
    "a number in a tensor": (lambda m: float(m.tensor[0]), lambda m: m.tensor.fill_(3)),
    "fill a buffer": (lambda m: float(m.count), lambda m: m.count.fill_(3)),
}


def load(folder: Path, factor: Callable[[Any], Any]) -> Loaded:
    utils.set_seed(0)
    return load_model(Net(factor), (samba.randn(8, 4, name="x"),), folder, precision="f32", optim_level="o0")


@pytest.fixture(autouse=True)
def _first_factors() -> Any:
    global FACTOR
    yield
    FACTOR, FACTORS["of"], Schedule.common = 1.0, 1.0, 1.0


@pytest.mark.parametrize("kind", TAKEN)
def test_the_next_run_takes_a_tensor_that_a_program_puts_in_anothers_place(tmp_path: Path, kind: str) -> None:
    factor, change = TAKEN[kind]
    loaded = load(tmp_path, factor)
    before = loaded.run()[0].torch()
    change(loaded.model)
    for _ in range(2):
        torch.testing.assert_close(loaded.run()[0].torch(), before * 3, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(samba.to_torch(loaded.model(loaded.inputs[0])).detach(), before * 3)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_value_that_a_graph_has_fixed_is_refused_when_it_changes(tmp_path: Path, kind: str) -> None:
    factor, change = REFUSED[kind]
    loaded = load(tmp_path, factor)
    loaded.run()
    change(loaded.model)
    with pytest.raises(PefMismatch, match=r"changed after tracing.*fill a buffer"):
        loaded.run()


class Added(nn.Module):
    """A module without parameters, until a program adds one."""

    def forward(self, x: Any) -> Any:
        return x * getattr(self, "extra", 1.0)


def test_a_parameter_that_is_added_to_a_module_without_any_is_refused(tmp_path: Path) -> None:
    loaded = load_model(Added(), (samba.randn(2, 3, name="x"),), tmp_path)
    loaded.run()
    loaded.model.extra = nn.Parameter(torch.ones(3))
    with pytest.raises(PefMismatch, match="parameter of 'the model' was added"):
        loaded.run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.double(), "dtype of parameter 'linear.weight' is torch.float64 now"),
        (lambda m: torch.utils.swap_tensors(m.linear.bias, nn.Parameter(torch.zeros(3))), "class of parameter"),
    ],
)
def test_parameters_of_another_dtype_or_class_are_refused(
    tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    loaded = load(tmp_path, lambda m: m.scale)
    loaded.run()
    change(loaded.model)
    with pytest.raises(PefMismatch, match=message):
        loaded.run()


def test_an_attribute_that_changes_at_each_run_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded = load(tmp_path, lambda m: m.scale)
    with caplog.at_level(logging.WARNING):
        for epoch in range(6):
            loaded.model.epoch = epoch
            loaded.model.scale.fill_(epoch)
            loaded.run()
    assert [r.message.partition(" changed")[0] for r in caplog.records] == ["'Net.epoch'"]

"""What forward leaves in a module for its next call: buffers by assignment, and state that a graph cannot carry."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rdukit.errors import TraceError
from sambaflow import samba
from support import shows
from support.programs import compare_step, compile_model, load_model

pytestmark = shows("pytorch", "o0", "o1", "o3")

MODES = ["o0", "o1", "o3"]


class Stateful(nn.Module):
    """``rest(self, x * w)``, with buffers ``m`` [4] and ``n`` [], and attributes of every kind."""

    def __init__(self, rest: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -1.25, 2.0, 0.75]))
        self.register_buffer("m", torch.ones(4))
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("empty", None)
        self.plain = torch.ones(4)
        self.steps, self.seen, self.nested = 1, [1.0], {"scale": {"value": 2.0}}
        self.last: Any = None
        self.rest = rest

    def forward(self, x: Any) -> Any:
        return self.rest(self, x * self.w)


def inputs() -> tuple[Any, ...]:
    return (samba.from_torch_tensor(torch.randn(3, 4), name="x"),)


def moving_average(model: Any, y: Any) -> Any:
    model.m = 0.5 * model.m + y.mean(0).detach()
    return y - model.m


def read_before(model: Any, y: Any) -> Any:
    before = model.m
    model.m = model.m * 0.5 + y.detach().amax(0)
    return y * before, before


def counter(model: Any, y: Any) -> Any:
    model.n = model.n + 1
    return y / model.n


def exchanged(model: Any, y: Any) -> Any:
    model.m, model.n = model.m * model.n + 1, model.m.sum()
    return y * model.m + model.n


def assigned_an_input(model: Any, y: Any) -> Any:
    before = model.m
    model.m = y.detach()[0]
    return y + before


def in_place_then_assigned(model: Any, y: Any) -> Any:
    model.m.add_(1)
    model.m = model.m * 2
    model.m.add_(0.25)
    return y * model.m


def assigned_itself(model: Any, y: Any) -> Any:
    model.m = model.m
    return y * model.m


def assigned_by_in_place(model: Any, y: Any) -> Any:
    model.n = model.n.add_(2)
    return y * model.n


def kept_for_inspection(model: Any, y: Any) -> Any:
    model.last, model.steps = y.softmax(-1), model.steps + 1
    model.seen.append(y)
    return y * model.last


def cached_constant(model: Any, y: Any) -> Any:
    if model.last is None:
        model.last = torch.arange(4.0).cos()
    return y * model.last


CARRIED = [
    moving_average, read_before, counter, exchanged, assigned_an_input, in_place_then_assigned, assigned_itself,
    assigned_by_in_place, kept_for_inspection,
]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rest", CARRIED)
def test_buffers_that_forward_assigns_are_carried_from_step_to_step(rest: Any, mode: str, tmp_path: Path) -> None:
    model, reference = Stateful(rest), Stateful(rest)
    compare_step(model, inputs(), tmp_path, reference=reference, steps=3, optim_level=mode)


def test_a_constant_that_the_first_call_caches_is_no_state(tmp_path: Path) -> None:
    samba.from_torch_model_(model := Stateful(cached_constant))
    assert Path(compile_model(model, inputs(), None, tmp_path)).exists()


def cached_table(model: Any, y: Any) -> Any:
    """Of a parameter: a later call finds it, and so computes in another order."""
    y = y * 2
    if model.last is None:
        model.last = model.w.tanh().cumsum(0)
    return y * model.last


def exchanged_module(model: Any, y: Any) -> Any:
    """With another one over the same parameters, as BigBird does for short inputs."""
    if model.last is None:
        model.last, former = True, model.part
        model.part = nn.Sequential(nn.Linear(4, 4))
        model.part[0] = former[0]
    return model.part(y).tanh()


@pytest.mark.parametrize("rest", [cached_table, exchanged_module])
def test_what_the_first_call_prepares_changes_nothing_later(rest: Any, tmp_path: Path) -> None:
    model = Stateful(rest)
    model.part = nn.Sequential(nn.Linear(4, 4))
    compare_step(model, inputs(), tmp_path)


def counted_in_python(model: Any, y: Any) -> Any:
    model.steps += 1
    return y * model.steps


def counted_in_a_list(model: Any, y: Any) -> Any:
    model.seen.append(2.0)
    return y * sum(model.seen)


def counted_in_nested_dicts(model: Any, y: Any) -> Any:
    model.nested["scale"]["value"] *= 2
    return y * model.nested["scale"]["value"]


def plain_attribute(model: Any, y: Any) -> Any:
    model.plain = model.plain * 0.5 + y.mean(0).detach()
    return y + model.plain


def recurrent_attribute(model: Any, y: Any) -> Any:
    model.last = y if model.last is None else model.last * 0.9 + y
    return model.last


def first_call_differs(model: Any, y: Any) -> Any:
    first, model.last = model.last is None, True
    return y * 2 if first else y


def assigned_parameter(model: Any, y: Any) -> Any:
    model.w = nn.Parameter(torch.ones(4))
    return y


def other_shape(model: Any, y: Any) -> Any:
    model.m = y.detach()
    return y


def other_dtype(model: Any, y: Any) -> Any:
    model.n = model.n.long() + 1
    return y


def filled_buffer(model: Any, y: Any) -> Any:
    y = y if model.empty is None else y + model.empty
    model.empty = y.detach().mean(0)
    return y


REFUSED = {
    counted_in_python: "steps", counted_in_a_list: "seen", counted_in_nested_dicts: "nested", plain_attribute: "plain",
    recurrent_attribute: "last", first_call_differs: "last", assigned_parameter: "parameter 'w'",
    other_shape: "buffer 'm'", other_dtype: "buffer 'stateful__n'", filled_buffer: "empty",
}  # fmt: skip


@pytest.mark.parametrize("rest", REFUSED)
def test_state_that_a_graph_cannot_carry_is_refused_by_name(rest: Any, tmp_path: Path) -> None:
    model = Stateful(rest)
    with pytest.raises(TraceError, match=REFUSED[rest]):
        load_model(model, inputs(), tmp_path, lambda p: samba.optim.SGD(p, lr=0.1))
    assert not list(tmp_path.glob("**/*.pef"))
    assert all(
        type(tensor) in {nn.Parameter, torch.Tensor} or hasattr(tensor, "sn_name") for tensor in model.parameters()
    )


def test_data_of_a_buffer_cannot_be_exchanged(tmp_path: Path) -> None:
    def rest(model: Any, y: Any) -> Any:
        model.m.data = model.m.data * 2
        return y * model.m

    with pytest.raises(TraceError, match="data"):
        load_model(Stateful(rest), inputs(), tmp_path, lambda p: samba.optim.SGD(p, lr=0.1))

"""Rows that nobody reads are not made, what is read stays as it is, and whatever else is read stays whole."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
from rdukit_compiler.ir import ModelGraph, ValueKind, check_graph
from rdukit_compiler.operators.run_operator import run_operator
from rdukit_compiler.passes.push_down_slices import push_down_slices
from sambaflow.tracing.tracer import trace_model
from support import shows

pytestmark = shows("engine")

Tensors = dict[str, torch.Tensor]


class Layer(nn.Module):
    """A layer of a transformer, x [B, T, 8]; what follows it is ``select``."""

    def __init__(self, select: Callable[[torch.Tensor], Any], is_causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.select, self.is_causal = select, is_causal
        self.before, self.after = nn.LayerNorm(8), nn.RMSNorm(8)
        self.query, self.key, self.value, self.mix = (nn.Linear(8, 8) for _ in range(4))
        self.up, self.down = nn.Linear(8, 24), nn.Linear(12, 8)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> Any:
        normed = self.before(x)
        heads = [linear(normed).unflatten(-1, (2, 4)).transpose(1, 2) for linear in (self.query, self.key, self.value)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=self.is_causal)
        x = x + self.mix(mixed.transpose(1, 2).reshape(x.shape))
        gate, up = self.up(self.after(x)).chunk(2, -1)
        return self.select(x + self.dropout(self.down(F.silu(gate) * up)))


class Chain(nn.Module):
    """A function of x, its weight [6, 6] and an index [2]."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> Any:
        return self.function(x, self.weight, index)


def _trace(model: nn.Module, *inputs: Any) -> ModelGraph:
    samba.from_torch_model_(model)
    return trace_model(model, inputs if len(inputs) > 1 else inputs[0], "model").graph


def _layer(select: Callable[[torch.Tensor], Any], **options: Any) -> ModelGraph:
    return _trace(Layer(select, **options).eval(), samba.randn(2, 9, 8, name="x"))


def _chain(function: Callable[..., Any], *shape: int) -> ModelGraph:
    index = samba.SambaTensor(torch.zeros(2, dtype=torch.int64), name="index")
    return _trace(Chain(function), samba.randn(*shape, name="x"), index)


def _tensors(graph: ModelGraph) -> Tensors:
    """Numbers for all that the graph reads: wide ones, so that only what is wrong differs."""
    torch.manual_seed(0)
    return {
        v.name: torch.randn(v.shape, dtype=torch.float64, requires_grad=True)
        if v.dtype == "float32"
        else torch.tensor([1, 4])
        for v in graph.values.values()
        if v.kind is not ValueKind.OPERATOR
    }


def _run(graph: ModelGraph, tensors: Tensors) -> list[torch.Tensor]:
    values: dict[str, Any] = dict(tensors)
    for operator in graph.operators:
        run_operator(operator, values)
        for name in operator.outputs:
            assert values[name].shape == graph.values[name].shape, operator
    return [values[name] for name in graph.outputs]


def _assert_same(graph: ModelGraph, skipped: ModelGraph) -> None:
    """Outputs and gradients."""
    check_graph(skipped, "push_down_slices")
    tensors = _tensors(graph)
    wanted, made = _run(graph, tensors), _run(skipped, tensors)
    floats = [tensor for tensor in tensors.values() if tensor.requires_grad]
    for one, other in zip(wanted, made, strict=True):
        torch.testing.assert_close(other, one)
        gradients = [
            torch.autograd.grad(y.square().sum(), floats, allow_unused=True, retain_graph=True) for y in (one, other)
        ]
        for before, after in zip(*gradients, strict=True):
            torch.testing.assert_close(after, before)


def _rows(graph: ModelGraph, op_type: str, axis: int) -> list[int]:
    """How many rows each operator of the type makes."""
    return [graph.values[o.outputs[0]].shape[axis] for o in graph.operators if o.op_type == op_type]


@pytest.mark.parametrize(("row", "is_causal"), [(-1, True), (0, False), (4, False)])
def test_of_a_layer_only_keys_and_values_are_made_for_all_tokens_if_one_is_read(row: int, is_causal: bool) -> None:
    graph = _layer(lambda x: x[:, row], is_causal=is_causal)
    skipped = push_down_slices(graph)
    _assert_same(graph, skipped)
    assert _rows(skipped, "linear", 1) == [1, 9, 9, 1, 1, 1]
    assert _rows(skipped, "scaled_dot_product_attention", 2) == [1]
    assert _rows(skipped, "layer_norm", 1) == [9] and _rows(skipped, "rms_norm", 1) == [1]


def test_a_causal_row_in_the_middle_needs_no_later_keys_and_values() -> None:
    graph = _layer(lambda x: x[:, 3])
    skipped = push_down_slices(graph)
    _assert_same(graph, skipped)
    assert _rows(skipped, "linear", 1) == [1, 4, 4, 1, 1, 1]


def test_rows_whose_numbers_are_an_input_see_what_is_before_them() -> None:
    class Numbered(Layer):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> Any:  # type: ignore[override]
            return super().forward(x).index_select(1, index)

    index = samba.SambaTensor(torch.zeros(2, dtype=torch.int64), name="index")
    graph = _trace(Numbered(lambda x: x).eval(), samba.randn(2, 9, 8, name="x"), index)
    skipped = push_down_slices(graph)
    _assert_same(graph, skipped)
    assert _rows(skipped, "linear", 1) == [2, 9, 9, 2, 2, 2]


def test_layers_before_the_last_one_stay_whole() -> None:
    first, last = Layer(lambda x: x), Layer(lambda x: x[:, -1])
    graph = _trace(nn.Sequential(first, last).eval(), samba.randn(2, 9, 8, name="x"))
    assert _rows(push_down_slices(graph), "linear", 1) == [9, 9, 9, 9, 9, 9, 1, 9, 9, 1, 1, 1]


CHAINS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "a row of a batch": (lambda x, w, i: F.linear(x, w)[3], (8, 6)),
    "some rows of a batch": (lambda x, w, i: F.linear(x, w)[2:5], (8, 6)),
    "every row of a few": (lambda x, w, i: F.relu(F.linear(x, w))[:, 1:3].flatten(), (2, 8, 6)),
    "a mask of all rows": (lambda x, w, i: (F.linear(x, w) + x.sum(1, keepdim=True))[:, -1], (2, 8, 6)),
    "a sum with a vector": (lambda x, w, i: (F.linear(x, w, w[0]) * w[1])[:, -1], (2, 8, 6)),
    "a product of matrices": (lambda x, w, i: (x @ w)[5], (8, 6)),
    "a product of batches": (lambda x, w, i: torch.matmul(x, x.transpose(1, 2))[:, 5], (2, 8, 6)),
    "softmax over other axes": (lambda x, w, i: F.linear(x, w).softmax(-1)[:, 1], (2, 8, 6)),
    "joined and split": (lambda x, w, i: torch.cat([F.linear(x, w), x], -1).split(4, -1)[1][:, 1], (2, 8, 6)),
    "axes split and joined": (
        lambda x, w, i: F.linear(x, w).view(2, 8, 2, 3).permute(1, 0, 3, 2).flatten(2)[1], (2, 8, 6)),
    "a lookup": (lambda x, w, i: F.linear(F.embedding(i.unsqueeze(0).expand(3, 2), w), w)[:, 1], (2, 6)),
    "a new axis": (lambda x, w, i: F.linear(x, w).unsqueeze(1).expand(8, 3, 6)[1], (8, 6)),
    "the whole of an axis": (lambda x, w, i: F.linear(x, w)[..., :6][:, -1], (2, 8, 6)),
    "a choice": (lambda x, w, i: torch.where(x > 0, F.linear(x, w), x.abs())[:, 7], (2, 8, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_other_operators_pass_on_which_rows_are_read(name: str) -> None:
    function, shape = CHAINS[name]
    graph = _chain(function, *shape)
    skipped = push_down_slices(graph)
    _assert_same(graph, skipped)
    assert sum(v.elements for v in skipped.values.values()) < sum(v.elements for v in graph.values.values())


KEPT: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "more than a half": (lambda x, w, i: F.linear(x, w)[:, :-1], (2, 8, 6)),
    "all of it is an output too": (lambda x, w, i: ((y := F.linear(x, w)), y[:, -1]), (2, 8, 6)),
    "two readers of other rows": (lambda x, w, i: ((y := F.linear(x, w))[:, 0], y[:, -1]), (2, 8, 6)),
    "every other row": (lambda x, w, i: F.linear(x, w)[:, ::2], (2, 8, 6)),
    "rows that depend on each other": (lambda x, w, i: F.linear(x, w).softmax(1)[:, -1], (2, 8, 6)),
    "sums from row to row": (lambda x, w, i: F.linear(x, w).cumsum(1)[:, -1], (2, 8, 6)),
    "features, not rows": (lambda x, w, i: F.linear(x, w)[..., -1], (2, 8, 6)),
    "numbers that are computed": (lambda x, w, i: F.linear(x, w).index_select(1, i + 1), (2, 8, 6)),
    "the same bits as other numbers": (lambda x, w, i: F.linear(x, w).view(torch.int32)[:, -1], (2, 8, 6)),
    "nothing worth it": (lambda x, w, i: x.relu()[:, -1], (2, 8, 6)),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_graph_stays_as_it_is_where_nothing_can_be_skipped(name: str) -> None:
    function, shape = KEPT[name]
    graph = _chain(function, *shape)
    assert push_down_slices(graph) is graph


def test_random_numbers_are_drawn_for_all_rows_as_before() -> None:
    graph = _trace(Layer(lambda x: x[:, -1], dropout=0.5), samba.randn(2, 9, 8, name="x"))
    assert push_down_slices(graph) is graph


def test_a_buffer_is_updated_whole() -> None:
    graph = _chain(lambda x, w, i: F.linear(x, w)[:, -1], 2, 8, 6)
    (linear,) = (o for o in graph.operators if o.op_type == "linear")
    cache = replace(graph.values[linear.outputs[0]], name="cache", kind=ValueKind.BUFFER)
    updated = replace(graph, values={**graph.values, "cache": cache}, updates={"cache": linear.outputs[0]})
    assert push_down_slices(updated) is updated

"""A graph over several chips computes what it does on one: values and gradients, whatever its operators."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
from rdukit.errors import InvalidArgument
from rdukit.hardware import find_chip
from rdukit_compiler.chips.cut import cut_over_chips
from rdukit_compiler.chips.pipeline import assign_stages, cut_evenly
from rdukit_compiler.chips.split import split_over_chips
from rdukit_compiler.chips.splitter import slice_sizes
from rdukit_compiler.chips.views import reshaped_dim
from rdukit_compiler.ir import ModelGraph, ValueKind
from rdukit_compiler.operators.run_operator import run_operator
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from rdukit_compiler.passes.checks import check_plans, check_stage
from rdukit_compiler.passes.cut_sections import CutOptions
from sambaflow.tracing.tracer import trace_model
from support import shows

pytestmark = shows("model-parallel", "pytorch")

PRECISION = Precision("f32", True)


class Program(nn.Module):
    """A module of two linear layers with any function between, and its mean squared error."""

    def __init__(self, function: Callable[..., torch.Tensor], width: int = 16, made: int = 16) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(8, width), function
        self.last = nn.Linear(made, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.last(self.function(self.first(x)))
        return F.mse_loss(made, y.expand_as(made)), made


def heads(x: torch.Tensor, count: int = 4, is_causal: bool = True) -> torch.Tensor:
    query, key, value = (part.view(*x.shape[:2], count, -1).transpose(1, 2) for part in x.chunk(3, -1))
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal).transpose(1, 2).flatten(2)


def written_out(x: torch.Tensor) -> torch.Tensor:
    heads = x.view(*x.shape[:2], 4, -1).permute(0, 2, 1, 3)
    return (torch.softmax(heads @ heads.transpose(-1, -2) / 2, -1) @ heads).transpose(1, 2).reshape(x.shape)


def grouped(x: torch.Tensor) -> torch.Tensor:
    shared = x.view(*x.shape[:2], 2, 1, -1).expand(-1, -1, 2, 2, -1).flatten(2, 3)
    return shared.flatten(2)[..., ::2]


#: Function between the layers → its input and output width.
FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], int, int]] = {
    "gelu": (F.gelu, 16, 16),
    "heads": (heads, 48, 16),
    "three heads": (lambda x: heads(x, 3), 72, 24),
    "three heads that see all": (lambda x: heads(x, 3, is_causal=False), 72, 24),
    "heads of one projection written out": (written_out, 16, 16),
    "groups of heads": (grouped, 16, 16),
    "norm": (lambda x: F.layer_norm(x, (16,)), 16, 16),
    "softmax": (lambda x: torch.softmax(x, -1), 16, 16),
    "softmax over the batch": (lambda x: torch.softmax(x, 0), 16, 16),
    "running sum": (lambda x: torch.cumsum(x, 1), 16, 16),
    "gate": (lambda x: F.silu(x[..., :16]) * x[..., 16:], 32, 16),
    "halves turned": (lambda x: torch.cat([-x[..., 8:], x[..., :8]], -1) * x.sin(), 16, 16),
    "mean over places": (lambda x: x + x.mean(1, keepdim=True), 16, 16),
    "sum over places": (lambda x: x * x.sum(1).unsqueeze(1), 16, 16),
    "centred": (lambda x: x - x.mean(), 16, 16),
    "last place": (lambda x: x[:, -1].unsqueeze(1), 16, 16),
    "first of all": (lambda x: x.select(0, 1).unsqueeze(0).expand(x.shape), 16, 16),
    "order turned": (lambda x: x.flip(-1), 16, 16),
    "places sorted": (lambda x: x.sort(1)[0], 16, 16),
    "places as channels": (lambda x: F.avg_pool1d(x, 3, 1, 1), 16, 16),
    "unflattened": (lambda x: x.unflatten(-1, (4, 4)).transpose(-1, -2).reshape(x.shape), 16, 16),
}


def traced(model: nn.Module, *inputs: Any) -> ModelGraph:
    samba.from_torch_model_(model)
    return assign_precision(trace_model(model, inputs, "program").graph, PRECISION)


def traced_program(name: str, batch: int = 4) -> ModelGraph:
    function, width, made = FUNCTIONS[name]
    inputs = samba.randn(batch, 6, 8, name="x", batch_dim=0), samba.randn(batch, 1, 4, name="y", batch_dim=0)
    return traced(Program(function, width, made), *inputs)


def compute(graph: ModelGraph, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    values: dict[str, Any] = dict(given)
    for name, piece in graph.pieces.items():
        values[name] = values[piece.parent][piece.start : piece.start + graph.values[name].shape[0]]
    for operator in graph.operators:
        run_operator(operator, values)
    return {name: values[name] for name in graph.outputs}


def draw(graph: ModelGraph) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    given = {}
    for value in graph.of_kind(ValueKind.INPUT, ValueKind.PARAMETER):
        whole = value.dtype.startswith("int")
        tensor = torch.randint(8, value.shape) if whole else torch.randn(value.shape, dtype=torch.float64)
        given[value.name] = tensor.requires_grad_(value.kind is ValueKind.PARAMETER)
    return given


def check_equal(graph: ModelGraph, divided: ModelGraph) -> None:
    """Compare in double precision, in which sums of another order hardly differ."""
    check_stage(divided, "place_on_chips", graph, PRECISION)
    given = draw(graph)
    parameters = [tensor for tensor in given.values() if tensor.requires_grad]
    one, several = compute(graph, given), compute(divided, given)
    for name, value in one.items():
        torch.testing.assert_close(several[name], value, rtol=1e-9, atol=1e-12)
    loss = graph.outputs[0]
    gold = torch.autograd.grad(one[loss], parameters, allow_unused=True)
    for found, gradient in zip(torch.autograd.grad(several[loss], parameters, allow_unused=True), gold, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-12)
    for mode in ("o0", "o3"):
        check_plans(divided, cut_over_chips(divided, CutOptions(mode, find_chip("sn10"), 4)))


@pytest.mark.parametrize("how", ["batch", "weight"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_one_chip(name: str, how: str) -> None:
    graph = traced_program(name)
    for chips in (2, 4) if "heads" in name else (2,):
        check_equal(graph, split_over_chips(graph, how, chips, PRECISION))


def test_attention_whose_heads_and_samples_the_chips_do_not_divide_is_divided_by_queries() -> None:
    for name in ("three heads", "three heads that see all"):
        graph = traced_program(name, batch=3)
        divided = split_over_chips(graph, "weight", 2, PRECISION)
        assert not divided.replicated
        check_equal(graph, divided)


@pytest.mark.parametrize("chips", [2, 3, 4])
def test_a_pipeline_computes_the_same_operators_in_stages(chips: int) -> None:
    graph = traced_program("heads")
    divided = assign_stages(graph, chips)
    check_equal(graph, divided)
    stages = [operator.chip for operator in divided.operators]
    assert stages == sorted(stages) and set(stages) == set(range(chips))


class Lookup(nn.Module):
    """A table of rows with a row that is padding, read again as the last layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4, padding_idx=5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(self.table(x), self.table.weight).flatten(0, 1), y.flatten(), ignore_index=2)


@pytest.mark.parametrize("how", ["batch", "weight"])
def test_tied_tables_with_padding_and_ignored_targets_are_divided(how: str) -> None:
    graph = traced(Lookup(), *(samba.randint(8, (4, 6), name=name) for name in ("x", "y")))
    for chips in (2, 4):
        divided = split_over_chips(graph, how, chips, PRECISION)
        assert not divided.replicated
        check_equal(graph, divided)


def test_an_index_outside_of_a_divided_table_is_refused_as_on_one_chip() -> None:
    graph = traced(Lookup(), *(samba.randint(8, (4, 6), name=name) for name in ("x", "y")))
    for wrong in (-1, 8):
        given = draw(graph) | {"x": torch.full((4, 6), wrong)}
        for each in (graph, split_over_chips(graph, "weight", 4, PRECISION)):
            with pytest.raises(Exception, match="index out of range"):
                compute(each, given)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(72, 8)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layers(x), y)


@pytest.mark.parametrize("how", ["batch", "weight"])
def test_convolutions_are_divided_by_samples(how: str) -> None:
    graph = traced(Convolutions(), samba.randn(4, 1, 12, 12, name="x"), samba.randint(8, (4,), name="y"))
    divided = split_over_chips(graph, how, 2, PRECISION)
    check_equal(graph, divided)
    assert how == "weight" or not divided.replicated


def test_what_cannot_be_divided_is_named() -> None:
    divided = split_over_chips(traced_program("places sorted"), "batch", 2, PRECISION)
    assert [why for name, why in divided.replicated.items() if "sort" in name] == [
        "sort of 4x6x16 has no dimension that 2 chips can divide"
    ]


def test_a_batch_that_the_chips_do_not_divide_is_refused_with_what_would_do() -> None:
    with pytest.raises(InvalidArgument, match=r"batch of 6 over 4 chips; expected .* --n-chips of 2, 3, 6"):
        split_over_chips(traced_program("gelu", batch=6), "batch", 4, PRECISION)


def test_weights_that_the_chips_do_not_divide_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="no linear layer or embedding has rows that 7 divides"):
        split_over_chips(traced_program("gelu"), "weight", 7, PRECISION)


def test_a_pipeline_needs_as_many_operators_as_chips() -> None:
    graph = traced(nn.Linear(4, 4), samba.randn(2, 4, name="x"))
    with pytest.raises(InvalidArgument, match="too few for a pipeline over 2 chips; take --n-chips 1"):
        assign_stages(graph, 2)


def test_stages_are_as_even_as_can_be_and_pass_the_least_on() -> None:
    assert cut_evenly([5, 1, 1, 5], [0] * 5, 2) == (2, 4)
    assert cut_evenly([1, 1, 4, 1, 1], [0, 9, 9, 1, 9, 0], 2) == (3, 5)
    assert cut_evenly([1, 1, 1], [0] * 4, 3) == (1, 2, 3)


def test_slices_differ_by_one_at_most() -> None:
    assert slice_sizes(8, 4) == (2, 2, 2, 2) and slice_sizes(7, 3) == (3, 2, 2)


def test_a_reshape_keeps_the_split_of_a_leading_part() -> None:
    assert reshaped_dim((2, 6, 16), (2, 6, 4, 4), 2, 4) == 2
    assert reshaped_dim((2, 6, 16), (12, 16), 0, 2) == 0
    assert reshaped_dim((2, 6, 16), (12, 16), 1, 2) is None
    assert reshaped_dim((2, 6, 16), (2, 6, 2, 8), 2, 4) is None
    assert reshaped_dim((1, 6, 16), (6, 16), 1, 3) == 0

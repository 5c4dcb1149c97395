"""What stays f32 where the device computes in bf16."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sambaflow.samba as samba
from rdukit_compiler.ir import ModelGraph, ValueKind
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from rdukit_compiler.passes.join_regions import join_regions
from sambaflow.tracing.tracer import trace_model
from support import shows
from support.graphs import GraphBuilder

pytestmark = shows("precision")

ROWS, COLUMNS = 4, 8


class Program(nn.Module):
    """A weight [8, 8], a table of positions [4], and ``function(module, x)``."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.zeros(COLUMNS, COLUMNS))
        self.scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("steps", torch.zeros(ROWS))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def typed(function: Callable[[Any, torch.Tensor], Any]) -> ModelGraph:
    program = Program(function)
    samba.from_torch_model_(program)
    return assign_precision(
        trace_model(program, samba.randn(ROWS, COLUMNS, name="x"), "m").graph, Precision("bf16", True)
    )


def results(function: Callable[[Any, torch.Tensor], Any]) -> list[str]:
    """dtypes of what the program returns, on the device."""
    graph = typed(function)
    return [graph.values[name].dtype for name in graph.outputs]


def held(function: Callable[[Any, torch.Tensor], Any], name: str) -> str:
    """dtype of the input or buffer whose name ends so, in device memory."""
    (value,) = (
        v for key, v in typed(function).values.items() if key.endswith(name) and v.kind is not ValueKind.OPERATOR
    )
    return value.dtype


LABELS = torch.zeros(ROWS, dtype=torch.int64)

WIDE: dict[str, Callable[[Any, Any], Any]] = {
    "loss": lambda m, x: F.cross_entropy(x, LABELS),
    "loss-per-sample": lambda m, x: F.cross_entropy(x, LABELS, reduction="none"),
    "losses-weighted": lambda m, x: 0.3 * F.mse_loss(x, x + 1) + F.l1_loss(x, x * 2),
    "loss-of-cosines": lambda m, x: F.cosine_embedding_loss(x, x + 1, torch.ones(ROWS)),
    "mean-of-squares-by-hand": lambda m, x: ((x - 1) ** 2).mean(),
    "mean-of-sums": lambda m, x: (x * x).sum(1).sqrt().mean(),
    "per-sample-by-hand": lambda m, x: (x * x).sum(1) * 0.5,
    "log-chances-by-hand": lambda m, x: -F.log_softmax(x, 1).gather(1, LABELS[:, None]).mean(),
    "parts-stacked": lambda m, x: torch.stack([x.mean(), x.std()]).sum(),
    "running-sum": lambda m, x: x.cumsum(1),
    "sequence-named": lambda m, x: torch.arange(4, dtype=torch.float32),
    "sequence-of-floats": lambda m, x: torch.arange(250.0, 258.0) * x,
    "zeros-named": lambda m, x: torch.zeros(ROWS, COLUMNS, dtype=torch.float32) + x,
    "named-again": lambda m, x: (x.float() * 2).float(),
    "positions-like-a-buffer": lambda m, x: torch.arange(4).type_as(m.steps),
}  # fmt: skip

NARROW: dict[str, Callable[[Any, Any], Any]] = {
    "zeros": lambda m, x: torch.zeros(ROWS, COLUMNS) + x,
    "sequence-that-bf16-has": lambda m, x: torch.arange(8.0) * x,
    "zeros-of-a-tensor's-dtype": lambda m, x: torch.zeros(ROWS, COLUMNS, dtype=x.dtype) + x,
    "back-to-a-tensor's-dtype": lambda m, x: (x.float() * 2).to(x.dtype),
    "sequence-back-to-a-tensor's-dtype": lambda m, x: torch.arange(8, dtype=torch.float32).cos().to(x.dtype) * x,
    "sum-that-divides": lambda m, x: x / x.sum(1, keepdim=True),
    "mean-that-a-layer-reads": lambda m, x: x.mean(0, keepdim=True) @ m.weight,
    "centred": lambda m, x: x - x.mean(0),
    "scaled-by-a-loss": lambda m, x: x * F.mse_loss(x, x + 1),
    "divided-by-a-scalar-sum": lambda m, x: x / x.sum(),
    "scaled-by-a-scalar": lambda m, x: x * m.scale.exp(),
    "log-chances-returned": lambda m, x: F.log_softmax(x, 1),
}  # fmt: skip


@pytest.mark.parametrize("case", WIDE)
def test_results_that_stay_f32(case: str) -> None:
    assert results(WIDE[case]) == ["float32"]


@pytest.mark.parametrize("case", NARROW)
def test_f32_does_not_spread_into_what_the_device_computes(case: str) -> None:
    assert results(NARROW[case]) == ["bfloat16"]


def wide_words(function: Callable[[Any, torch.Tensor], Any]) -> set[str]:
    """Operators that are made to compute in f32."""
    return {operator.op_type for operator in typed(function).operators if operator.compute}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda m, x: ((x @ m.weight) - x).pow(2).sum(1), {"sub", "pow", "sum"}),
        (lambda m, x: F.cross_entropy((x @ m.weight).tanh().view(ROWS, COLUMNS), LABELS), {"tanh"}),
        (lambda m, x: F.mse_loss(F.normalize(x @ m.weight), x), {"div", "clamp_min", "linalg_vector_norm"}),
        (
            lambda m, x: F.gaussian_nll_loss(x @ m.weight, x, 0.5, reduction="none"),
            {"sub", "pow", "div", "log", "add", "mul", "clamp"},
        ),
        (lambda m, x: F.relu(x @ m.weight).mean(1), {"mean"}),
        (lambda m, x: F.gelu(x @ m.weight).mean(1), {"mean"}),
        (lambda m, x: F.dropout(x * 2, 0.5).mean(1), {"mean"}),
        (lambda m, x: ((x @ m.weight) * 2).argmax(1), set()),
        (lambda m, x: ((x @ m.weight) * 2).softmax(1), set()),
        (lambda m, x: F.cross_entropy((x * 2).tanh() @ m.weight, LABELS), set()),
        (lambda m, x: ((x * 2).softmax(1) @ m.weight).mean(1), {"mean"}),
        (lambda m, x: (y := x @ m.weight * 2, y.square().sum(1)), {"square", "sum"}),
    ],
)
def test_what_only_a_loss_reads_computes_in_f32_and_no_layer_does(function: Any, expected: set[str]) -> None:
    assert wide_words(function) == expected


@pytest.mark.parametrize(
    ("function", "name", "expected"),
    [
        (lambda m, x: m.steps.float() * 2, "steps", "float32"),
        (lambda m, x: m.steps[None, :].expand(2, -1).float() @ x.float(), "steps", "float32"),
        (lambda m, x: torch.outer(torch.arange(4).type_as(m.steps), m.steps), "steps", "float32"),
        (lambda m, x: m.steps[:, None] * x, "steps", "bfloat16"),
        (lambda m, x: (m.steps.float(), m.steps[:, None] * x), "steps", "bfloat16"),
        (lambda m, x: x.long(), "x", "float32"),
        (lambda m, x: x.sum(1).long(), "x", "float32"),
        (lambda m, x: F.mse_loss(torch.ones(ROWS, COLUMNS), x), "x", "float32"),
        (lambda m, x: F.mse_loss(x @ m.weight, x), "x", "bfloat16"),
        (lambda m, x: x, "x", "float32"),
    ],
)
def test_what_nothing_in_bf16_is_made_of_is_held_in_f32(function: Any, name: str, expected: str) -> None:
    assert held(function, name) == expected


def exact(graph: ModelGraph) -> list[str]:
    return [value.name.rpartition("__")[2] for value in graph.values.values() if value.is_exact]


def test_a_parameter_that_is_read_in_f32_only_is_marked() -> None:
    graph = typed(lambda m, x: x.float() @ m.weight)
    assert exact(graph) == ["x", "weight"]
    graph = typed(lambda m, x: x @ m.weight)
    assert exact(graph) == []


def test_a_scalar_that_is_only_multiplied_with_is_exact() -> None:
    assert exact(typed(lambda m, x: x * m.scale.exp())) == ["scale"]
    assert exact(typed(lambda m, x: x * m.scale.view(1, 1).exp())) == []


def test_an_input_of_two_graphs_has_one_dtype() -> None:
    def graph(op: str, *dims: int) -> ModelGraph:
        build = GraphBuilder()
        return assign_precision(build.build(build.op(op, build.input("x", 2, 3), *dims)), Precision("bf16", False))

    before = [graph("cumsum", 1), graph("exp")]
    assert [g.values["x"].dtype for g in before] == ["float32", "bfloat16"]
    after = join_regions(before, {}, Precision("bf16", False))
    assert [(g.values["x"].dtype, g.values["x"].is_exact) for g in after] == [("float32", True), ("float32", False)]


def test_in_f32_nothing_is_marked() -> None:
    program = Program(WIDE["mean-of-sums"])
    samba.from_torch_model_(program)
    graph = trace_model(program, samba.randn(ROWS, COLUMNS, name="x"), "m").graph
    same = assign_precision(graph, Precision("f32", True))
    assert same.operators == graph.operators

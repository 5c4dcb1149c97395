"""How tensors that leave a section lie in memory: what reads them was traced on exactly that."""

import pytest
import torch

from rdukit.pef.kernel import KernelGraph, Ref
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from rdukit_compiler.passes.differentiate import build_kernels
from rdukit_runtime.engine.portable import build_portable
from support import shows
from support.graphs import GraphBuilder

pytestmark = shows("engine")

PRECISION = Precision("f32", True)


def gates() -> ModelGraph:
    """x [4, 12] → linear → three slices of 4 → tanh → product, which saves what lies between gaps."""
    b = GraphBuilder()
    x = b.linear(b.input("x", 4, 12), 12, "lin")
    parts = [b.op("slice", x, 1, 4 * i, 4 * i + 4, shape=(4, 4), name=f"gate{i}") for i in range(3)]
    parts = [b.op("tanh", p, shape=(4, 4)) for p in parts]
    return b.build(b.op("mul", b.op("mul", parts[0], parts[1]), parts[2]))


def turned() -> ModelGraph:
    """x [4, 12] → linear → transposed [12, 4]."""
    b = GraphBuilder()
    return b.build(b.op("transpose", b.linear(b.input("x", 4, 12), 12), 0, 1, shape=(12, 4)))


def example(kernel: KernelGraph) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(spec.shape).as_strided(spec.shape, spec.stride) for spec in kernel.inputs]


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def fixed(graph: ModelGraph) -> ModelGraph:
    """With overloads that exist: the builder calls everything ``default``."""
    overloads = {"aten.slice.default": "aten.slice.Tensor", "aten.mul.default": "aten.mul.Tensor",
                 "aten.transpose.default": "aten.transpose.int"}  # fmt: skip
    for operator in graph.operators:
        object.__setattr__(operator, "op", overloads.get(operator.op, operator.op))
    return assign_precision(graph, PRECISION)


@pytest.mark.parametrize("make", [gates, turned])
def test_outputs_are_contiguous_and_saved_tensors_have_no_gaps(make: object) -> None:
    graph = fixed(make())  # type: ignore[operator]
    made = build_kernels(graph, graph.operators, PRECISION, {graph.outputs[0]: 1})
    assert made.backward is not None
    assert all(is_dense(spec.shape, spec.stride) for spec in made.backward.inputs)
    outputs = build_portable(made.forward)(example(made.forward), {})
    assert outputs[0].is_contiguous()
    specs = made.backward.inputs
    extras = [s for s in made.saved if s.value is None]
    for saved in extras:
        spec = specs[made.saved.index(saved)]
        assert outputs[1 + saved.index].stride() == spec.stride
    gradients = build_portable(made.backward)(example(made.backward), {})
    assert all(gradient.is_contiguous() for gradient in gradients if gradient is not None)


def test_a_gradient_that_autograd_expands_is_written_out() -> None:
    b = GraphBuilder()
    b.parameter("w", 3, 4)
    graph = b.build(b.op("sum", "w", shape=()))
    graph = fixed(graph)
    made = build_kernels(graph, graph.operators, PRECISION, {graph.outputs[0]: 1})
    assert made.backward is not None
    (gradient,) = build_portable(made.backward)([torch.ones(())], {})
    assert gradient.stride() == (4, 1)
    assert any(Ref in map(type, node.args) for node in made.backward.nodes)

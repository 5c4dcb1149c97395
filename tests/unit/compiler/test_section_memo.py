"""Equal sections are differentiated once, and nothing in the PEF shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import sambaflow.samba as samba
from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.assemble import assemble_graph
from rdukit_compiler.passes.assembly import Assembly
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from rdukit_compiler.passes.cut_sections import CutOptions, cut_sections
from rdukit_compiler.passes.differentiate import SectionKernels, build_kernels, section_inputs, section_outputs
from rdukit_compiler.passes.section_cache import SectionCache, describe_structure
from rdukit_compiler.rules import load_default_rules
from sambaflow.tracing.tracer import trace_model
from support import shows
from support.graphs import GraphBuilder

pytestmark = shows("engine", "o0", "o1", "o3")


class ForgetfulMemo(SectionCache):
    """Traces every section anew, as if there were no memo."""

    def build(
        self, graph: ModelGraph, operators: Sequence[Operator], precision: Precision, contributions: Mapping[str, int]
    ) -> SectionKernels:
        return build_kernels(graph, operators, precision, contributions)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def deep_graph(layers: int, training: bool = True) -> tuple[ModelGraph, ModelGraph]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Residual() for _ in range(layers)))
    samba.from_torch_model_(model)
    traced = trace_model(model, samba.randn(3, 8, name="x"), "deep").graph
    return traced, assign_precision(traced, Precision("bf16", training))


def assembled(layers: int, mode: str, training: bool, memo: SectionCache) -> Assembly:
    traced, graph = deep_graph(layers, training)
    options = CompileOptions("deep", Path("deep.pef"), mode=mode, inference=not training)
    plans = cut_sections(graph, CutOptions(mode, options.chip, options.tiles, load_default_rules(), not training))
    assembly = Assembly(cache=memo)
    assemble_graph(assembly, traced, graph, plans, (), options)
    return assembly


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_a_compile_with_the_memo_equals_one_without(mode: str, training: bool) -> None:
    with_memo = assembled(3, mode, training, SectionCache())
    without = assembled(3, mode, training, ForgetfulMemo())
    assert with_memo.sections == without.sections
    assert list(with_memo.symbols.items()) == list(without.symbols.items())
    assert [k.to_json() for k in with_memo.kernels.values()] == [k.to_json() for k in without.kernels.values()]


def test_a_deeper_model_of_equal_layers_has_no_more_structures() -> None:
    memos = [SectionCache() for _ in range(2)]
    sections = [len(assembled(n, "o1", True, memo).sections) for n, memo in zip((3, 8), memos, strict=True)]
    assert sections[1] > sections[0]
    assert len(memos[0]) == len(memos[1])


def test_a_repeated_section_is_bound_to_its_own_values() -> None:
    _, graph = deep_graph(2)
    memo = SectionCache()
    count = len(graph.operators) // 2
    for operators in (graph.operators[:count], graph.operators[count:]):
        outputs = section_outputs(graph, operators)
        built = memo.build(graph, operators, Precision("bf16", True), dict.fromkeys(outputs, 1))
        assert built == build_kernels(graph, operators, Precision("bf16", True), dict.fromkeys(outputs, 1))


def test_what_changes_a_kernel_changes_the_structure() -> None:
    def structure(
        scale: object = 2.0, shape: tuple[int, ...] = (4, 8), dtype: str = "float32", op: str = "mul",
        precision: str = "f32", gradients: int = 1, differentiable: bool = False, exact: bool = False,
    ) -> str:  # fmt: skip
        b = GraphBuilder()
        b.op(op, b.input("x", *shape, dtype=dtype), scale, name="y")  # type: ignore[arg-type]
        graph = b.build()
        values = {**graph.values, "x": replace(graph.values["x"], requires_grad=differentiable, is_exact=exact)}
        graph = replace(graph, values=values)
        return describe_structure(
            graph, graph.operators, section_inputs(graph, graph.operators), ("y",), Precision(precision, True),
            {"y": gradients},
        )  # fmt: skip

    variants = [
        structure(), structure(scale=2), structure(scale=True), structure(scale=1), structure(shape=(4, 4)),
        structure(dtype="bfloat16"), structure(op="div"), structure(precision="bf16"), structure(gradients=2),
        structure(differentiable=True), structure(exact=True),
    ]  # fmt: skip
    assert len(set(variants)) == len(variants)
    assert structure() == structure()


def test_operands_in_other_places_are_another_structure() -> None:
    def built(swapped: bool) -> str:
        b = GraphBuilder()
        x, y = b.input("x"), b.input("y")
        first = b.op("mul", x, y, name="first")
        b.op("sub", *((y, first) if swapped else (first, y)), name="out")
        graph = b.build()
        return describe_structure(graph, graph.operators, ("x", "y"), ("out",), Precision("f32", False), {})

    assert built(swapped=False) != built(swapped=True)

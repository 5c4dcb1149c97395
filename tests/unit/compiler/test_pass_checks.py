"""Checks after each pass: a graph that a pass has broken is caught, where the setting asks for it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from rdukit.errors import CompileError, InvalidGraph
from rdukit.hardware import find_chip
from rdukit_compiler.ir import ModelGraph, ValueKind
from rdukit_compiler.passes.checks import STAGES, check_plans, check_stage
from rdukit_compiler.passes.cut_sections import CutOptions, cut_sections
from support.graphs import GraphBuilder


def chain() -> ModelGraph:
    """x [4, 8] → linear → gelu → softmax."""
    b = GraphBuilder()
    hidden = b.op("gelu", b.linear(b.input("x"), 8), name="gelu")
    b.op("softmax", hidden, -1, name="chances")
    graph = b.build()
    last = replace(graph.operators[-1], op="aten.softmax.int")
    return replace(graph, operators=(*graph.operators[:-1], last))


def with_shape(graph: ModelGraph, name: str, *shape: int) -> ModelGraph:
    return replace(graph, values={**graph.values, name: replace(graph.values[name], shape=shape)})


def without_output(graph: ModelGraph) -> ModelGraph:
    return replace(graph, outputs=("gelu",))


def skipping_gelu(graph: ModelGraph) -> ModelGraph:
    last = graph.operators[-1]
    reads = graph.operators[0].outputs[0]
    args = (replace(last.args[0], name=reads), *last.args[1:])  # type: ignore[type-var,arg-type]
    return replace(graph, operators=(*graph.operators[:-1], replace(last, args=args)))


def with_unsupported(graph: ModelGraph) -> ModelGraph:
    return replace(graph, operators=(*graph.operators[:-1], replace(graph.operators[-1], op="other.softmax.int")))


def with_integer_gradient(graph: ModelGraph) -> ModelGraph:
    value = replace(graph.values["gelu"], dtype="int64", requires_grad=True)
    return replace(graph, values={**graph.values, "gelu": value})


BROKEN: list[tuple[str, Callable[[ModelGraph], ModelGraph], str]] = [
    ("push_down_slices", lambda graph: with_shape(graph, "gelu", 4, 4), "makes 'gelu' of shape"),
    ("push_down_slices", lambda graph: with_shape(graph, "x", 2, 8), "'x' of shape"),
    ("choose_compute", without_output, "outputs or updated buffers"),
    ("join_regions", skipping_gelu, "nothing reads 'gelu'"),
    ("choose_host_operators", with_unsupported, "not marked to run on the host"),
    ("assign_precision", with_integer_gradient, "requires a gradient"),
]


@pytest.mark.parametrize(("stage", "broken", "message"), BROKEN)
def test_a_broken_graph_is_caught_and_the_stage_is_named(
    monkeypatch: pytest.MonkeyPatch, stage: str, broken: Callable[[ModelGraph], ModelGraph], message: str
) -> None:
    monkeypatch.setenv("RDUKIT_CHECK", "1")
    with pytest.raises(InvalidGraph, match=message) as refused:
        check_stage(broken(chain()), stage, chain())
    assert f"after {stage}" in refused.value.message


@pytest.mark.parametrize("stage", STAGES)
def test_a_sound_graph_passes_every_stage(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    monkeypatch.setenv("RDUKIT_CHECK", "1")
    check_stage(chain(), stage, chain())


def test_without_the_setting_only_the_structure_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDUKIT_CHECK", raising=False)
    check_stage(with_shape(chain(), "gelu", 4, 4), "push_down_slices", chain())
    with pytest.raises(InvalidGraph, match="before it is made"):
        check_stage(replace(chain(), operators=chain().operators[::-1]), "push_down_slices", chain())


def test_plans_in_an_order_that_cannot_be_run_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_CHECK", "1")
    graph = chain()
    plans = cut_sections(graph, CutOptions("o0", find_chip("sn30"), 8))
    check_plans(graph, plans)
    with pytest.raises(InvalidGraph, match="before a section makes it"):
        check_plans(graph, plans[::-1])
    with pytest.raises(CompileError, match="partition"):
        check_plans(graph, plans[1:])
    assert {value.kind for value in graph.values.values()} >= {ValueKind.INPUT, ValueKind.OPERATOR}

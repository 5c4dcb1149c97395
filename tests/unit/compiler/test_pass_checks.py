"""Checks after each pass: a graph that a pass has broken is caught, where the setting asks for it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import CompileError, InvalidGraph
from rdukit.hardware import find_chip
from rdukit.pef.file import read_pef
from rdukit_compiler import pipeline
from rdukit_compiler.ir import ModelGraph, ValueKind
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.assign_precision import Precision
from rdukit_compiler.passes.checks import STAGES, check_assembly, check_plans, check_stage
from rdukit_compiler.passes.cut_sections import CutOptions, cut_sections
from rdukit_compiler.pipeline import TracedGraph, compile_graphs
from rdukit_compiler.reports import ConsoleReporter
from rdukit_runtime.application import open_application
from support import shows
from support.graphs import GraphBuilder

pytestmark = shows("settings", "engine")


def chain() -> ModelGraph:
    """x [4, 8] → linear → gelu → softmax."""
    b = GraphBuilder()
    hidden = b.op("gelu", b.linear(b.input("x"), 8), name="gelu")
    b.op("softmax", hidden, -1, name="chances")
    graph = b.build()
    last = replace(graph.operators[-1], op="aten.softmax.int")
    return replace(graph, operators=(*graph.operators[:-1], last))


def compile_chain(folder: Path, chips: int = 1) -> Path:
    divided: dict[str, Any] = {"num_tiles": 1} if chips == 1 else {"chips": chips, "parallel": "pipeline"}
    options = CompileOptions("chain", folder / "chain.pef", "o0", inference=True, kernels="portable", **divided)
    return compile_graphs([TracedGraph(chain())], options, ConsoleReporter(quiet=True))


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


def with_dtype(graph: ModelGraph) -> ModelGraph:
    return replace(graph, values={**graph.values, "gelu": replace(graph.values["gelu"], dtype="bfloat16")})


BROKEN: list[tuple[str, Callable[[ModelGraph], ModelGraph], str]] = [
    ("push_down_slices", lambda graph: with_shape(graph, "gelu", 4, 4), "makes 'gelu' of shape"),
    ("push_down_slices", lambda graph: with_shape(graph, "x", 2, 8), "'x' of shape"),
    ("choose_compute", without_output, "outputs or updated buffers"),
    ("join_regions", skipping_gelu, "nothing reads 'gelu'"),
    ("choose_host_operators", with_unsupported, "not marked to run on the host"),
    ("assign_precision", with_integer_gradient, "requires a gradient"),
    ("join_regions", with_dtype, "makes 'gelu' in float32, not bfloat16"),
]
#: What the small graph is in.
FLOAT32 = Precision("f32", training=False)
#: Stages that hand on a graph.
OF_GRAPHS = [stage for stage in STAGES if stage not in {"cut_sections", "assemble"}]


@pytest.mark.parametrize(("stage", "broken", "message"), BROKEN)
def test_a_broken_graph_is_caught_and_the_stage_is_named(
    monkeypatch: pytest.MonkeyPatch, stage: str, broken: Callable[[ModelGraph], ModelGraph], message: str
) -> None:
    monkeypatch.setenv("RDUKIT_CHECK", "1")
    with pytest.raises(InvalidGraph, match=message) as refused:
        check_stage(broken(chain()), stage, chain(), FLOAT32)
    assert f"after {stage}" in refused.value.message


@pytest.mark.parametrize("stage", OF_GRAPHS)
def test_a_sound_graph_passes_every_stage(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    monkeypatch.setenv("RDUKIT_CHECK", "1")
    check_stage(chain(), stage, chain(), FLOAT32)


@pytest.mark.parametrize("stage", [stage for stage in OF_GRAPHS if stage not in {"trace", "quantize_weights"}])
def test_a_compile_ends_at_the_pass_that_broke_its_graph(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stage: str
) -> None:
    monkeypatch.setenv("RDUKIT_CHECK", "1")
    sound = getattr(pipeline, stage)

    def broken(*given: Any) -> Any:
        made = sound(*given)
        return [without_output(graph) for graph in made] if isinstance(made, list) else without_output(made)

    monkeypatch.setattr(pipeline, stage, broken)
    with pytest.raises(InvalidGraph, match=f"after {stage}: outputs or updated buffers"):
        compile_chain(tmp_path, chips=2 if stage == "place_on_chips" else 1)


def test_an_assembly_whose_sections_cannot_be_run_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded = read_pef(compile_chain(tmp_path))
    monkeypatch.setenv("RDUKIT_CHECK", "1")
    check_assembly(loaded.pef, loaded.kernels)
    (graph,) = loaded.pef.graphs.values()
    turned = replace(loaded.pef, graphs={graph.name: replace(graph, schedule=graph.schedule[::-1])})
    with pytest.raises(InvalidGraph, match="after assemble: section 'chances' of graph 'model' reads 'gelu' before"):
        check_assembly(turned, loaded.kernels)
    symbols = {**loaded.pef.symbols, "x": replace(loaded.pef.symbols["x"], shape=(2, 8))}
    with pytest.raises(InvalidGraph, match=r"after assemble: section 0 binds 'x', bfloat16 \[2, 8\], to an input"):
        check_assembly(replace(loaded.pef, symbols=symbols), loaded.kernels)
    monkeypatch.delenv("RDUKIT_CHECK")
    check_assembly(turned, loaded.kernels)


def test_each_level_of_debug_adds_what_it_promises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RDUKIT_NODE", "private")
    pef = compile_chain(tmp_path)
    assert capsys.readouterr().err == ""
    printed = {}
    for level in range(1, 6):
        monkeypatch.setenv("RDUKIT_DEBUG", str(level))
        compile_chain(tmp_path)
        with open_application(pef, "chain"):
            printed[level] = capsys.readouterr().err
    for level, line in enumerate(
        ("gelu: bfloat16[4, 8] = aten.gelu.default(linear_0)", "rule=-\theuristic=default", '"stream_iterations": ',
         "v0 = aten.gelu.default(i0)", "  x: x (input)"), 1,
    ):  # fmt: skip
        assert [line in printed[each] for each in range(1, 6)] == [each >= level for each in range(1, 6)], line


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

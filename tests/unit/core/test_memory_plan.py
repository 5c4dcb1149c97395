"""The memory plan: what exists when, peaks, shared memory, what a lease asks for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from rdukit.errors import PefCorrupt
from rdukit.pef.cli import pef as pef_command
from rdukit.pef.inspect import memory_line
from rdukit.pef.memory import (
    MemoryWalk,
    freed_after,
    lease_bytes,
    persistent_layout,
    plan_memory,
    replaced_by,
    visible_gradients,
)
from rdukit.pef.model import (
    Cost,
    Graph,
    Pef,
    Section,
    SectionResources,
    SectionType,
    Symbol,
    SymbolKind,
    pef_from_dict,
    pef_to_dict,
)
from support import shows
from support.pefs.examples import write_example_pef

pytestmark = shows("pef", "engine")

SIZES = {"x": 16, "w": 8, "h": 100, "s": 40, "y": 20, "y__grad": 20, "h__grad": 100, "w__grad": 8}
KINDS = {
    "x": SymbolKind.INPUT, "w": SymbolKind.PARAMETER, "h": SymbolKind.ACTIVATION, "s": SymbolKind.ACTIVATION,
    "y": SymbolKind.OUTPUT, "y__grad": SymbolKind.SEED, "h__grad": SymbolKind.GRADIENT, "w__grad": SymbolKind.GRADIENT,
}  # fmt: skip


def section(number: int, kind: SectionType, inputs: str, outputs: str, scratch: int = 0) -> Section:
    return Section(
        number, f"s{number}", kind, "g", "k", tuple(inputs.split()), tuple(outputs.split()), (), None, "default", "",
        SectionResources(1, 1, 1, 1), Cost(1, 1, 1, 1, 1, 1e-6), {}, scratch,
    )  # fmt: skip


def training_pef() -> Pef:
    sections = (
        section(0, SectionType.FWD, "x w", "h s", scratch=7),
        section(1, SectionType.FWD, "h", "y"),
        section(2, SectionType.BCKWD, "y__grad h", "h__grad", scratch=30),
        section(3, SectionType.BCKWD, "h__grad s x", "w__grad"),
        section(4, SectionType.OPT, "w w__grad", ""),
    )
    gradients = {"y": ("y__grad",), "h": ("h__grad",), "w": ("w__grad",)}
    return Pef(
        "p", "o1", "sn10", 1, "f32", False, "0", "0", "",
        {"g": Graph("g", ("x",), ("y",), (0, 1, 2, 3, 4), {"y": "y__grad"}, ("y",), gradients)},
        {n: Symbol(n, KINDS[n], "int8", (size,), "int8", n) for n, size in SIZES.items()}, sections, {}, {},
    )  # fmt: skip


def with_sections(pef: Pef, **changes: Section) -> Pef:
    by_name = {s.name: s for s in pef.sections} | changes
    return replace(pef, sections=tuple(by_name[s.name] for s in pef.sections))


def test_each_section_has_what_lives_during_and_after_it() -> None:
    pef = training_pef()
    plan = plan_memory(pef, pef.graphs["g"])
    assert [m.during_bytes for m in plan.moments] == [140, 160, 260, 168, 28]
    assert [m.after_bytes for m in plan.moments] == [140, 160, 160, 28, 28]
    assert (plan.start_bytes, plan.end_bytes) == (0, 28), "the output and the parameter's gradient stay readable"


def test_the_hosts_peak_has_scratch_and_the_devices_has_not() -> None:
    pef = training_pef()
    plan = plan_memory(pef, pef.graphs["g"])
    persistent = persistent_layout(pef)[1]
    assert plan.peak_moment is not None and plan.peak_moment.name == "s2"
    assert plan.peak_bytes == persistent + 290
    assert plan.device_peak_bytes == persistent + 260
    assert lease_bytes(pef) == persistent + 260 + (1 << 20) < pef.region_bytes + persistent + (1 << 20)


def test_gradients_that_nobody_can_ask_for_are_freed_after_their_last_reader() -> None:
    pef = training_pef()
    assert visible_gradients(pef) == {"y__grad", "w__grad"}
    freed = freed_after(pef, pef.graphs["g"])
    assert (set(freed[2]), set(freed[3])) == ({"h"}, {"h__grad", "s"})


def test_what_a_run_makes_anew_goes_when_it_begins_unless_it_reads_it_first() -> None:
    pef = training_pef()
    graph = pef.graphs["g"]
    assert replaced_by(pef, graph, graph.schedule) == ("h", "s", "y", "h__grad", "w__grad")
    assert replaced_by(pef, graph, (3, 4)) == ("w__grad",)
    walk = MemoryWalk(pef)
    plans = [walk.run(graph, graph.schedule) for _ in range(3)]
    assert plans[0] == plans[1] == plans[2]


def test_the_runs_of_a_split_step_follow_each_other() -> None:
    pef = training_pef()
    graph = pef.graphs["g"]
    backward = plan_memory(pef, graph, (2, 3, 4))
    assert backward.start_bytes == 160, "what the forward left"
    assert backward.moments == plan_memory(pef, graph).moments[2:]
    walk = MemoryWalk(pef)
    walk.run(graph, graph.schedule)
    assert walk.run(graph, (0, 1)).start_bytes == 8, "the last step's gradient is still readable"


def test_a_view_counts_once_and_keeps_what_it_views() -> None:
    pef = training_pef()
    whole = replace(pef.sections[0], shares={"s": "h"})
    plan = plan_memory(with_sections(pef, s0=whole), pef.graphs["g"])
    assert [m.after_bytes for m in plan.moments] == [100, 120, 220, 28, 28], "h goes with s, its last view"
    of_input = replace(pef.sections[0], shares={"s": "x"})
    assert plan_memory(with_sections(pef, s0=of_input), pef.graphs["g"]).moments[0].after_bytes == 100


def test_a_part_of_something_larger_counts_what_it_keeps() -> None:
    pef = training_pef()
    part = replace(pef.sections[0], holds={"s": 90})
    assert plan_memory(with_sections(pef, s0=part), pef.graphs["g"]).moments[0].after_bytes == 190


def test_a_buffer_is_made_first_and_then_copied_to_its_place() -> None:
    pef = training_pef()
    symbols = {**pef.symbols, "b": Symbol("b", SymbolKind.BUFFER, "int8", (50,), "int8", "b")}
    written = with_sections(replace(pef, symbols=symbols), s1=section(1, SectionType.FWD, "h b", "y b"))
    moment = plan_memory(written, pef.graphs["g"]).moments[1]
    assert (moment.during_bytes, moment.after_bytes) == (210, 160)


def test_what_another_graph_leaves_is_there_too() -> None:
    pef = training_pef()
    symbols = {**pef.symbols, "z": Symbol("z", SymbolKind.OUTPUT, "int8", (5,), "int8", "z")}
    other = replace(section(5, SectionType.FWD, "x", "z"), graph="other")
    graphs = {**pef.graphs, "other": Graph("other", ("x",), ("z",), (5,), {}, (), {})}
    both = replace(pef, symbols=symbols, sections=(*pef.sections, other), graphs=graphs)
    assert plan_memory(both, graphs["g"]).start_bytes == 5
    assert plan_memory(both, graphs["other"]).start_bytes == 28


def test_the_new_fields_survive_the_file_and_bad_ones_are_refused() -> None:
    pef = with_sections(
        training_pef(), s0=replace(training_pef().sections[0], shares={"s": "x"}, holds={"h": 120})
    )  # fmt: skip
    assert pef_from_dict(json.loads(json.dumps(pef_to_dict(pef)))) == pef
    for bad in ({"shares": {"s": "nothing"}}, {"holds": {"y": 5}}, {"holds": {"h": -1}}, {"scratch_bytes": -1}):
        value = pef_to_dict(pef)
        value["sections"][0] |= bad
        with pytest.raises(PefCorrupt, match="section 0"):
            pef_from_dict(value)


def test_the_command_shows_the_plan_to_people_and_machines(tmp_path: Path) -> None:
    path = write_example_pef(tmp_path / "example.pef", natives=False)
    shown = CliRunner().invoke(pef_command, ["show", str(path), "--memory"])
    assert shown.exit_code == 0 and "Memory plan of main: persistent" in shown.output and " peak" in shown.output
    assert "Kernels" not in shown.output
    described = json.loads(CliRunner().invoke(pef_command, ["show", str(path), "--json"]).output)["memory"]
    plan = described["graphs"]["main"]
    assert plan["peak_bytes"] >= plan["persistent_bytes"] > 0
    assert described["lease_bytes"] == plan["device_peak_bytes"] + (1 << 20)


def test_one_line_names_the_peak_and_where_it_is() -> None:
    pef = training_pef()
    assert memory_line(pef, 2048) == "memory: persistent 192 B, peak 482 B at section s2, host copies 2 KiB"
    assert memory_line(pef).endswith("at section s2")

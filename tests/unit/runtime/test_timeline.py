"""rdukit profile: what is recorded of calls, the account of a process's time, and the files that are drawn of it."""

import ctypes
import json
from array import array
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rdukit.errors import InvalidArgument
from rdukit.pef.file import write_pef
from rdukit.pef.model import Pef
from rdukit.telemetry.model import Span, SpanContext
from rdukit_runtime.engine.native_run import SectionTimes
from rdukit_runtime.profile.program import summary_tables
from rdukit_runtime.profile.recording import (
    ProcessRecording,
    account,
    find_straggler,
    monotonic_spans,
    read_recording,
    summary_to_dict,
)
from rdukit_runtime.profile.step import BreakdownRow
from rdukit_runtime.profile.timeline import TimelineRecorder
from rdukit_runtime.profile.timeline_files import bars_of, speedscope_text, trace_text
from rdukit_runtime.report.make import build_page
from rdukit_runtime.report.page import render_page
from support import shows
from support.pefs.examples import example_kernels, example_pef

pytestmark = shows("profile")

#: Seconds that the sections of the recorded runs take.
SECTION_S = 20e-9


class Hand:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.time = 1000

    def __call__(self) -> int:
        return self.time

    def pass_by(self, nanoseconds: int) -> None:
        self.time += nanoseconds


class Program:
    """A program of one section, whose run measures it as the engine does."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.device = "cpu"
        self.section_seconds: list[tuple[int, float]] | None = None

    def run(self, graph: Any, sections: tuple[int, ...], scalars: Any) -> None:
        self.hand.pass_by(2)
        if self.section_seconds is not None:
            for number in sections:
                self.section_seconds.append((number, SECTION_S))
        self.hand.pass_by(20 * len(sections) + 1)


def recorded(runs: int = 2, most: int = 1000, pef: Pef | None = None) -> dict[str, Any]:
    """Runs of 5 + 23 ns, 100 ns apart, of which the section takes 20."""
    hand = Hand()
    recorder, program = TimelineRecorder(most, hand), Program(hand)
    application = SimpleNamespace(
        pef=pef or example_pef(), native_digests=frozenset(), program=program, path="model.pef", threads=1,
        kernels_told="0 native",
    )  # fmt: skip
    recorder.follow(application)  # type: ignore[arg-type]
    compute = recorder.timed(BreakdownRow.RUN_HW, program.run)

    def run() -> None:
        hand.pass_by(5)
        compute(None, (0,), {})

    timed = recorder.timed(BreakdownRow.SAMBA, run)
    for _ in range(runs):
        timed()
        hand.pass_by(100)
    assert program.section_seconds is None
    value = recorder.to_dict(hand.time)
    value["started_ns"] = 0
    return {"value": json.loads(json.dumps(value)), "breakdown": recorder.breakdown()}


def recording(**options: Any) -> ProcessRecording:
    found = recorded(**options)
    return read_recording(found["value"], found["breakdown"])


def span(name: str, start_ns: int, end_ns: int, parent: str = "") -> Span:
    return Span(name, SpanContext("0" * 32, "1" * 16), parent, start_ns=start_ns, end_ns=end_ns)


def test_a_run_has_its_line_of_python_its_sections_and_its_times() -> None:
    outer, inner = recording().calls[:2]
    assert (outer.row, outer.name, outer.begin_ns, outer.end_ns) == (BreakdownRow.SAMBA, "run", 1000, 1028)
    assert outer.stack is not None
    file, _, function = outer.stack[0]
    assert (file, function) == (__file__, "recorded")
    assert (inner.row, inner.stack, inner.sections) == (BreakdownRow.RUN_HW, None, ((0, 20),))


def test_host_and_sections_add_up_to_the_life_of_the_process() -> None:
    found = recording()
    rows = account(found, [span("load PEF", 100, 400), span("inner", 150, 200, "1" * 16), span("late", 900, 1100)])
    assert sum(row.nanoseconds for row in rows) == found.wall_ns
    by_name = {row.name: row.nanoseconds for row in rows}
    assert (by_name["load PEF"], by_name["before the first run: the rest"]) == (300, 700)
    assert sum(row.nanoseconds for row in rows if row.part == "section") == 40
    assert by_name["engine, around sections"] == 6
    assert all(row.nanoseconds >= 0 for row in rows)


def test_calls_beyond_the_limit_are_added_up_and_counted() -> None:
    found = recording(runs=50, most=10)
    assert len(found.calls) < 10
    assert len(found.calls) + found.dropped == 100
    assert found.section_times()[0, 0] == (50, 1000)
    assert sum(row.nanoseconds for row in account(found)) == found.wall_ns


def test_bars_nest_and_sections_lie_in_their_run() -> None:
    open_bars: list[int] = []
    for bar in bars_of(recording()):
        while open_bars and open_bars[-1] <= bar.begin_ns:
            open_bars.pop()
        assert not open_bars or bar.end_ns <= open_bars[-1]
        open_bars.append(bar.end_ns)
    names = [bar.name for bar in bars_of(recording(runs=1))]
    section = example_pef().sections[0]
    assert names[-4:] == [
        "session.run",
        f"graph {section.graph}",
        section.name,
        f"portable kernel {section.kernel[:12]}",
    ]


def test_processes_of_one_rank_have_tracks_of_their_own() -> None:
    two = [recording(), replace(recording(), pid=1)]
    events = json.loads(trace_text(two, [], 0, 1_000_000))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert len(set(names.values())) == 4
    sections = [event["pid"] for event in events if event["name"] == example_pef().sections[0].name]
    assert sorted(sections) == sorted([*names] * 2)
    assert find_straggler(two) is None


def test_a_trace_has_both_clocks_apart_and_no_value_of_a_tensor() -> None:
    document = json.loads(trace_text([recording()], [span("load PEF", 100, 400)], 0, 1_000_000))
    events = document["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    sections = [event for event in events if event["name"] == example_pef().sections[0].name]
    clocks = {names[event["pid"]].split(":")[0].split(",")[0] for event in sections}
    assert clocks == {"host", "emulated RDU"}
    assert len(sections) == 4
    assert {e["args"]["bytes"] for e in events if e["ph"] == "C"}
    assert document["otherData"] == {"left_out": 0}


@pytest.mark.parametrize("limit", [2_000, 20_000])
def test_a_trace_keeps_its_limit_and_says_what_it_left_out(limit: int) -> None:
    text = trace_text([recording(runs=200, most=100_000)], [], 0, limit)
    assert len(text.encode()) <= limit
    assert json.loads(text)["otherData"]["left_out"] > 0


def test_a_flame_graph_closes_what_it_opens_in_order() -> None:
    document = json.loads(speedscope_text([recording()], 100_000))
    frames, (profile,) = document["shared"]["frames"], document["profiles"]
    stack: list[int] = []
    last = 0
    for event in profile["events"]:
        assert event["at"] >= last
        last = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert stack.pop() == event["frame"]
    assert stack == []
    assert any(frame.get("file") == __file__ for frame in frames)


def test_a_flame_graph_keeps_its_limit_and_is_called_the_beginning() -> None:
    text = speedscope_text([recording(runs=500, most=100_000)], 20_000)
    assert len(text) <= 20_000
    assert json.loads(text)["profiles"][0]["name"].endswith("the beginning")


def test_the_rank_that_others_wait_for_is_named() -> None:
    quick = recording()
    slow = replace(recording(), rank=1)
    sums = {**slow.breakdown.nanoseconds, BreakdownRow.TOTAL: slow.breakdown.nanoseconds[BreakdownRow.TOTAL] * 6 // 5}
    slow = replace(slow, breakdown=replace(slow.breakdown, nanoseconds=sums))
    others = [replace(quick, rank=rank) for rank in (0, 2, 3)]
    found = find_straggler([*others, slow])
    assert found is not None
    assert found[0] == 1
    assert found[1] == pytest.approx(1.2, rel=0.02)
    assert find_straggler(others) is None
    assert find_straggler([slow]) is None
    assert summary_to_dict("c", 0, 1, [*others, slow], [])["straggler"]["rank"] == 1


def test_a_program_that_only_compiles_is_told_by_its_spans() -> None:
    summary = summary_to_dict("c", 0, 9_000, [], [span("compile", 100, 600), span("part", 150, 200, "1" * 16)])
    assert summary["spans"] == [{"name": "compile", "ns": 500}]
    (table,) = summary_tables(summary)
    assert [row[0] for row in table.rows] == ["compile", "total"]


def test_spans_come_onto_the_clock_of_the_calls_without_that_of_the_device() -> None:
    (found,) = monotonic_spans([span("load PEF", 1100, 1400), span("device", 1000, 2000)], 1000)
    assert (found.name, found.start_ns, found.end_ns) == ("load PEF", 100, 400)


@pytest.mark.parametrize("change", [{"schema": 9}, {"calls": [1, 2]}, {"rows": ["NONE"]}, {"stacks": 3}])
def test_what_no_program_wrote_is_refused(change: dict[str, Any]) -> None:
    found = recorded()
    with pytest.raises(InvalidArgument, match="profile again"):
        read_recording(found["value"] | change, found["breakdown"])


@pytest.mark.long  # measures the machine's limits
def test_a_page_lists_what_it_lacks_where_a_pef_is_gone_or_another_one(tmp_path: Path) -> None:
    path = tmp_path / "model.pef"
    found = recording()
    found = replace(found, pefs=({**found.pefs[0], "path": str(path)},))

    def page() -> str:
        return render_page(build_page("model", [found], [], ["rdukit profile -- x"], {}))

    assert "its PEF cannot be read" in page()
    assert "Roofline" not in page()
    write_pef(path, example_pef(), example_kernels(), {})
    assert "Not on this page" not in page()
    other = example_pef()
    sections = (
        replace(other.sections[0], kernel=other.sections[1].kernel, inputs=("weight",), outputs=("weight.next",)),
    )
    path.unlink()
    write_pef(path, replace(other, sections=(*sections, *other.sections[1:])), example_kernels(), {})
    assert "another PEF has replaced it since" in page()


def test_a_native_run_adds_its_sections_as_a_block_after_those_before_it() -> None:
    times = SectionTimes()
    times.append((3, 2e-9))
    times.take(array("q", [4, 5]).tobytes(), (ctypes.c_int64 * 2)(7, 8))
    assert (times.ids.tolist(), times.ns.tolist()) == ([3, 4, 5], [2, 7, 8])
    times.cut(2)
    assert (times.ids.tolist(), times.ns.tolist()) == ([3, 4], [2, 7])

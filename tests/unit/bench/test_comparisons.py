"""The comparisons' pure parts: rows, timing in turn, table, JSON, picture, the machine, failures."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from rdukit_bench.comparisons.machine import describe_machine, parse_cpuinfo
from rdukit_bench.comparisons.model import QUESTIONS, BenchOptions, BenchProgress, ComparisonRow, check_name
from rdukit_bench.comparisons.report import (
    describe_progress,
    describe_row,
    draw_rows,
    report_body,
    write_report,
)
from rdukit_bench.comparisons.runner import ComparisonOutcome, child_environment, describe_failure
from rdukit_bench.comparisons.timing import SampleTiming, rounds_of, rows_against_peers, time_in_turn

from rdukit.errors import InvalidArgument
from support import shows

pytestmark = shows("bench", "bench-serving")


def make_row(ratio: float | None = 1.5, bar: float | None = 1.3, note: str = "") -> ComparisonRow:
    peer = None if ratio is None else 2.0 * ratio
    return ComparisonRow("training_step", "mlp", "rdukit", "eager", 2.0, peer, "ms", ratio, bar, 9, note)


@pytest.mark.parametrize(
    ("ratio", "bar", "met"),
    [(1.5, 1.3, True), (1.2, 1.3, False), (1.3, 1.3, True), (1.2, None, None), (None, 1.3, None)],
)
def test_a_bar_is_met_from_its_ratio_on(ratio: float | None, bar: float | None, met: bool | None) -> None:
    assert make_row(ratio, bar).is_met is met


def test_a_row_survives_json() -> None:
    row = make_row(note="why")
    assert ComparisonRow.from_body(json.loads(json.dumps(row.body()))) == row


def test_an_unknown_comparison_is_refused_with_the_names() -> None:
    with pytest.raises(InvalidArgument, match=", ".join(QUESTIONS)):
        check_name("quick-sort")


def test_every_comparison_has_its_module() -> None:
    folder = Path(describe_machine.__code__.co_filename).parent
    assert [name for name in QUESTIONS if not (folder / f"{name}.py").is_file()] == []


class Clock:
    """Time that passes only when a variant works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float, calls: list[str], name: str) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds
            calls.append(name)

        return run


def test_variants_are_timed_in_turn_and_quick_ones_repeat_within_a_sample() -> None:
    clock, calls = Clock(), list[str]()
    variants = {"slow": clock.work(0.1, calls, "slow"), "fast": clock.work(0.02, calls, "fast")}
    timings = time_in_turn(variants, 2, sample_s=0.06, warmup=1, clock=clock)
    assert calls == ["slow"] * 2 + ["fast"] * 2 + 2 * (["slow"] + ["fast"] * 3)
    assert [round(t.median_s, 9) for t in timings.values()] == [0.1, 0.02]
    assert timings["fast"].spread == pytest.approx(1.0)


def test_the_bar_stands_at_the_fastest_peer_which_comes_first() -> None:
    timings = {"ours": SampleTiming((1.0, 1.0, 4.0)), "slow": SampleTiming((3.0,)), "fast": SampleTiming((2.0,))}
    first, second = rows_against_peers("q", "c", timings, ours="ours", unit="ms", bar=1.3)
    assert (first.peer, first.bar, first.ratio, first.ours_value) == ("fast", 1.3, 2.0, 1000.0)
    assert (second.peer, second.bar, second.ratio) == ("slow", None, 3.0)
    assert first.details["ours"] == {"median": 1000.0, "best": 1000.0, "spread": 4.0}


def test_a_bar_can_be_about_one_peer_that_is_not_the_fastest() -> None:
    timings = {"ours": SampleTiming((1.0,)), "slow": SampleTiming((3.0,)), "fast": SampleTiming((2.0,))}
    rows = rows_against_peers("q", "c", timings, ours="ours", unit="s", bar=2.5, bar_peers=["slow"])
    assert [(row.peer, row.is_met) for row in rows] == [("slow", True), ("fast", None)]


@pytest.mark.parametrize(
    ("options", "rounds"), [(BenchOptions(rounds=3), 7), (BenchOptions(rounds=21), 21), (BenchOptions(quick=True), 3)]
)
def test_a_figure_that_counts_has_seven_samples_at_least(options: BenchOptions, rounds: int) -> None:
    assert rounds_of(options) == rounds


def test_a_table_line_says_where_a_figure_is_missing() -> None:
    cells = describe_row(make_row(None, note="peer not installed"))
    assert cells[5] == "–" and cells[7] == "–" and cells[9] == "" and cells[10] == "peer not installed"


@pytest.mark.parametrize(
    ("done", "elapsed_s", "line"),
    [
        (0, 5.0, "mlp: 0 of 4 samples"),
        (1, 30.0, "mlp: 1 of 4 samples, about 90 s left"),
        (2, 600.0, "mlp: 2 of 4 samples, about 10 min left"),
        (4, 99.0, "mlp: 4 of 4 samples"),
    ],
)
def test_progress_says_how_long_the_rest_takes(done: int, elapsed_s: float, line: str) -> None:
    assert describe_progress(BenchProgress("mlp", done, 4), elapsed_s) == line


def test_the_picture_has_a_bar_a_row_with_a_ratio_and_escapes_what_it_names() -> None:
    rows = [make_row(), make_row(0.5), make_row(None, note="peer <missing>"), make_row(60.0, 20.0)]
    root = ElementTree.fromstring(draw_rows(rows, "A & B"))
    bars = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    assert [bar.get("class") for bar in bars] == ["met", "missed", "met"]
    words = "".join(root.itertext())
    assert "peer <missing>" in words and "A & B" in words and "0.50 of 1.30" in words
    assert all(float(bar.get("x", 0)) + float(bar.get("width", 0)) <= float(root.get("width", 0)) for bar in bars)


def test_a_report_holds_rows_machine_and_failures(tmp_path: Path) -> None:
    outcomes = [
        ComparisonOutcome("training_step", (make_row(),)),
        ComparisonOutcome("threads", (), "killed by SIGSEGV: it printed nothing"),
    ]
    body = report_body(outcomes, {"processor": "X"}, {"rounds": 9})
    json_path, picture_path = write_report(tmp_path / "new", body)
    read = json.loads(json_path.read_text())
    assert read["rows"][0]["met"] is True
    assert read["failed"] == {"threads": "killed by SIGSEGV: it printed nothing"}
    assert "<svg" in picture_path.read_text()


def test_a_failure_is_the_signal_and_the_last_words() -> None:
    assert describe_failure(-11, "") == "killed by SIGSEGV: it printed nothing"
    assert describe_failure(4, "start\nerror [x]: no\n\n") == "exit status 4: error [x]: no"


def test_the_machine_is_described_by_the_flags_that_matter() -> None:
    text = "model name\t: Some CPU\nflags\t\t: fpu avx2 fma avx512f\n\nmodel name\t: other\n"
    described = describe_machine(text)
    assert (described["processor"], described["flags"]) == ("Some CPU", ["avx2", "fma", "avx512f"])
    assert described["cores"] >= 1
    assert parse_cpuinfo("") == {}


def test_a_comparison_gets_the_threads_it_was_asked_for() -> None:
    environ = child_environment({"OMP_NUM_THREADS": "8", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"}, 2)
    assert environ == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "HOME": "/"}

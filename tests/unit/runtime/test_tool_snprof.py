"""snprof: how time is booked, and what the summary says."""

import json
import threading
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_runtime.profile.snprof import breakdown_lines, command_arguments, read_breakdowns
from rdukit_runtime.profile.step import (
    Breakdown,
    BreakdownRow,
    Recorder,
    breakdown_from_dict,
    breakdown_rows,
    breakdown_to_dict,
    join_breakdowns,
)
from support import shows

pytestmark = shows("snprof", "tools")


class Hand:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.time = 1000

    def __call__(self) -> int:
        return self.time

    def pass_by(self, nanoseconds: int) -> None:
        self.time += nanoseconds


def profiled_run() -> tuple[Recorder, Hand]:
    """Two runs of 5 + 20 + 3 ns, 100 ns apart, a conversion of 7 ns after the second."""
    hand = Hand()
    recorder = Recorder(hand)
    compute = recorder.timed(BreakdownRow.RUN_HW, lambda: hand.pass_by(20))
    convert = recorder.timed(BreakdownRow.CONV_FUNC, lambda: hand.pass_by(7))

    def run() -> None:
        hand.pass_by(5)
        compute()
        hand.pass_by(3)

    timed_run = recorder.timed(BreakdownRow.SAMBA, run)
    convert()  # before the first run: not counted
    timed_run()
    hand.pass_by(100)
    timed_run()
    convert()
    hand.pass_by(1000)  # after the last: not counted
    return recorder, hand


def test_each_nanosecond_belongs_to_the_innermost_open_row_and_the_rows_add_up() -> None:
    found = profiled_run()[0].breakdown()
    rows = found.nanoseconds
    assert (
        rows[BreakdownRow.TOTAL],
        rows[BreakdownRow.RUN_HW],
        rows[BreakdownRow.CONV_FUNC],
        rows[BreakdownRow.SAMBA],
    ) == (163, 40, 7, 116)
    assert sum(rows[row] for row in BreakdownRow if row is not BreakdownRow.TOTAL) == rows[BreakdownRow.TOTAL]
    assert (found.runs, found.processes) == (2, 1)


def test_a_timed_function_that_fails_is_left_again() -> None:
    hand = Hand()
    recorder = Recorder(hand)

    def fail() -> None:
        hand.pass_by(4)
        raise ValueError("no")

    compute = recorder.timed(BreakdownRow.RUN_HW, fail)
    run = recorder.timed(BreakdownRow.SAMBA, compute)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            run()
    assert recorder.breakdown().nanoseconds[BreakdownRow.RUN_HW] == 8


def test_other_threads_run_untimed() -> None:
    recorder, hand = profiled_run()
    before = recorder.breakdown()
    thread = threading.Thread(target=recorder.timed(BreakdownRow.RUN_HW, lambda: hand.pass_by(50)))
    thread.start()
    thread.join()
    assert recorder.breakdown() == before


def test_a_recorder_that_saw_no_run_writes_nothing(tmp_path: Path) -> None:
    Recorder().write(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert read_breakdowns(tmp_path) == Breakdown(dict.fromkeys(BreakdownRow, 0), 0, 0)


def test_what_processes_wrote_is_read_back_and_added_up(tmp_path: Path) -> None:
    recorder = profiled_run()[0]
    recorder.write(tmp_path)
    (tmp_path / "other.json").write_text(json.dumps(breakdown_to_dict(recorder.breakdown())))
    found = read_breakdowns(tmp_path)
    assert found == join_breakdowns([recorder.breakdown()] * 2)
    assert (found.nanoseconds[BreakdownRow.TOTAL], found.runs, found.processes) == (326, 4, 2)


@pytest.mark.parametrize("value", [{}, {"nanoseconds": {}}, {"nanoseconds": 3, "runs": 1, "processes": 1}])
def test_a_profile_that_no_program_wrote_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="not a profile"):
        breakdown_from_dict(value)


def test_the_summary_has_the_documented_columns_and_rows() -> None:
    rows = breakdown_rows(profiled_run()[0].breakdown())
    assert list(rows[0]) == ["Breakdown", "Time in nsec", "Time in sec", "Percentage"]
    assert [row["Breakdown"] for row in rows] == [
        "TOTAL", "SAMBA", "PYTHON TO C", "RUN SETUP", "RUN HW", "XFER", "ARGINS", "CONV FUNC",
    ]  # fmt: skip
    assert rows[0] == {"Breakdown": "TOTAL", "Time in nsec": 163, "Time in sec": 1.63e-07, "Percentage": 100.0}
    assert sum(float(str(row["Percentage"])) for row in rows[1:]) == pytest.approx(100.0, abs=0.04)  # 2 decimals


def test_the_table_lines_up_and_holds_when_nothing_ran() -> None:
    lines = breakdown_lines(join_breakdowns([]))
    assert len(lines) == 9
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == ["TOTAL", "0", "0.000000", "0.00"]


def test_a_command_is_run_without_a_shell_unless_it_needs_one() -> None:
    assert command_arguments("A=1 B='x y' python app.py --n=1 'a b'") == (
        ["python", "app.py", "--n=1", "a b"], {"A": "1", "B": "x y"},
    )  # fmt: skip
    assert command_arguments("cd x && python app.py") == (["/bin/sh", "-c", "cd x && python app.py"], {})


@pytest.mark.parametrize("command", ["", "A=1", "python 'open"])
def test_a_command_line_that_holds_no_command_is_refused(command: str) -> None:
    with pytest.raises(InvalidArgument, match="-c"):
        command_arguments(command)

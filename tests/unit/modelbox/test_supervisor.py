"""How a child ended, told from what was seen of it."""

from pathlib import Path

import pytest

from rdukit_modelbox.operations.process import kills_for_memory, peak_bytes, resident_bytes
from rdukit_modelbox.operations.supervisor import ChildLimits, VerbEnd, Watch, judge
from support import shows

pytestmark = shows("operations")

LIMITS = ChildLimits(timeout_s=2.0, given_s=3.0, stall_s=4.0, memory_bytes=100 << 20)


def watch_with(reason: VerbEnd | None, peak_bytes: int = 0) -> Watch:
    watch = Watch()
    watch.reason, watch.peak_bytes = reason, peak_bytes
    return watch


@pytest.mark.parametrize(
    ("reason", "status", "was_short", "code", "words"),
    [
        (None, -9, False, "child-died", "was killed by SIGKILL; its last words: bye"),
        (None, -11, False, "child-died", "was killed by SIGSEGV"),
        (None, 3, False, "child-died", "exited with status 3; its last words"),
        (None, 0, False, "child-died", "exited with status 0 and gave no result"),
        (None, -9, True, "out-of-memory", "while the machine ran out of memory"),
        (VerbEnd.DEADLINE, -15, False, "deadline-exceeded", "timeout_s = 3 s"),
        (VerbEnd.STALL, -9, False, "stalled", "for 4 s (box.stall_s)"),
        (VerbEnd.MEMORY, -9, False, "out-of-memory", "used 150 MiB; its box allows 100 MiB"),
    ],
)
def test_each_end_has_its_code_and_says_why(
    reason: VerbEnd | None, status: int, was_short: bool, code: str, words: str
) -> None:
    outcome = judge({}, status, watch_with(reason, 150 << 20), LIMITS, "bye", was_short_of_memory=was_short)
    assert outcome.failed is not None
    assert outcome.failed.code == code
    assert words in outcome.failed.message


@pytest.mark.parametrize(
    ("reason", "status", "was_short"),
    [(None, -9, False), (None, -11, False), (None, 3, False), (None, -9, True), (VerbEnd.STALL, -9, False)],
)
def test_only_a_child_that_was_killed_from_outside_is_told_as_such(
    reason: VerbEnd | None, status: int, was_short: bool
) -> None:
    outcome = judge({}, status, watch_with(reason), LIMITS, "", was_short_of_memory=was_short)
    assert outcome.failed is not None
    is_from_outside = (reason, status, was_short) == (None, -9, False)
    assert outcome.failed.detail.get("end") == ("killed" if is_from_outside else None)


def test_a_result_counts_even_if_the_stop_came_first() -> None:
    last = {"kind": "result", "result": {"loss": float("nan")}, "outputs": {"pef": "/x"}}
    outcome = judge(last, 0, watch_with(VerbEnd.DEADLINE), LIMITS, "", was_short_of_memory=False)
    assert outcome.succeeded == ({"loss": "NaN"}, {"pef": "/x"})


def test_a_cancelled_child_is_cancelled_however_it_ended() -> None:
    assert judge({}, -9, watch_with(VerbEnd.CANCEL), LIMITS, "", was_short_of_memory=False).is_cancelled
    last = {"kind": "error", "error": {"code": "cancelled", "message": "x"}}
    assert judge(last, 130, watch_with(None), LIMITS, "", was_short_of_memory=False).is_cancelled


def test_an_error_of_the_verb_keeps_its_code_message_and_detail() -> None:
    last = {"kind": "error", "error": {"code": "pef-mismatch", "message": "no", "detail": {"loss": float("inf")}}}
    outcome = judge(last, 4, watch_with(None), LIMITS, "", was_short_of_memory=False)
    assert outcome.failed is not None
    assert (outcome.failed.code, outcome.failed.detail) == ("pef-mismatch", {"loss": "Infinity"})


def test_memory_is_that_of_a_process_and_all_it_started(tmp_path: Path) -> None:
    for pid, kilobytes, children in ((1, 100, "2 3"), (2, 20, ""), (3, 3, "4"), (4, 7, "")):
        folder = tmp_path / str(pid) / "task" / str(pid)
        folder.mkdir(parents=True)
        (folder / "children").write_text(children)
        (tmp_path / str(pid) / "status").write_text(f"VmHWM:\t  900 kB\nVmRSS:\t  {kilobytes} kB\n")
    (tmp_path / "vmstat").write_text("pgfault 5\noom_kill 3\n")
    assert resident_bytes(1, tmp_path) == 130 * 1024
    assert peak_bytes(1, tmp_path) == 900 * 1024
    assert kills_for_memory(tmp_path) == 3
    assert (resident_bytes(9, tmp_path), peak_bytes(9, tmp_path)) == (0, 0)

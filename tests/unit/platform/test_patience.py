"""What no job is at fault for: a disk without room, a bucket that is away."""

import errno
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from rdukit.box.image import BoxEnd
from rdukit.errors import DiskFull, InvalidArgument, StoreUnavailable, Unavailable
from rdukit_platform.jobs.attempts import FREE, LOST, AttemptOutcome
from rdukit_platform.worker import box_ends, patience
from rdukit_platform.worker.box_ends import is_below, outcome_of, outcome_of_error
from rdukit_platform.worker.patience import NO_ROOM, check_free, find_lack, patiently
from support import shows

pytestmark = shows("artifacts", "jobs")

FULL = OSError(errno.ENOSPC, "No space left on device", "/home/x/work/a")


def test_a_lack_is_told_from_an_error() -> None:
    full = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))
    assert isinstance(find_lack(full), DiskFull)
    assert isinstance(find_lack(FULL), DiskFull)
    assert isinstance(find_lack(StoreUnavailable("away")), StoreUnavailable)
    for other in (OSError(errno.EIO, "I/O error", "/x"), InvalidArgument("x"),
                  OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked"))):  # fmt: skip
        assert find_lack(other) is None


def test_what_lacks_something_is_done_again_until_it_can_be_or_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.001)
    stop, tries, told = threading.Event(), list[int](), list[str]()

    def act() -> str:
        tries.append(1)
        if len(tries) < 4:
            raise FULL
        return "done"

    assert patiently(act, stop, tell=told.append) == "done" and len(tries) == 4
    assert told == [NO_ROOM, ""], "no path of the platform's"
    stop.set()
    tries.clear()
    with pytest.raises(DiskFull):
        patiently(act, stop)
    assert len(tries) == 1
    with pytest.raises(DiskFull):
        patiently(act, threading.Event(), patience_s=0.0)
    with pytest.raises(InvalidArgument):
        patiently(check_argument, threading.Event())


def check_argument() -> None:
    raise InvalidArgument("not a lack")


def test_a_job_begins_only_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_free(tmp_path)
    monkeypatch.setattr(patience, "MIN_FREE_BYTES", 1 << 60)
    with pytest.raises(DiskFull, match="free more space"):
        check_free(tmp_path)


def test_a_box_that_was_too_late_for_a_folder_that_is_not_made_yet_is_slow(tmp_path: Path) -> None:
    late = Unavailable("box logreg was not ready in 90 s", end=str(BoxEnd.LATE))
    assert outcome_of(late, None, tmp_path / "work" / "job-1") is AttemptOutcome.BOX_SLOW
    check_free(tmp_path / "work" / "job-1")


def test_a_box_that_could_not_write_is_at_fault_only_where_there_was_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, inside = {"path": "/tmp/scratch"}, {"path": str(tmp_path / "out" / "x")}
    for low, outcome in ((True, AttemptOutcome.DISK_FULL), (False, AttemptOutcome.BOX_FAILED)):
        monkeypatch.setattr(box_ends, "is_low", lambda folder, low=low: low)
        assert outcome_of_error("disk-full", inside, tmp_path) is outcome
        assert outcome_of_error("disk-full", {}, tmp_path) is outcome
    monkeypatch.setattr(box_ends, "is_low", lambda folder: True)
    assert outcome_of_error("disk-full", own, tmp_path) is AttemptOutcome.BOX_FAILED, "its own small disk"
    assert outcome_of_error("pef-mismatch", inside, tmp_path) is AttemptOutcome.BOX_FAILED
    for code in ("lease-lost", "lease-withdrawn", "tile-fault", "dram-uncorrectable"):
        assert outcome_of_error(code, {}, tmp_path) is AttemptOutcome.NODE_FAILED
    assert outcome_of_error("child-died", {"end": "killed"}, tmp_path) is AttemptOutcome.BOX_KILLED
    assert AttemptOutcome.DISK_FULL in LOST - FREE
    assert is_below("out/x", tmp_path) and not is_below(str(tmp_path.parent), tmp_path)

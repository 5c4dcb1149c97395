"""Lines of the daemon's log wait for a disk in a thread: whoever logs goes on, and what is dropped is counted."""

import logging
import threading
from collections.abc import Iterator

import pytest

from rdukit_node.daemon.disk_thread import DiskThread
from rdukit_node.faults.model import ChangedRows
from rdukit_node.faults.pending import _MAX_EVENTS, NewRows, PendingRows
from rdukit_node.logs.queued import QueuedHandler, queued_logging
from support import shows

pytestmark = shows("node")


class SlowDisk(logging.Handler):
    """A handler whose disk takes nothing until it is ``ready``."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.ready, self.reached = threading.Event(), threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.reached.set()
        self.ready.wait()
        self.lines.append(record.getMessage())


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    handler = SlowDisk()
    yield handler
    handler.ready.set()


def line(text: str, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("n", level, "p", 1, text, (), None)


def test_whoever_logs_an_error_does_not_wait_for_the_disk(disk: SlowDisk) -> None:
    queued = QueuedHandler([disk])
    for number in range(5):
        queued.handle(line(f"line {number}"))
    disk.reached.wait()
    assert disk.lines == []
    disk.ready.set()
    queued.close()
    assert disk.lines == [f"line {number}" for number in range(5)]


def test_lines_that_no_disk_takes_are_bounded_and_their_loss_is_reported(disk: SlowDisk) -> None:
    queued = QueuedHandler([disk], max_waiting=3)
    queued.handle(line("taken"))
    disk.reached.wait()
    for number in range(10):
        queued.handle(line(f"line {number}"))
    assert queued.dropped == 7
    disk.ready.set()
    queued.close()
    assert disk.lines[0] == "taken" and "lines=7" in disk.lines[1] and disk.lines[2:] == ["line 0", "line 1", "line 2"]


def test_each_handler_keeps_its_level() -> None:
    root = logging.getLogger()
    before = root.handlers[:]
    quiet, loud = SlowDisk(logging.WARNING), SlowDisk(logging.DEBUG)
    quiet.ready.set()
    loud.ready.set()
    root.handlers[:] = [quiet, loud]
    try:
        with queued_logging() as queued:
            for level in (logging.INFO, logging.ERROR):
                queued.handle(line(logging.getLevelName(level), level))
        assert root.handlers == [quiet, loud]
    finally:
        root.handlers[:] = before
    assert (quiet.lines, loud.lines) == (["ERROR"], ["INFO", "ERROR"])


def test_rows_that_wait_are_bounded_and_the_lost_ones_are_counted() -> None:
    waiting, newer = PendingRows(), PendingRows()
    waiting.add(NewRows(ChangedRows(), [{"seq": n} for n in range(_MAX_EVENTS)]), now_ns=1)
    assert (len(waiting), waiting.dropped) == (_MAX_EVENTS, 0)
    newer.add(NewRows(ChangedRows(), [{"seq": n} for n in range(3)], [{"lease": "l1"}]), now_ns=2)
    waiting.add_newer(newer)
    assert (len(waiting), waiting.dropped) == (_MAX_EVENTS + 1, 3)
    assert waiting.events[-1] == '{"seq": 2}'
    waiting.clear()
    assert (len(waiting), waiting.dropped) == (0, 3)


def test_requests_that_come_while_the_disk_is_busy_share_the_next_run() -> None:
    ready, runs = threading.Event(), []
    thread = DiskThread("t", lambda: (runs.append(1), ready.wait()))
    first = thread.request()
    while not runs:
        pass
    later = [thread.request() for _ in range(5)]
    assert thread.done < first and thread.busy_s > 0
    ready.set()
    assert thread.wait_for(later[-1], 60)
    assert thread.stop(lambda: runs.append(2), 60)
    assert runs == [1, 1, 2]

"""Operations outlive the process: what the journal has after a kill, and what becomes of it."""

import json
import sqlite3
from pathlib import Path

import pytest

from rdukit.errors import Unavailable
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.operations import OperationFailure, VerbCall, Webhook
from rdukit_modelbox.operations import table as module
from rdukit_modelbox.operations.journal import OperationJournal
from rdukit_modelbox.operations.table import KEPT_EVENTS, SEQUENCE_GAP, OperationTable
from rdukit_modelbox.operations.values import OperationState, StateEvent
from rdukit_modelbox.verbs.context import Progress
from support import FakeClock, shows

pytestmark = shows("operations")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "operations.sqlite"


def open_table(file: Path) -> OperationTable:
    """As a process that begins; the former one is not closed, as after a kill."""
    return OperationTable(FakeClock(100.0), OperationJournal(file))


def test_a_finished_operation_is_listed_with_its_events_after_a_kill(file: Path) -> None:
    table = open_table(file)
    webhook = Webhook("http://x.test", ("failed",))
    table.add("a", Verb.TRAIN, VerbCall({"epochs": 2}, idempotency_key="k", webhook=webhook))
    table.apply("a", StateEvent.START)
    table.publish_progress("a", Progress("train", 1, 2, loss=0.5))
    table.tell_log("a", "half of it")
    failure = OperationFailure("child-died", "was killed", {"exit": "SIGKILL"})
    done = table.apply("a", StateEvent.FAIL, failure=failure, peak_memory_bytes=7)
    events = [event.to_json() for event in table.events_after("a")]
    later = open_table(file)
    assert later.recover() == []
    assert later.all() == [done]
    assert [event.to_json() for event in later.events_after("a")] == events
    assert [event["kind"] for event in events] == ["state", "state", "progress", "log", "state", "result"]
    assert later.find_by_key("k", later.call_of("a").asked(Verb.TRAIN)) == done
    assert later.call_of("a") == table.call_of("a")
    later.validate()


@pytest.mark.parametrize("was_running", [False, True])
def test_one_that_had_not_ended_fails_as_interrupted(file: Path, was_running: bool) -> None:
    table = open_table(file)
    table.add("a", Verb.TRAIN)
    if was_running:
        table.apply("a", StateEvent.START)
    told = table.events_after("a")[-1].sequence
    later = open_table(file)
    assert later.recover() == []
    failure = later.get("a").failure
    assert failure is not None
    assert (failure.code, later.get("a").state) == ("interrupted", OperationState.FAILED)
    events = later.events_after("a", told + SEQUENCE_GAP // 2)
    assert [event.kind for event in events] == ["state", "result"], "numbers that were told and lost do not come again"
    later.validate()


def test_one_that_asked_for_it_is_queued_once_more_but_not_for_ever(file: Path) -> None:
    table = open_table(file)
    table.add("a", Verb.TRAIN, VerbCall(resume=True))
    for run in range(1, module.MAX_RUNS + 1):
        table.apply("a", StateEvent.START)
        table = open_table(file)
        resumed = table.recover()
        assert [operation.id for operation, _ in resumed] == (["a"] if run < module.MAX_RUNS else [])
        table.validate()
    assert table.get("a").failure is not None
    assert "5 times" in table.get("a").failure.message  # type: ignore[union-attr]


def test_progress_is_written_by_a_flush_and_old_progress_is_dropped(file: Path) -> None:
    table = open_table(file)
    table.add("a", Verb.TRAIN)
    table.apply("a", StateEvent.START)
    for step in range(3 * KEPT_EVENTS):
        table.publish_progress("a", Progress("train", step, 3 * KEPT_EVENTS))
    table.flush()
    with sqlite3.connect(file) as database:
        (count,) = database.execute("SELECT count(*) FROM events").fetchone()
    assert KEPT_EVENTS <= count <= 2 * KEPT_EVENTS + 10
    table.apply("a", StateEvent.CANCEL)
    assert len(table.events_after("a")) == KEPT_EVENTS + 4


def test_a_line_of_a_log_without_end_is_cut(file: Path) -> None:
    table = open_table(file)
    table.add("a", Verb.TRAIN)
    table.tell_log("a", "x" * 100_000)
    assert len(table.events_after("a")[-1].log or "") < 5000


def test_what_is_forgotten_is_forgotten_on_the_disk_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_OPERATIONS", 10)
    table = open_table(file)
    for number in range(30):
        table.add(f"op{number}", Verb.COMPILE)
        table.apply(f"op{number}", StateEvent.CANCEL)
    with sqlite3.connect(file) as database:
        (count,) = database.execute("SELECT count(*) FROM operations").fetchone()
        (events,) = database.execute("SELECT count(DISTINCT number) FROM events").fetchone()
    assert (count, events) == (10, 10)
    table.validate()


@pytest.mark.parametrize("content", [b"", b"not a database" * 100, b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_file_is_put_aside_and_the_box_begins_anew(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    table = open_table(file)
    assert table.recover() == []
    table.add("a", Verb.COMPILE)
    assert bool(list(file.parent.glob("*.damaged-*"))) == bool(content)
    table.validate()


def test_a_file_of_another_version_is_put_aside(file: Path) -> None:
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    OperationJournal(file).close()
    assert len(list(file.parent.glob("*.damaged-*"))) == 1


def test_rows_are_plain_json(file: Path) -> None:
    table = open_table(file)
    table.add("a", Verb.COMPILE, VerbCall({"batch_size": 16}))
    with sqlite3.connect(file) as database:
        ((call, value),) = database.execute("SELECT call, value FROM operations").fetchall()
    assert json.loads(call)["parameters"] == {"batch_size": 16}
    assert json.loads(value)["state"] == "queued"


def test_what_could_not_be_written_for_a_full_disk_is_known_and_written_later(file: Path) -> None:
    journal = OperationJournal(file)
    table = OperationTable(FakeClock(100.0), journal)
    table.add("a", Verb.TRAIN)
    table.apply("a", StateEvent.START)
    pages = journal._database.execute("PRAGMA page_count").fetchone()[0]
    journal._database.execute(f"PRAGMA max_page_count = {pages}")
    for number in range(5000):
        table.tell_log("a", f"line {number} " + "x" * 100)
    done = table.apply("a", StateEvent.SUCCEED, result={"loss": 0.5}, outputs={})
    assert [event.kind for event in table.events_after("a")][-2:] == ["state", "result"]
    assert [entry.operation.state for entry in OperationJournal(file).entries()] == [OperationState.RUNNING]
    with pytest.raises(Unavailable, match="cannot be written"):
        table.add("b", Verb.TRAIN, VerbCall({"text": "x" * 100_000}))
    journal._database.execute("PRAGMA max_page_count = 1000000")
    table.flush()
    later = open_table(file)
    assert later.recover() == []
    assert later.all() == [done]
    assert later.events_after("a")[-1].kind == "result"
    later.validate()


def test_forgetting_waits_while_nothing_can_be_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_OPERATIONS", 1)
    journal = OperationJournal(file)
    table = OperationTable(FakeClock(100.0), journal)
    table.add("a", Verb.TRAIN)
    table.apply("a", StateEvent.CANCEL)
    journal._database.execute("PRAGMA query_only = 1")
    journal.forget([table.get("a").number])
    journal._database.execute("PRAGMA query_only = 0")
    assert len(journal.entries()) == 1

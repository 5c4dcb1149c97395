"""A fault database that is deleted or replaced under its daemon: noticed, said, and written anew with all its rows."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rdukit_node.faults.model import ChangedRows
from rdukit_node.faults.pending import NewRows
from rdukit_node.faults.store import FaultStore
from support import shows, wait_until
from support.node.daemons import running_daemon

pytestmark = shows("node", "faults")

CHANNEL = "/NODE/XRDU_0/RDU_0/DDRCH_0"
NOTHING = ChangedRows()


def events_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return [text for (text,) in connection.execute("SELECT event FROM events ORDER BY number")]


def write(store: FaultStore, number: int) -> bool:
    return store.write(NewRows(NOTHING, [{"seq": number}]), now_ns=number)


@pytest.mark.parametrize("gone", ["database", "database and log", "lock", "folder"])
def test_what_is_deleted_is_there_again_with_all_rows(tmp_path: Path, gone: str) -> None:
    path = tmp_path / "snfm" / "snfm.db"
    store = FaultStore.open(path)
    assert write(store, 1) and store.is_in_place
    match gone:
        case "database":
            path.unlink()
        case "database and log":
            for each in path.parent.glob("snfm.db*"):
                if each.suffix != ".lock":
                    each.unlink()
        case "lock":
            path.with_name("snfm.db.lock").unlink()
        case _:
            shutil.rmtree(path.parent)
    assert not store.is_in_place
    assert write(store, 2) and store.is_in_place
    assert store.restored == (gone != "lock")
    assert store.checkpoint() and write(store, 3)
    assert events_of(path) == [f'{{"seq": {number}}}' for number in (1, 2, 3)]
    store.close()
    again = FaultStore.open(path)
    assert again.was_closed_in_order
    assert events_of(path) == [f'{{"seq": {number}}}' for number in (1, 2, 3)]
    again.close()


def test_a_file_that_was_put_in_its_place_is_left_alone_and_rows_wait(tmp_path: Path) -> None:
    path, other = tmp_path / "snfm.db", tmp_path / "older.db"
    store = FaultStore.open(path)
    write(store, 1)
    other.write_bytes(b"an older copy")
    other.rename(path)
    assert not write(store, 2) and store.pending == 1
    assert "another file replaced" in store.reason
    assert path.read_bytes() == b"an older copy"
    path.unlink()
    assert write(store, 3) and store.is_writable and not store.pending
    assert events_of(path) == [f'{{"seq": {number}}}' for number in (1, 2, 3)]
    store.close()


def test_a_daemon_says_that_its_database_was_deleted_and_keeps_what_it_knows() -> None:
    with running_daemon() as daemon, daemon.connect() as client:
        client.call("inject", events=[{"class": "ddr-uncorrectable", "component": CHANNEL}])
        path = Path(client.status()["database"]["path"])
        (fault,) = client.call("faults")["faults"]
        wait_until(lambda: client.status()["database"]["pending"] == 0, what="the fault is written")
        path.unlink()
        wait_until(lambda: "event=database-deleted" in (daemon.home / "logs/snd.log").read_text(), what="it is said")
        wait_until(path.exists, what="it is written anew")

        def told() -> list[str]:
            return [str(event) for event in client.call("events")["events"] if "the database was deleted" in str(event)]

        wait_until(lambda: bool(told()), what="an event says so")
        assert client.status()["database"]["is_writable"]
        with FaultStore.read_only(path) as reader:
            assert [row.fault_uuid for row in reader.snapshot().faults] == [fault["fault_uuid"]]

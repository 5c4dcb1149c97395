"""A node whose fault database is damaged starts: the file is set aside, salvaged, and it is reported."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import shows
from support.node.daemons import start_daemon, stop_daemon

pytestmark = [shows("node", "faults"), pytest.mark.long]

TILE = "/NODE/XRDU_0/RDU_0/TILE_1"


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def drop_a_table(path: Path) -> None:
    import sqlite3

    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE hang_log")
    connection.close()


def make_a_row_illegal(path: Path) -> None:
    import sqlite3

    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE error SET err_data = 'x' WHERE err_type = 'ETYPE_FAN'")
    connection.close()


DAMAGES: dict[str, tuple[Callable[[Path], None], bool]] = {
    "header": (lambda path: overwrite(path, 0, bytes(100)), False),
    "schema": (lambda path: overwrite(path, 100, b"\xff" * 400), False),
    "everything": (lambda path: path.write_bytes(b"not a database" * 1000), False),
    "tail": (lambda path: overwrite(path, path.stat().st_size - 4096, b"\xff" * 4096), True),
    "table": (drop_a_table, True),
    "row": (make_a_row_illegal, True),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_node_with_a_damaged_fault_database_starts_and_says_so(home: Path, damage: str) -> None:
    spoil, is_kept = DAMAGES[damage]
    daemon = start_daemon(home)
    with daemon.connect() as client:
        client.call("inject", events=[{"class": "tile-excluded", "component": TILE}, {"class": "fan"}])
        client.acquire("before", 1, 0)
    assert stop_daemon(daemon) == 0
    database = home / "snfm" / "snfm.db"
    spoil(database)
    broken = database.read_bytes()

    daemon = start_daemon(home)
    try:
        with daemon.connect() as client:
            (fault,) = [row for row in client.call("faults")["faults"] if row["fault_type"] == "FTYPE_SNFM_DATABASE"]
            (error,) = client.call("errors", type="ETYPE_SNFM_DATABASE")["errors"]
            aside = Path(error["err_data"]["set_aside"])
            assert aside.parent == database.parent and aside.read_bytes()[:4096] == broken[:4096]
            assert fault["comp_name"] == "/NODE" and error["err_data"]["reason"]
            assert "fault" in [event["kind"] for event in client.call("events")["events"]]
            types = {row["fault_type"] for row in client.call("faults")["faults"]}
            applications = [row["application"] for row in client.call("applications")["applications"]]
            if is_kept:
                assert "FTYPE_TILE_EXCLUDED" in types and client.call("op_state")["rdus"][0]["available_tiles"] == 3
                assert applications == ["before"]
            assert client.status()["database"]["is_writable"]
    finally:
        assert stop_daemon(daemon) == 0
    daemon = start_daemon(home)  # and again, as if nothing had been
    assert stop_daemon(daemon) == 0
    assert len(list(database.parent.glob("snfm.db.damaged-*Z"))) == 1


def test_a_flipped_bit_in_the_log_of_a_killed_daemon_is_reported_and_loses_nothing(home: Path) -> None:
    daemon = start_daemon(home)
    with daemon.connect() as client:
        client.call("inject", events=[{"class": "tile-excluded", "component": TILE}])
        client.call("cordon", component="/NODE/XRDU_0/RDU_0/TILE_3", reason="x")
    daemon.end(is_orderly=False)
    log = home / "snfm" / "snfm.db-wal"
    broken = bytearray(log.read_bytes())
    broken[32 + 24 + 200] ^= 1
    log.write_bytes(broken)
    daemon = start_daemon(home)
    try:
        with daemon.connect() as client:
            types = {row["fault_type"] for row in client.call("faults")["faults"]}
            assert types == {"FTYPE_SNFM_DATABASE", "FTYPE_TILE_EXCLUDED"}
            assert [row["component"] for row in client.status()["cordons"]] == ["/NODE/XRDU_0/RDU_0/TILE_3"]
        (kept,) = log.parent.glob("snfm.db.damaged-*Z-wal")
        assert kept.read_bytes() == broken
    finally:
        assert stop_daemon(daemon) == 0


def test_a_file_that_is_not_ours_is_left_alone(home: Path) -> None:
    import sqlite3

    database = home / "snfm" / "snfm.db"
    database.parent.mkdir(parents=True)
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(RuntimeError, match="its tables are not those of a fault database"):
        start_daemon(home)
    assert list(database.parent.glob("*damaged*")) == []

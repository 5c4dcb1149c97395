"""A fault database of an earlier version is migrated; a file that is none, or not as we write it, is refused."""

import itertools
import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdukit.errors import Conflict, InvalidArgument, NotFound, RdukitError, Unavailable
from rdukit.hardware import find_node
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import ChangedRows, Injection, nobody
from rdukit_node.faults.pending import NewRows
from rdukit_node.faults.schema import APPLICATION_ID, LOGS, VERSION
from rdukit_node.faults.store import FaultStore
from support import shows

pytestmark = shows("node", "faults")

NODE = find_node("TEST-1")
TILE = "/NODE/XRDU_0/RDU_0/TILE_0"
NOW = 1_700_000_000 * 10**9

#: What version 1 wrote: before errors and faults knew applications. Kept here as it was then.
VERSION_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE error (
  err_uuid TEXT PRIMARY KEY NOT NULL, err_type TEXT NOT NULL, err_type_desc TEXT NOT NULL, err_data TEXT NOT NULL,
  err_count INTEGER NOT NULL, orig_timestamp INTEGER NOT NULL, last_timestamp INTEGER NOT NULL,
  comp_name TEXT NOT NULL, fault_uuid TEXT
) STRICT;
CREATE TABLE fault (
  fault_uuid TEXT PRIMARY KEY NOT NULL, fault_type TEXT NOT NULL, fault_state TEXT NOT NULL, severity TEXT NOT NULL,
  comp_name TEXT NOT NULL, comp_ser_num TEXT NOT NULL, fault_desc TEXT NOT NULL, recovery_act TEXT NOT NULL,
  action TEXT NOT NULL, err_uuid TEXT NOT NULL, timestamp INTEGER NOT NULL, cleared_timestamp INTEGER,
  cleared_by TEXT
) STRICT;
CREATE TABLE suspects (
  fault_uuid TEXT NOT NULL, ord INTEGER NOT NULL, comp_name TEXT NOT NULL, PRIMARY KEY (fault_uuid, ord)
) STRICT, WITHOUT ROWID;
CREATE TABLE inventory (
  comp_name TEXT PRIMARY KEY NOT NULL, ord INTEGER NOT NULL, kind TEXT NOT NULL, parent TEXT NOT NULL,
  serial TEXT NOT NULL, part TEXT NOT NULL, presence TEXT NOT NULL, health TEXT NOT NULL, size_bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE policy (
  error_type TEXT PRIMARY KEY NOT NULL, fault_type TEXT NOT NULL, count INTEGER NOT NULL, window_s INTEGER NOT NULL,
  action TEXT NOT NULL, severity TEXT NOT NULL, fault_desc TEXT NOT NULL, fault_detail_desc TEXT NOT NULL,
  recovery_act TEXT NOT NULL
) STRICT;
CREATE TABLE hang_log (
  number INTEGER PRIMARY KEY NOT NULL, rdu INTEGER NOT NULL, comp_name TEXT NOT NULL, timestamp INTEGER NOT NULL,
  event TEXT NOT NULL, outcome TEXT NOT NULL
) STRICT;
CREATE TABLE op_state (
  rdu INTEGER PRIMARY KEY NOT NULL, comp_name TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
  since INTEGER NOT NULL, available_tiles INTEGER NOT NULL, perfect INTEGER NOT NULL
) STRICT;
CREATE TABLE condition (
  component TEXT NOT NULL, class_name TEXT NOT NULL, since INTEGER NOT NULL, resets_that_fail INTEGER,
  data TEXT NOT NULL, PRIMARY KEY (component, class_name)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL) STRICT;
INSERT INTO meta VALUES ('schema_version', '1'), ('error_version', '1'), ('fault_version', '1'),
  ('inventory_version', '1'), ('policy_version', '1'), ('closed', 'yes'), ('written_at', '1600000000000000000');
INSERT INTO error VALUES ('old-error', 'ETYPE_TILE_BAD', 'a tile is broken', '{"status": "0x1"}', 3,
  1600000000000000000, 1600000000000000001, '/NODE/XRDU_0/RDU_0/TILE_0', 'old-fault');
INSERT INTO fault VALUES ('old-fault', 'FTYPE_TILE_EXCLUDED', 'ACTIVE', 'Major', '/NODE/XRDU_0/RDU_0/TILE_0', 'N/A',
  'tile excluded', 'replace it', 'exclude-tile', 'old-error', 1600000000000000000, NULL, NULL);
INSERT INTO suspects VALUES ('old-fault', 0, '/NODE/XRDU_0/RDU_0');
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "snfm.db"


@pytest.fixture
def old(path: Path) -> Path:
    with sqlite3.connect(path) as connection:
        connection.executescript(VERSION_1)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.close()
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with something in every table."""
    path = tmp_path_factory.mktemp("good") / "snfm.db"
    numbers = itertools.count()
    machine = FaultMachine(NODE, lambda: f"uuid-{next(numbers)}")
    machine.inject([Injection("tile-excluded", TILE), Injection("pcie-link-down"), Injection("fan")], nobody, NOW)
    store = FaultStore.open(path)
    store.write(NewRows(machine.take_changes(), [{"seq": 1}], [{"lease": "l"}]), now_ns=NOW)
    store.close()
    return path


def test_an_old_database_is_migrated_with_everything_in_it(old: Path) -> None:
    store = FaultStore.open(old)
    snapshot = store.load()
    assert snapshot.errors[0].err_uuid == "old-error" and snapshot.errors[0].tenant is None
    machine = FaultMachine(NODE, lambda: "new")
    machine.restore(snapshot, NOW)
    assert machine.unusable_tiles() == {0} and machine.active_faults()[0].suspects == ("/NODE/XRDU_0/RDU_0",)
    assert store.was_closed_in_order
    store.close()
    with sqlite3.connect(old) as connection:
        versions = dict(connection.execute("SELECT key, value FROM meta WHERE key LIKE '%version'"))
    connection.close()
    assert versions == {"schema_version": str(VERSION)} | {f"{log}_version": str(VERSION) for log in LOGS}
    FaultStore.open(old).close()


def test_a_migration_that_fails_leaves_the_old_file(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdukit_node.faults.store.migrate", lambda connection, version: connection.execute("nonsense"))
    with pytest.raises(InvalidArgument, match="nonsense"):
        FaultStore.open(old)
    monkeypatch.undo()
    store = FaultStore.open(old)
    assert len(store.load().faults) == 1
    store.close()


def test_a_reader_of_an_old_database_says_who_migrates_it(old: Path) -> None:
    with pytest.raises(InvalidArgument, match="it has version 1; start a node daemon on it to upgrade it to 5"):
        FaultStore.read_only(old)


def test_a_newer_database_is_left_alone(path: Path, good: Path) -> None:
    path.write_bytes(good.read_bytes())
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '7' WHERE key = 'schema_version'")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(
        InvalidArgument, match="it has version 7, but this program supports only up to 5; update rdukit"
    ):
        FaultStore.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON error BEGIN DELETE FROM fault; END", "tables are not those"),
        ("CREATE VIEW v AS SELECT load_extension('x')", "tables are not those"),
        ("CREATE TABLE more (x)", "tables are not those"),
        ("CREATE INDEX i ON error (abs(err_count))", "tables are not those"),
        ("DROP TABLE hang_log", "tables are not those"),
        ("ALTER TABLE error ADD COLUMN x TEXT DEFAULT 'y'", "tables are not those"),
        ("PRAGMA application_id = 3", "tables are not those"),
        ("UPDATE meta SET value = '1' WHERE key = 'schema_version'", "have version 5, but its record states 1"),
        ("UPDATE meta SET value = 'two' WHERE key = 'schema_version'", "its record states None"),
        ("DELETE FROM meta", "its record states None"),
    ],
)
def test_a_foreign_schema_is_refused(path: Path, good: Path, sql: str, reason: str) -> None:
    path.write_bytes(good.read_bytes())
    with sqlite3.connect(path) as connection:
        connection.execute(sql)
    connection.close()
    for use in (FaultStore.open, FaultStore.read_only):
        with pytest.raises(InvalidArgument, match=reason):
            use(path)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE error SET err_data = '[]'",
        "UPDATE error SET err_data = '" + "[" * 10_000 + "'",
        "UPDATE error SET err_count = -1",
        "UPDATE error SET err_uuid = hex(zeroblob(100000)) WHERE rowid = 1",
        "UPDATE error SET recent = '[[1]]'",
        "UPDATE fault SET severity = 'Bad'",
        "UPDATE fault SET fault_state = 'CLEARED'",
        "UPDATE fault SET action = 'rm -rf'",
        "UPDATE policy SET count = 0",
        "UPDATE op_state SET state = ''",
        "UPDATE condition SET data = 'x'",
        "UPDATE suspects SET comp_name = hex(zeroblob(100000))",
    ],
)
def test_values_that_are_not_legal_are_refused(path: Path, good: Path, sql: str) -> None:
    path.write_bytes(good.read_bytes())
    with sqlite3.connect(path) as connection:
        connection.execute(sql)
    connection.close()
    store = FaultStore.open(path)
    with pytest.raises(InvalidArgument, match="cannot be used as the fault database"):
        store.load()
    store.close()


def test_what_is_no_database_is_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"SQLite format 2\0" + b"x" * 5000)
    with pytest.raises(InvalidArgument, match="it is not an SQLite database"):
        FaultStore.open(path)
    with pytest.raises(InvalidArgument, match="not a regular file"):
        FaultStore.open(tmp_path)
    with pytest.raises(NotFound, match="a node daemon creates it"):
        FaultStore.read_only(tmp_path / "none.db")
    path.write_bytes(b"")
    FaultStore.open(path).close()


def test_only_one_daemon_writes(path: Path) -> None:
    first = FaultStore.open(path)
    with pytest.raises(Conflict, match="another node daemon uses the fault database"):
        FaultStore.open(path)
    first.close()
    FaultStore.open(path).close()


def test_what_is_known_of_the_end_before(path: Path) -> None:
    store = FaultStore.open(path)
    assert store.was_closed_in_order, "there was nobody before"
    store.close()
    store = FaultStore.open(path)
    assert store.was_closed_in_order
    store._connection.close()  # type: ignore[union-attr]
    store._connection = None
    store.close()
    assert not FaultStore.open(path).was_closed_in_order


def test_a_row_is_written_once_in_its_newest_form_and_read_by_anybody(path: Path) -> None:
    numbers = itertools.count()
    machine = FaultMachine(NODE, lambda: f"uuid-{next(numbers)}")
    store = FaultStore.open(path)
    for number in range(300):
        machine.inject([Injection("pcie-correctable", seed=number % 2)], nobody, NOW + number)
        assert store.write(
            NewRows(machine.take_changes(), [{"seq": number}], [{"lease": f"l{number}"}]), now_ns=NOW + number
        )
    with FaultStore.read_only(path) as reader:
        assert reader.snapshot().errors == machine.errors and reader.age_s(NOW / 1e9 + 5) == pytest.approx(5, abs=0.01)
        assert [row["seq"] for row in reader.events(3)] == [297, 298, 299]
        assert [row["lease"] for row in reader.applications(2)] == ["l299", "l298"]
        errors = reader.answer("errors", {"limit": 1, "component": None})
        assert errors["more"] is True and json.dumps(errors)
        assert reader.answer("op_state", {})["rdus"] == [row.as_json() for row in machine.op_states()]
        with pytest.raises(Unavailable, match="only a running node daemon answers 'counters'"):
            reader.answer("counters", {})
        with pytest.raises(sqlite3.OperationalError):
            reader._connection.execute("DELETE FROM error")
    assert [row["lease"] for row in store.applications(2)] == ["l298", "l299"]
    assert store.checkpoint()
    store.close()


def test_the_inventory_is_replaced(path: Path) -> None:
    names = ("comp_name", "kind", "parent", "serial", "part", "presence", "health")
    rows = [{name: f"{name}-{number}" for name in names} | {"size_bytes": number} for number in (2, 1)]
    store = FaultStore.open(path)
    store.write(NewRows(ChangedRows(), inventory=rows), now_ns=NOW)
    store.write(NewRows(ChangedRows(), inventory=rows[:1]), now_ns=NOW)
    with FaultStore.read_only(path) as reader:
        assert reader.inventory() == rows[:1] == reader.answer("inventory", {})["components"]
    store.close()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(16, 2**20), st.integers(0, 255)), min_size=1, max_size=12), st.booleans())
def test_no_damaged_file_does_more_than_be_refused(
    path: Path, good: Path, changes: list[tuple[int, int]], is_cut: bool
) -> None:
    broken = bytearray(good.read_bytes())
    for place, value in changes:
        broken[16 + place % (len(broken) - 16)] = value
    keep = 16 + changes[0][0] % len(broken) if is_cut else len(broken)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(broken[:keep])
    try:
        with FaultStore.read_only(path) as reader:
            reader.snapshot(), reader.inventory(), reader.applications(), reader.events()
    except RdukitError as error:
        assert error.code in ("invalid-argument", "unavailable", "not-found")  # noqa: PT017
    try:
        store = FaultStore.open(path)
    except InvalidArgument:
        return
    try:
        store.load()
        store.write(NewRows(ChangedRows(), [{"seq": 1}]), now_ns=NOW)
    except InvalidArgument:
        pass
    finally:
        store.close()

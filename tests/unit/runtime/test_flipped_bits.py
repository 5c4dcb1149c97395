"""A flipped bit in the fault database or its log: nothing differs, or the damage is noticed and salvaged."""

import itertools
import random
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.hardware import find_node
from rdukit_node.faults.log_repair import repaired_log
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import ChangedRows, FaultSnapshot, Injection, nobody
from rdukit_node.faults.pending import NewRows
from rdukit_node.faults.reader import FaultReader
from rdukit_node.faults.salvage import set_aside
from rdukit_node.faults.store import FaultStore
from rdukit_node.maintenance.model import Cordon, MaintenanceChanges
from support import shows

pytestmark = shows("node", "faults")

NOW = 1_700_000_000 * 10**9
WRITES = 8


def write_rows(path: Path, checkpoint_after: int) -> FaultStore:
    numbers = itertools.count()
    store = FaultStore.open(path)
    machine = FaultMachine(find_node("TEST-1"), lambda: f"uuid-{next(numbers)}")
    for number in range(WRITES):
        event = Injection("ddr-uncorrectable", f"/NODE/XRDU_0/RDU_0/DDRCH_{number % 2}", seed=number)
        machine.inject([event], nobody, NOW + number)
        cordon = Cordon(f"/NODE/XRDU_0/RDU_0/TILE_{number % 4}", "why", "root", NOW)
        changes = replace(machine.take_changes(), maintenance=MaintenanceChanges((cordon,)))
        store.write(NewRows(changes, [{"seq": number}], [{"lease": f"l{number}"}]), now_ns=NOW + number)
        if number == checkpoint_after:
            store.checkpoint()
    return store


@pytest.fixture(scope="module", params=["closed", "killed", "killed after a checkpoint"])
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Files as a daemon left them, and the name of the one that has most."""
    folder = tmp_path_factory.mktemp("left")
    (folder / "live").mkdir()
    store = write_rows(folder / "live" / "snfm.db", 3 if "checkpoint" in request.param else -1)
    if request.param == "closed":
        store.close()
    shutil.copytree(folder / "live", folder / "good")
    store.close()
    return folder / "good", "snfm.db" if request.param == "closed" else "snfm.db-wal"


def read_all(path: Path) -> tuple[FaultSnapshot, list[dict[str, object]]]:
    store = FaultStore.open(path)
    try:
        return store.load(), store.applications()
    finally:
        store.close()


def test_a_flipped_bit_changes_nothing_or_is_noticed(left: tuple[Path, str], tmp_path: Path) -> None:
    good, name = left
    shutil.copytree(good, tmp_path / "whole")
    wanted = read_all(tmp_path / "whole" / "snfm.db")
    data, draw, noticed = (good / name).read_bytes(), random.Random(4), 0
    for number in range(40):
        folder = tmp_path / str(number)
        shutil.copytree(good, folder)
        flipped = bytearray(data)
        flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        (folder / name).write_bytes(flipped)
        try:
            assert read_all(folder / "snfm.db") == wanted
        except InvalidArgument as error:
            noticed += bool(error.detail["is_damaged"])
            salvage = set_aside(folder / "snfm.db", error.message, 1.0)
            kept = salvage.path if name == "snfm.db" else salvage.path.with_name(f"{salvage.path.name}-wal")
            assert kept.read_bytes() == flipped, "the damaged file stays as it is"
    assert noticed


def test_what_is_behind_a_damaged_frame_of_the_log_is_salvaged(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    store = write_rows(tmp_path / "live" / "snfm.db", -1)
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    wanted = store.load()
    store.close()
    log = tmp_path / "killed" / "snfm.db-wal"
    damaged = bytearray(log.read_bytes())
    damaged[32 + 24 + 200] ^= 1  # in the first frame
    log.write_bytes(damaged)
    with pytest.raises(InvalidArgument, match="its last 8 writes are missing: the write-ahead log is damaged"):
        FaultReader.open(tmp_path / "killed" / "snfm.db")
    salvage = set_aside(tmp_path / "killed" / "snfm.db", "a test", 1.0)
    assert salvage.snapshot == wanted and len(salvage.applications) == WRITES


@pytest.mark.parametrize("place", [0, 8, 20, 25, 30, 32 + 8, 32 + 20], ids=lambda place: f"byte {place}")
def test_a_log_with_a_damaged_head_is_repaired(tmp_path: Path, place: int) -> None:
    (tmp_path / "live").mkdir()
    store = write_rows(tmp_path / "live" / "snfm.db", -1)
    log = (tmp_path / "live" / "snfm.db-wal").read_bytes()
    store.close()
    assert repaired_log(log) == log, "a whole log is as it was"
    damaged = bytearray(log)
    damaged[place] ^= 4
    again = repaired_log(bytes(damaged))
    assert again is not None and [again[at : at + 4096] for at in range(56, len(again), 4120)] == [
        log[at : at + 4096] for at in range(56, len(log), 4120)
    ]


def test_an_older_copy_and_a_missing_file_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "snfm.db"
    write_rows(path, -1).close()
    old = path.read_bytes()
    store = FaultStore.open(path)
    store.write(NewRows(ChangedRows(), [{"seq": 99}]), now_ns=NOW)
    store.close()
    path.write_bytes(old)
    with pytest.raises(InvalidArgument, match="its last write is missing"):
        FaultStore.open(path)
    path.unlink()
    with pytest.raises(InvalidArgument, match="its last 9 writes are missing"):
        FaultStore.open(path)


def test_a_row_that_was_changed_behind_the_daemons_back_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "snfm.db"
    write_rows(path, -1).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE cordon SET component = '/NODE/XRDU_0/RDU_0' WHERE component LIKE '%TILE_2'")
    connection.commit()
    connection.close()
    store = FaultStore.open(path)
    with pytest.raises(InvalidArgument, match="a row of table cordon does not match its stored checksum"):
        store.load()
    store.close()

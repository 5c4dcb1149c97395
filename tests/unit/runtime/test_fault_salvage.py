"""Whatever is wrong with a fault database's bytes: it is set aside, and what comes of it is legal."""

import itertools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit.hardware import find_node
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import Injection, nobody
from rdukit_node.faults.pending import NewRows
from rdukit_node.faults.salvage import put_back, set_aside
from rdukit_node.faults.store import FaultStore
from support import shows

pytestmark = shows("node", "faults")

NODE = find_node("TEST-1")
NOW = 1_700_000_000


def good_bytes(folder: Path) -> bytes:
    numbers = itertools.count()
    machine = FaultMachine(NODE, lambda: f"uuid-{next(numbers)}")
    store = FaultStore.open(folder / "good.db")
    for number in range(400):
        machine.inject([Injection("tile-hang", seed=number), Injection("fan", seed=number)], nobody, NOW + number)
        machine.repair("/NODE", "root", NOW + number)
        store.write(NewRows(machine.take_changes(), [], [{"lease": f"l{number}"}]), now_ns=NOW + number)
    store.close()
    return (folder / "good.db").read_bytes()


with tempfile.TemporaryDirectory() as _folder:
    GOOD = good_bytes(Path(_folder))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=64)), max_size=6), st.booleans()
)
def test_any_damage_gives_rows_that_a_new_database_takes(damages: list[tuple[int, bytes]], is_cut: bool) -> None:
    broken = bytearray(GOOD)
    for place, data in damages:
        broken[place : place + len(data)] = data
    if is_cut and damages:
        del broken[damages[0][0] :]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "snfm.db"
        path.write_bytes(broken)
        salvage = set_aside(path, "a test", NOW)
        assert salvage.path.read_bytes()[:16] == bytes(broken[:16]) and not path.exists()
        if not damages:
            assert len(salvage.applications) == 400 and salvage.snapshot.errors
        store = FaultStore.open(path)
        put_back(salvage, store, NOW)
        assert store.is_writable, store.reason
        assert len(store.load().faults) == len({row.fault_uuid for row in salvage.snapshot.faults})
        store.close()


def test_a_page_in_the_middle_costs_its_own_rows_only() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "snfm.db"
        whole = set_aside(_written(path, GOOD), "a test", NOW)
        pages = len(GOOD) // 4096
        kept = []
        for page in range(2, pages, 7):
            broken = bytearray(GOOD)
            broken[page * 4096 : (page + 1) * 4096] = b"\xff" * 4096
            kept.append(set_aside(_written(path, bytes(broken)), "a test", NOW).rows / whole.rows)
        assert sum(kept) / len(kept) > 0.8


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path

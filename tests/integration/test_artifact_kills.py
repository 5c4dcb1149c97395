"""Processes killed while they hold or sweep artifacts: nothing is lost, and the next one finishes."""

import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit_platform.artifacts.removal import delete_artifact
from rdukit_platform.artifacts.service import record_artifact
from rdukit_platform.artifacts.store import Content
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.db.engine import Database
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import fresh_database

pytestmark = shows("artifacts")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "artifacts")


@pytest.fixture
def tenant(database: Database) -> str:
    with database.write() as session:
        return create_tenant(session, "lab", 0.0).id


def add(database: Database, tenant: str, content: Content, kind: str = "data", at: float = 1.0) -> str:
    with database.write() as session:
        return record_artifact(session, tenant, kind, kind, content, at).id


def folder(store: FolderStore, tmp_path: Path, **files: bytes) -> Content:
    source = tmp_path / hashlib.sha256(repr(files).encode()).hexdigest()
    source.mkdir()
    for name, data in files.items():
        (source / name).write_bytes(data)
    return store.add_path(source)


def blobs(store: FolderStore) -> set[str]:
    return {path.name for path in (store.folder / "blobs").rglob("*") if path.is_file()}


def delete(database: Database, tenant: str, artifact: str, at: float = 2.0) -> list[str]:
    with database.write() as session:
        return list(delete_artifact(session, tenant, artifact, at).same_content)


def test_a_hold_ends_with_its_process(store: FolderStore) -> None:
    code = f"""
import os, signal
from pathlib import Path
from rdukit_platform.artifacts.stores.folder import FolderStore
with FolderStore(Path({str(store.folder)!r})).holding():
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert len(list((store.folder / "holds").iterdir())) == 1
    assert store.held_since() is None
    assert list((store.folder / "holds").iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.artifacts.sweep import collect
from rdukit_platform.db.engine import Database
left = int(sys.argv[3])
def step(name):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
collect(Database(sys.argv[1]), FolderStore(Path(sys.argv[2])), 4e9, 0.0, on_step=step)
"""


@pytest.mark.long
def test_a_sweep_that_is_killed_between_any_two_steps_is_finished_by_the_next(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path
) -> None:
    kept = folder(store, tmp_path, a=b"1", b=b"2")
    add(database, tenant, kept)
    gone = folder(store, tmp_path, b=b"2", c=b"3", d=b"4")
    delete(database, tenant, add(database, tenant, gone))
    (store.folder / "incoming").mkdir(exist_ok=True)
    (store.folder / "incoming" / "left").write_bytes(b"half an upload")
    before = blobs(store)
    command = [sys.executable, "-c", KILLED, database.url.render_as_string(hide_password=False), str(store.folder)]
    codes = []
    for steps in range(6):
        codes.append(subprocess.run([*command, str(steps)], check=False).returncode)
        for entry in store.entries(kept.digest):
            store.check(entry.digest)
    assert codes[0] == -signal.SIGKILL
    assert codes[-1] == 0
    assert before - blobs(store) == {gone.digest, *(hashlib.sha256(each).hexdigest() for each in (b"3", b"4"))}
    assert list((store.folder / "incoming").iterdir()) == []

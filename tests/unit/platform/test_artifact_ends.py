"""Ends of artifacts: what is needed stays, what nothing names goes, and a kill at any point loses nothing."""

import hashlib
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, ContentDamaged, InvalidArgument, NotFound, QuotaExceeded
from rdukit_platform.artifacts.needs import KNOWN, read_needs, unknown_references
from rdukit_platform.artifacts.quota import check_quota, read_use
from rdukit_platform.artifacts.removal import (
    DAY_S,
    delete_artifact,
    expire_artifacts,
    has_expired,
    pin_artifact,
    unpin_artifact,
)
from rdukit_platform.artifacts.service import get_artifact, list_artifacts, record_artifact, walk_lineage
from rdukit_platform.artifacts.store import Content
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.artifacts.sweep import collect
from rdukit_platform.catalog.model import Boxes, read_box
from rdukit_platform.catalog.own import install_box, uninstall_box
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ArtifactRow, TenantRow
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.changes import lock_job
from rdukit_platform.jobs.experts import promote_job
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.jobs.service import cancel_job, submit_job
from rdukit_platform.setting_texts import read_keep_days
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import COUNTER, fresh_database

pytestmark = shows("artifacts", "artifact-store")

BOXES = Boxes({"counter": read_box(COUNTER)})
NOW = 4e9  # later than any file of the test was written


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


def file(store: FolderStore, data: bytes) -> Content:
    return store.add_stream(BytesIO(data))


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


def submit(session: Session, tenant: str, dataset: str) -> str:
    request = JobRequest(box="counter", verb="train", inputs={"dataset": dataset})
    return submit_job(session, BOXES, tenant, request, 2.0).id


def train(database: Database, tenant: str, dataset: str, output: Content) -> tuple[str, str]:
    """Let a training succeed. Returns its job and checkpoint."""
    with database.write() as session:
        job = submit(session, tenant, dataset)
        fencing = execution.admit(session, job, 2.0)
        execution.claim(session, fencing, "w", 5.0, 2.0)
        execution.start(session, fencing, {"backend": "process", "id": "1", "limits": {}}, 2.0)
        made = execution.Output("checkpoint", "checkpoint", output.digest, output.bytes, output.is_folder)
        return job, execution.succeed(session, fencing, [made], {}, 3.0)["checkpoint"]


def test_a_mistyped_kind_is_refused_with_those_that_there_are(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path
) -> None:
    own = add(database, tenant, file(store, b"own"), kind="mine")
    with database.read() as session:
        assert [row.id for row in list_artifacts(session, tenant, "mine")[0]] == [own]
        assert list_artifacts(session, tenant, "checkpoint")[0] == [], "one that jobs make, of which there is none"
        with pytest.raises(
            InvalidArgument, match=r"kind 'chekpoint'; expected .*pef, .*mine.*Did you " r"mean 'checkpoint'"
        ):
            list_artifacts(session, tenant, "chekpoint")


def test_a_deleted_artifact_is_gone_but_for_the_lineage_of_others(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path
) -> None:
    data = add(database, tenant, folder(store, tmp_path, a=b"1"))
    _, checkpoint = train(database, tenant, data, file(store, b"weights"))
    assert delete(database, tenant, data, at=9.0) == []
    with database.read() as session:
        assert [row.id for row in list_artifacts(session, tenant)[0]] == [checkpoint]
        with pytest.raises(NotFound, match="was deleted"):
            get_artifact(session, tenant, data)
        rows, links = walk_lineage(session, tenant, checkpoint)
    assert [(row.id, row.deleted_at) for row in rows] == [(data, 9.0), (checkpoint, None)]
    assert [(link.child, link.parent) for link in links] == [(checkpoint, data)]
    with pytest.raises(NotFound):
        delete(database, tenant, data)
    with database.write() as session, pytest.raises(NotFound):
        submit(session, tenant, data)


def test_what_a_job_that_has_not_ended_takes_is_not_deleted(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path
) -> None:
    data = add(database, tenant, folder(store, tmp_path, a=b"1"))
    with database.write() as session:
        job = submit(session, tenant, data)
    with pytest.raises(Conflict, match=f"needed by job {job}") as refused:
        delete(database, tenant, data)
    assert refused.value.detail["needs"] == [{"kind": "job", "name": job}]
    with database.write() as session:
        cancel_job(session, lock_job(session, job), 3.0)
    delete(database, tenant, data)


def test_what_an_expert_is_made_of_is_not_deleted(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path
) -> None:
    data = add(database, tenant, folder(store, tmp_path, a=b"1"))
    job, checkpoint = train(database, tenant, data, file(store, b"weights"))
    with database.write() as session:
        promote_job(session, BOXES, tenant, job, "digits", 4.0)
    with pytest.raises(Conflict, match="needed by expert digits:1"):
        delete(database, tenant, checkpoint)
    delete(database, tenant, data)


def test_an_installed_boxs_folder_is_deleted_when_it_is_uninstalled(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path
) -> None:
    content = folder(store, tmp_path, yaml=b"box")
    with database.write() as session:
        row = install_box(session, BOXES, tenant, {**COUNTER, "name": "mine"}, content, 1.0).row
    assert row.artifact_id is not None
    with pytest.raises(Conflict, match="needed by box mine:1; uninstall"):
        delete(database, tenant, row.artifact_id)
    assert collect(database, store, NOW, 0.0).removed == 0
    with database.write() as session:
        uninstall_box(session, BOXES, tenant, "mine", 5.0)
    delete(database, tenant, row.artifact_id)
    assert collect(database, store, NOW, 0.0).removed == 2
    assert blobs(store) == set()


def test_a_table_that_refers_to_artifacts_is_known_or_needs_them(database: Database, tenant: str) -> None:
    known = {f"{column.table.name}.{column.name}" for column in unknown_references()}
    assert known.isdisjoint(KNOWN)
    with database.read() as session:
        assert read_needs(session, tenant) == {}, "each can be asked"


def test_a_pin_keeps_from_deletion_and_age(
    database: Database, store: FolderStore, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_ARTIFACTS_KEEP_DAYS", "report=1")
    kept, old = (add(database, tenant, file(store, b"r"), "report") for _ in range(2))
    other = add(database, tenant, file(store, b"d"), "data")
    with database.write() as session:
        assert pin_artifact(session, tenant, kept, 5.0).pinned_at == 5.0
        assert pin_artifact(session, tenant, kept, 6.0).pinned_at == 5.0
    with pytest.raises(Conflict, match="is pinned"):
        delete(database, tenant, kept)
    assert expire_artifacts(database, 2.0 + DAY_S) == 1
    with database.read() as session:
        assert {row.id for row in list_artifacts(session, tenant)[0]} == {kept, other}
        assert session.get_one(ArtifactRow, old).deleted_at is not None
    with database.write() as session:
        unpin_artifact(session, tenant, kept)
    assert delete(database, tenant, kept) == []


def test_age_takes_nothing_that_is_needed(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_ARTIFACTS_KEEP_DAYS", "1")
    data = add(database, tenant, folder(store, tmp_path, a=b"1"))
    with database.write() as session:
        submit(session, tenant, data)
    assert expire_artifacts(database, NOW) == 0


@pytest.mark.parametrize(
    ("text", "kind", "days", "is_over"),
    [("0", "data", 1000, False), ("7", "data", 8, True), ("7", "data", 6, False), ("data=7,*=0", "pef", 9, False),
     ("data=0,*=7", "data", 9, False), ("data=0,*=7", "pef", 9, True), ("0.5", "pef", 1, True)],
)  # fmt: skip
def test_each_kind_has_its_time(text: str, kind: str, days: float, is_over: bool) -> None:
    row = ArtifactRow(kind=kind, created_at=0.0)
    assert has_expired(row, read_keep_days(text), (), days * DAY_S) is is_over


@pytest.mark.parametrize("text", ["", "x", "data=", "=3", "-1", "data=1,data=2", "nan", "inf", "data=-1"])
def test_an_illegal_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"KIND=DAYS|could not convert"):
        read_keep_days(text)


def test_content_goes_when_its_last_artifact_does(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path
) -> None:
    shared = file(store, b"shared")
    first = add(database, tenant, shared)
    second = add(database, tenant, folder(store, tmp_path, a=b"shared", b=b"other"))
    twin = add(database, tenant, shared)
    assert delete(database, tenant, first) == [twin]
    assert collect(database, store, NOW, 0.0).removed == 0
    delete(database, tenant, twin)
    assert collect(database, store, NOW, 0.0).removed == 0, "a file of the folder"
    delete(database, tenant, second)
    dry = collect(database, store, NOW, 0.0, is_dry=True)
    assert (dry.removed, len(blobs(store))) == (3, 3)
    assert collect(database, store, NOW, 0.0).removed_bytes == dry.removed_bytes
    assert blobs(store) == set()


def test_content_of_another_tenant_stays(database: Database, store: FolderStore, tenant: str) -> None:
    with database.write() as session:
        other = create_tenant(session, "other", 0.0).id
    content = file(store, b"both")
    mine, theirs = add(database, tenant, content), add(database, other, content)
    assert delete(database, tenant, mine) == [], "nothing tells that another tenant has it too"
    assert collect(database, store, NOW, 0.0).removed == 0
    delete(database, other, theirs)
    assert collect(database, store, NOW, 0.0).removed == 1


def test_young_content_and_what_an_upload_or_attempt_brings_stays(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = file(store, b"new")
    written = store.path(content.digest).stat().st_mtime
    assert collect(database, store, written + 50, 60.0).young == 1
    monkeypatch.setenv("RDUKIT_ARTIFACTS_GRACE_S", "100")
    assert collect(database, store, written + 80).young == 1
    os.utime(store.path(content.digest), (written + 100, written + 100))
    with store.holding():
        assert collect(database, store, NOW, 0.0).young == 1
    data = add(database, tenant, folder(store, tmp_path, a=b"1"))
    with database.write() as session:
        execution.admit(session, submit(session, tenant, data), written)
    assert collect(database, store, NOW, 0.0).young == 1
    with database.write() as session:
        execution.admit(session, submit(session, tenant, data), NOW)
    assert collect(database, store, NOW, 0.0).young == 1, "the attempt that began first goes on"
    assert content.digest in blobs(store)


def test_content_that_comes_again_during_a_sweep_stays(database: Database, store: FolderStore) -> None:
    content = file(store, b"again")
    os.utime(store.path(content.digest), (1.0, 1.0))

    def bring(step: str) -> None:
        if step == content.digest:
            file(store, b"again")

    assert collect(database, store, 1e9, 0.0, on_step=bring).removed == 0
    assert blobs(store) == {content.digest}


def test_nothing_is_removed_while_a_folders_files_are_not_known(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path
) -> None:
    content = folder(store, tmp_path, a=b"1")
    artifact = add(database, tenant, content)
    store.path(content.digest).unlink()
    with pytest.raises(ContentDamaged, match=artifact):
        collect(database, store, NOW, 0.0)
    assert len(blobs(store)) == 1


def test_only_one_sweeps_at_a_time(database: Database, store: FolderStore) -> None:
    def again(step: str) -> None:
        with pytest.raises(Conflict, match="another collection or backup"):
            collect(database, store, NOW, 0.0)

    collect(database, store, NOW, 0.0, on_step=again)


def test_a_quota_says_how_much_and_what_could_go(database: Database, store: FolderStore, tenant: str) -> None:
    big = add(database, tenant, file(store, bytes(3000)), "checkpoint")
    with database.write() as session:
        session.execute(update(TenantRow).values(artifact_bytes=4096))
    with database.read() as session:
        check_quota(session, tenant, 1096)
        with pytest.raises(QuotaExceeded) as refused:
            check_quota(session, tenant, 2120)
        assert read_use(session, tenant).bytes == 3000
    assert refused.value.message == (
        "tenant 'lab' may keep 4 KiB of artifacts and has 2.93 KiB; 2.07 KiB more exceed that by 1 KiB; delete "
        f"artifacts that you do not need, such as {big} (checkpoint, 2.93 KiB), with: rdukit artifact delete ID"
    )
    assert refused.value.detail["excess_bytes"] == 1024
    delete(database, tenant, big)
    with pytest.raises(QuotaExceeded, match="that alone exceeds its limit; ask an administrator"):
        add(database, tenant, file(store, bytes(5000)))
    big = add(database, tenant, file(store, bytes(3000)), "checkpoint")
    with pytest.raises(QuotaExceeded):
        add(database, tenant, file(store, bytes(2000)))
    delete(database, tenant, big)
    add(database, tenant, file(store, bytes(2000)))


def test_a_quota_counts_what_a_job_makes_and_proposes_nothing_that_is_needed(
    database: Database, store: FolderStore, tenant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = add(database, tenant, folder(store, tmp_path, a=bytes(100)))
    monkeypatch.setenv("RDUKIT_ARTIFACTS_TENANT_BYTES", "150")
    with pytest.raises(QuotaExceeded, match="every artifact is pinned or needed"):
        train(database, tenant, data, file(store, bytes(60)))
    with database.write() as session:
        session.execute(update(TenantRow).values(artifact_bytes=0))
    train(database, tenant, data, file(store, bytes(60)))
    with database.read() as session:
        assert read_use(session, tenant).limit_bytes == 0
        assert read_needs(session, tenant) == {}

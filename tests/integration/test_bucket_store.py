"""Artifacts in a bucket of a real S3 server: content, copies, uploads, sweeps, and what a kill or a pause leaves."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from rdukit.doctor.cli import FindingLevel
from rdukit.errors import Conflict, ContentDamaged, NotFound, StoreUnavailable
from rdukit_platform.artifacts.manifest import FolderEntry
from rdukit_platform.artifacts.service import record_artifact, verify_artifact
from rdukit_platform.artifacts.stores.bucket import PART_BYTES, Bucket
from rdukit_platform.artifacts.stores.cache import ContentCache
from rdukit_platform.artifacts.stores.s3 import S3Store
from rdukit_platform.artifacts.sweep import collect
from rdukit_platform.artifacts.uploads import UPLOAD_KEEP_S, Uploads
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ArtifactRow
from rdukit_platform.doctor import check_platform
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.bucket import NAME, SECRET, BucketServer, bucket_server
from support.platform.gateway import gateway_under_test
from support.platform.processes import fresh_database, short_folder

pytestmark = [shows("artifacts"), pytest.mark.long]

LARGE = os.urandom(PART_BYTES + 1000)
#: Later than anything of the test was written.
LATER = 3600.0


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    with bucket_server() as running:
        yield running


@pytest.fixture
def address(server: BucketServer, tmp_path: Path) -> str:
    return f"s3://{NAME}/{tmp_path.name.replace('_', '-')}"


@pytest.fixture
def store(address: str, tmp_path: Path) -> S3Store:
    return S3Store(Bucket(address), ContentCache(tmp_path / "copies", 1 << 30))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


def test_the_region_is_the_one_that_the_environment_names(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert Bucket(address)._brisk_client.meta.region_name == "eu-central-1"


def only_object(server: BucketServer, store: S3Store, digest: str) -> str:
    (key,) = server.keys(f"{store.bucket.address.removeprefix(f's3://{NAME}/')}/blobs/{digest[:2]}/{digest}/")
    return key


def copies(store: S3Store) -> set[str]:
    return {path.name for path in store.cache.folder.glob("*/*")}


def test_content_comes_back_as_it_was_and_is_fetched_once(store: S3Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "large.bin").write_bytes(LARGE)
    (source / "deep" / "empty").write_bytes(b"")
    content = store.add_path(source)
    assert (content.bytes, content.is_folder) == (len(LARGE), True)
    store.materialize(content.digest, True, tmp_path / "target")
    assert (tmp_path / "target" / "large.bin").read_bytes() == LARGE
    assert (tmp_path / "target" / "deep" / "empty").read_bytes() == b""
    digest = hashlib.sha256(LARGE).hexdigest()
    assert b"".join(store.read_range(digest, 5, 10)) == LARGE[5:15]
    assert digest in copies(store)
    for path in sorted(store.cache.folder.glob("*/*")):
        path.chmod(0o600)
        path.write_bytes(b"the disk has changed it")
    store.materialize(content.digest, True, tmp_path / "again")
    assert (tmp_path / "again" / "large.bin").read_bytes() == LARGE, "a damaged copy is fetched anew"
    with pytest.raises(NotFound):
        list(store.read("0" * 64))


def test_copies_are_bounded_and_the_longest_unused_go(address: str, tmp_path: Path) -> None:
    store = S3Store(Bucket(address), ContentCache(tmp_path / "few", 2500))
    made = [store.add_stream(BytesIO(bytes([number]) * 1000)) for number in range(3)]
    large = store.add_stream(BytesIO(b"x" * 3000))
    for at, content in enumerate(made[:2], 1):
        store.check(content.digest)
        os.utime(store.cache.folder / content.digest[:2] / content.digest, (at, at))
    store.check(made[2].digest)
    assert copies(store) == {made[1].digest, made[2].digest}
    with store.local(large.digest) as path:
        assert path.read_bytes() == b"x" * 3000
    assert store.cache.bytes() == 2000, "what is larger than all copies together is not kept"


def test_a_fetch_that_was_killed_goes_on(store: S3Store, address: str) -> None:
    content = store.add_stream(BytesIO(LARGE))
    code = f"""
import os, signal
from pathlib import Path
from rdukit_platform.artifacts.stores.bucket import Bucket
from rdukit_platform.artifacts.stores.cache import ContentCache
from rdukit_platform.artifacts.stores.s3 import S3Store
def read(self, *arguments, whole=Bucket.read):
    for number, block in enumerate(whole(self, *arguments)):
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield block
Bucket.read = read
S3Store(Bucket({address!r}), ContentCache(Path({str(store.cache.folder)!r}), 1 << 30)).check({content.digest!r})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert (store.cache.folder / "partial" / content.digest).stat().st_size == 3 << 20
    starts: list[int] = []
    found = store.cache.bring(
        content.digest, content.bytes, lambda start: starts.append(start) or iter([LARGE[start:]])
    )
    assert (starts, found.read_bytes() == LARGE) == ([3 << 20], True)


def test_an_object_that_was_tampered_with_is_refused_and_the_right_bytes_mend_it(
    server: BucketServer, store: S3Store, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = store.add_stream(BytesIO(b"weights"))
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0).id
        row = record_artifact(session, tenant, "w", "checkpoint", content, 1.0)
    key = only_object(server, store, content.digest)
    store.check(content.digest)  # there is a copy
    server.client.put_object(Bucket=NAME, Key=key, Body=b"poison!")
    assert "was changed" in verify_artifact(store, row).problems[0].problem, "it is read where it is kept"
    store.cache.clear()
    with pytest.raises(ContentDamaged, match=content.digest) as damaged:
        store.materialize(content.digest, False, tmp_path / "target")
    object_key = key.partition("blobs/")[2]
    assert object_key in caplog.text and object_key not in str(damaged.value), "where it is, is for the operator"
    assert copies(store) == set()
    time.sleep(1.1)  # S3 tells whole seconds, and the youngest object is read
    store.add_stream(BytesIO(b"weights"))
    store.materialize(content.digest, False, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == b"weights"


def test_a_kill_in_an_upload_leaves_nothing_but_parts_that_are_swept(
    server: BucketServer, store: S3Store, database: Database, address: str
) -> None:
    code = f"""
import io, os, signal
from pathlib import Path
from rdukit_platform.artifacts.stores.bucket import Bucket
from rdukit_platform.artifacts.stores.cache import ContentCache
from rdukit_platform.artifacts.stores.s3 import S3Store
class Killing(io.BytesIO):
    reads = 0
    def read(self, size=-1):
        self.reads += 1
        if self.reads > {2 * PART_BYTES >> 20} * 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(size)
store = S3Store(Bucket({address!r}), ContentCache(Path({str(store.cache.folder)!r}), 1 << 30))
with store.holding():
    store.add_stream(Killing(bytes({3 * PART_BYTES})))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert list(store.blobs()) == []
    assert len(list(store.bucket.unfinished("blobs/"))) == 1
    assert store.held_since() is not None, "nobody can tell yet that it is gone"
    server.client.delete_object(Bucket=NAME, Key=server.keys(f"{address.removeprefix(f's3://{NAME}/')}/holds/")[0])
    steps: list[str] = []
    collect(database, store, time.time() + LATER, 0.0, on_step=steps.append)
    assert list(store.bucket.unfinished("")) == [] and len(steps) == 2


def test_a_sweep_takes_what_nothing_names_and_no_more(store: S3Store, database: Database, tmp_path: Path) -> None:
    kept, gone = store.add_stream(BytesIO(b"kept")), store.add_stream(BytesIO(b"gone"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"in a folder")
    folder = store.add_path(tmp_path / "folder")
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0).id
        for content in (kept, gone, folder):
            record_artifact(session, tenant, content.digest, "data", content, 1.0)
        session.execute(update(ArtifactRow).where(ArtifactRow.digest == gone.digest).values(deleted_at=2.0))
    assert collect(database, store, time.time(), 60.0).removed == 0, "it is too young"
    with store.holding():
        assert collect(database, store, time.time() + LATER, 0.0).removed == 0, "it may belong to what is held"

    def disturb(step: str) -> None:
        with pytest.raises(Conflict, match="another"):
            collect(database, store, time.time() + LATER, 0.0)
        if step == gone.digest:
            store.add_stream(BytesIO(b"gone"))  # comes again at this very moment

    assert collect(database, store, time.time() + LATER, 0.0, on_step=disturb).removed == 1
    assert store.has(gone.digest), "what came meanwhile stays"
    store.add_stream(BytesIO(b"kept"))
    found = collect(database, store, time.time() + LATER, 0.0)
    assert (found.removed, found.kept) == (2, 3), "of the same content one object stays"
    store.cache.clear()
    store.materialize(folder.digest, True, tmp_path / "target")
    store.check(kept.digest)
    assert not store.has(gone.digest)


def test_an_upload_goes_on_at_another_gateway_with_a_home_of_its_own(
    store: S3Store, address: str, tmp_path: Path
) -> None:
    other = S3Store(Bucket(address), ContentCache(tmp_path / "other", 1 << 30))
    here, there = Uploads(store), Uploads(other)
    entry = FolderEntry("large.bin", hashlib.sha256(LARGE).hexdigest(), len(LARGE))
    upload = here.begin("lab", "d", "data", [entry], is_folder=False)
    assert here.append(upload, 0, 0, LARGE[:1000]) == 1000
    assert there.begin("lab", "d", "data", [entry], is_folder=False) == upload
    with pytest.raises(Conflict, match="has 1000 bytes"):
        there.append(upload, 0, 500, b"x")
    assert there.append(upload, 0, 1000, LARGE[1000:-1]) == len(LARGE) - 1
    here.append(upload, 0, len(LARGE) - 1, b"?" if LARGE[-1:] != b"?" else b"!")
    with pytest.raises(Conflict, match="send it again"):
        here.store(upload)
    assert (here.offset(upload, 0), list(store.blobs()), list(store.bucket.unfinished(""))) == (0, [], [])
    there.append(upload, 0, 0, LARGE)
    with other.holding():
        content = there.store(upload)
    here.empty(upload)
    assert b"".join(store.read(content.digest)) == LARGE
    assert (here.expire(time.time()), here.expire(time.time() + UPLOAD_KEEP_S + 60)) == (0, 1)
    assert list(store.bucket.list("uploads/")) == []


def test_a_gateway_says_what_is_missing_while_the_server_is_away_and_goes_on_when_it_is_back(
    server: BucketServer, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RDUKIT_ARTIFACTS_STORE", address)
    monkeypatch.setenv("RDUKIT_ARTIFACTS_COPY_BYTES", "1000000")
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as gateway:
            token = gateway.token("lab", "read", "write")

            def add() -> Any:
                form = {"files": {"files": ("a.bin", b"content")}, "data": {"kind": "data"}}
                return gateway.ask("POST", "/v1/artifacts", token, **form)

            made = add().json()
            assert gateway.ask("GET", "/health", token).json()["parts"]["artifacts"] is True
            server.go()
            try:
                away = add()
                assert gateway.ask("GET", "/health", token).json()["parts"]["artifacts"] is False
            finally:
                server.come_back()
            assert (away.status_code, away.json()["error"]["code"]) == (503, "store-unavailable")
            assert f"{server.host}:{server.port} does not answer" in away.json()["error"]["message"]
            assert add().status_code == 201
            content = gateway.ask("GET", f"/v1/artifacts/{made['id']}/content", token, headers={"Range": "bytes=3-"})
            assert (content.status_code, content.content) == (206, b"tent")
            metrics = gateway.ask("GET", "/metrics", gateway.admin).text
            assert 'rdukit_store_requests_total{operation="PutObject",status="200"}' in metrics
            assert "rdukit_store_copies_bytes 7" in metrics
            assert SECRET not in away.text + metrics + caplog.text
            assert not any(SECRET in path.read_text(errors="ignore") for path in folder.rglob("*") if path.is_file())


def test_the_doctor_says_what_is_wrong_with_a_bucket(
    server: BucketServer, store: S3Store, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))

    def told(store: str) -> tuple[FindingLevel, str]:
        monkeypatch.setenv("RDUKIT_ARTIFACTS_STORE", store)
        (found,) = [each for each in check_platform() if each.check == "artifacts.store"]
        return found.level, found.what

    assert told(address) == (FindingLevel.GOOD, f"{address} can be written, listed, read and swept")
    assert list(store.bucket.list("probe/")) == []
    level, text = told("s3://no-such-bucket")
    assert (level, "create it, or name another" in text) == (FindingLevel.BAD, True)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert "does not answer" in told(address)[1]
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(StoreUnavailable, match=r"pip install 'rdukit\[s3\]'"):
        Bucket(address).put("x", b"")

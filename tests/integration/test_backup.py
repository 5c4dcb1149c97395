"""A platform backed up while it works and restored into a new home folder, with SQLite and with PostgreSQL."""

import hashlib
import itertools
import json
import shutil
import sqlite3
import tarfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit_platform.backup.manifest import FORMAT, read_manifest, write_manifest
from rdukit_platform.client.http import ApiClient
from support import first_short, shows
from support.platform.processes import PlatformUnderTest, platform_under_test, run_rdukit, short_folder
from support.postgres import new_database, postgres_server

pytestmark = shows("backup", "restore")

BOX = Path(__file__).parent / "platform_box.py"
CONTENT = bytes(range(250)) * 4
QUICK = {"RDUKIT_JOB_BACKOFF_S": "0.1"}
#: So many jobs are submitted while a backup is made; that there are more would only take longer.
NOISY_JOBS = 6


#: For what is about a backup's files and its manifest: they are of one form, whichever database they come from.
ONE_DATABASE = pytest.mark.parametrize("filled", ["sqlite"], indirect=True)


class Filled:
    """A backup, in both forms, that was made while jobs ran; and what the platform had."""

    def __init__(self, home: Path, server: str, folder: Path, tar: Path, facts: dict[str, Any]) -> None:
        self.home, self.server, self.folder, self.tar, self.facts = home, server, folder, tar, facts


@pytest.fixture(scope="module", params=first_short(["sqlite", "postgresql"]))
def filled(request: pytest.FixtureRequest) -> Iterator[Filled]:
    with ExitStack() as stack:
        home, place = stack.enter_context(short_folder()), stack.enter_context(short_folder())
        server = stack.enter_context(postgres_server()) if request.param == "postgresql" else ""
        environment = QUICK | ({"RDUKIT_DATABASE_URL": new_database(server, "first")} if server else {})
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        with platform_under_test(home, BOX, environment) as platform:
            facts = fill(platform)
            running = platform.submit("train", inputs=facts["data"], parameters={"steps": 1000, "step_s": 0.5})["id"]
            platform.wait_job(running, lambda job: bool(job["progress"]))
            queued = platform.submit("train", inputs=facts["data"], tiles=32, parameters={"steps": 3})["id"]
            patch.setenv("RDUKIT_HOME", str(home))
            for name, value in environment.items():
                patch.setenv(name, value)
            stop = threading.Event()
            writing = threading.Thread(target=write_until, args=(platform, stop))
            writing.start()
            try:
                told = json.loads(run_rdukit("backup", str(place / "all"), "--verify", "--json"))
                run_rdukit("backup", str(place / "all.tar"))
            finally:
                stop.set()
                writing.join()
            assert told["database"] == request.param and told["verified"] and not told["damaged"]
        patch.undo()
        yield Filled(home, server, place / "all", place / "all.tar", facts | {"running": running, "queued": queued})


def fill(platform: PlatformUnderTest) -> dict[str, Any]:
    """Run jobs, and make a tenant, a token and half an upload. Returns what there must be later."""
    client = platform.client
    data = {"dataset": platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]}
    done = platform.wait_end(platform.submit("train", inputs=data, parameters={"steps": 4})["id"])
    assert done["state"] == "succeeded", done
    made = client.post("/v1/tenants", {"name": "second"})
    token = client.post(f"/v1/tenants/{made['id']}/tokens", {"scopes": ["read"]})["token"]
    files = [{"path": "half.bin", "digest": hashlib.sha256(CONTENT).hexdigest(), "bytes": len(CONTENT)}]
    body = {"name": "half", "kind": "file", "files": files}
    upload = client.post("/v1/uploads", body)["id"]
    put_piece(platform, upload, 0, CONTENT[:400])
    facts = {"data": data, "done": done, "token": token, "upload": upload}
    return facts | {"checkpoint": done["outputs"]["checkpoint"]}


def put_piece(platform: PlatformUnderTest, upload: str, offset: int, piece: bytes) -> None:
    """Send a piece of the file of an upload."""
    token = (platform.home / "token").read_text().strip()
    url = f"{platform.running['url']}/v1/uploads/{upload}/files/0?offset={offset}"
    httpx.put(url, content=piece, headers={"Authorization": f"Bearer {token}"}).raise_for_status()


def write_until(platform: PlatformUnderTest, stop: threading.Event) -> None:
    """Write to the database all the time: a few jobs, which each platform runs, and then what is gone at once."""
    files = [{"path": "noise.bin", "digest": hashlib.sha256(b"").hexdigest(), "bytes": 0}]
    with ApiClient(platform.running["url"], (platform.home / "token").read_text().strip()) as client:
        for number in itertools.count():
            if stop.is_set():
                return
            if number < NOISY_JOBS:
                client.submit("/v1/jobs", {"box": "counter", "verb": "preprocess", "labels": {"noise": "1"}})
            else:
                begun = client.post("/v1/uploads", {"name": "noise", "kind": "file", "files": files})
                client.delete(f"/v1/uploads/{begun['id']}")
            stop.wait(0.02)


def check_restored(home: Path, facts: dict[str, Any], environment: dict[str, str]) -> None:
    with platform_under_test(home, BOX, QUICK | environment) as platform:
        done = platform.job(facts["done"]["id"])
        assert {name: done[name] for name in ("state", "result", "outputs", "created_at")} == {
            name: facts["done"][name] for name in ("state", "result", "outputs", "created_at")
        }
        content = BytesIO()
        platform.client.download(f"/v1/artifacts/{facts['checkpoint']}/content", content, path="latest.json")
        assert content.getvalue() == b'{"step": 4}'
        assert {tenant["name"] for tenant in platform.client.get("/v1/tenants")["tenants"]} == {"default", "second"}
        with ApiClient(platform.running["url"], facts["token"]) as second:
            assert second.get("/v1/jobs")["jobs"] == [], "the token is valid, and another tenant's"
        put_piece(platform, facts["upload"], 400, CONTENT[400:])
        uploaded = platform.client.post(f"/v1/uploads/{facts['upload']}/finish")
        assert uploaded["bytes"] == len(CONTENT), "the upload went on where it was"
        # What ran when it was backed up is lost, and runs again; what waited, waits no more.
        again = platform.wait_job(facts["running"], lambda job: job["attempt"] > 1 and job["state"] == "running")
        assert again["attempts"][0]["outcome"] == "expired"
        platform.client.post(f"/v1/jobs/{facts['running']}/cancel")
        assert platform.wait_end(facts["running"])["state"] == "cancelled"
        assert platform.wait_end(facts["queued"])["state"] == "succeeded"
        noise = platform.client.get("/v1/jobs", label="noise=1", limit=200)["jobs"]
        assert noise
        for job in noise:
            assert platform.wait_end(job["id"])["state"] == "succeeded"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home folder, in force."""
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        yield folder


def test_a_platform_is_restored_with_everything_in_it(filled: Filled, home: Path) -> None:
    run_rdukit("restore", str(filled.tar), "--json")
    assert not (home / "restoring").exists()
    check_restored(home, filled.facts, {})


@pytest.mark.long
def test_a_platform_is_restored_to_postgresql(filled: Filled, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        url = new_database(filled.server or stack.enter_context(postgres_server()), "second")
        monkeypatch.setenv("RDUKIT_DATABASE_URL", url)
        run_rdukit("restore", str(filled.folder))
        assert not (home / "db.sqlite").exists()
        refused = run_rdukit("restore", str(filled.folder), status=6)
        assert "is not empty" in refused and "--force" in refused
        check_restored(home, filled.facts, {"RDUKIT_DATABASE_URL": url})
        run_rdukit("restore", str(filled.folder), "--force")
        stack.callback(monkeypatch.delenv, "RDUKIT_DATABASE_URL")


@pytest.mark.long
@ONE_DATABASE
def test_a_backup_is_refused_where_a_platform_runs_and_force_replaces_what_is_there(filled: Filled, home: Path) -> None:
    with platform_under_test(home, BOX, QUICK) as platform:
        platform.wait_end(platform.submit("preprocess")["id"])
        assert "a platform runs in" in run_rdukit("restore", str(filled.folder), "--force", status=6)
    assert "is not empty" in run_rdukit("restore", str(filled.folder), status=6)
    run_rdukit("restore", str(filled.folder), "--force")
    with sqlite3.connect(home / "db.sqlite") as database:
        ids = {id for (id,) in database.execute("SELECT id FROM jobs")}
    assert filled.facts["done"]["id"] in ids
    with sqlite3.connect(filled.folder / manifest_of(filled.folder)["id"] / "database.sqlite") as database:
        assert ids == {id for (id,) in database.execute("SELECT id FROM jobs")}


@ONE_DATABASE
def test_no_file_of_a_backup_may_be_damaged(filled: Filled, home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(filled.folder, copy)
    assert "verified" in run_rdukit("restore", str(copy), "--verify")
    blob = next(path for path in sorted((copy / "blobs").rglob("*")) if path.is_file() and path.stat().st_size)
    blob.chmod(0o600)
    blob.write_bytes(bytes(blob.stat().st_size))
    for options in ([], ["--verify"]):
        assert f"does not match its digest {blob.name}" in run_rdukit("restore", str(copy), *options, status=2)
    # Nothing of it is in use, and nothing starts before a whole backup was restored.
    assert not (home / "db.sqlite").exists() and not (home / "artifacts").exists()
    assert "is incomplete" in run_rdukit("up", "--port", "0", status=6)
    (copy / "manifest.json").unlink()
    assert "an incomplete one" in run_rdukit("restore", str(copy), status=2)
    cut = tmp_path / "cut.tar"
    cut.write_bytes(filled.tar.read_bytes()[:-20000])
    assert "error [invalid-argument]" in run_rdukit("restore", str(cut), status=2)


@ONE_DATABASE
def test_a_newer_backup_is_refused_and_one_of_a_newer_format(filled: Filled, home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(filled.folder, copy)
    manifest = read_manifest((copy / "manifest.json").read_bytes())
    newer = type(manifest)(**{**as_fields(manifest), "schema": "9999", "rdukit": "7.1.0"})
    (copy / "manifest.json").write_bytes(write_manifest(newer))
    told = run_rdukit("restore", str(copy), status=2)
    assert "schema 9999, which is newer" in told and "rdukit 7.1.0 or newer" in told
    (copy / "manifest.json").write_bytes(
        write_manifest(type(manifest)(**{**as_fields(manifest), "format": FORMAT + 1}))
    )
    assert f"format {FORMAT + 1}" in run_rdukit("restore", str(copy), status=2)
    assert not (home / "db.sqlite").exists()


@ONE_DATABASE
def test_a_tar_that_names_other_places_is_refused(home: Path, filled: Filled, tmp_path: Path) -> None:
    manifest = read_manifest((filled.folder / "manifest.json").read_bytes())
    outside = type(manifest.files[0])("files/../../escaped", 1, hashlib.sha256(b"x").hexdigest())
    evil = tmp_path / "evil.tar"
    data = write_manifest(type(manifest)(**{**as_fields(manifest), "files": (*manifest.files, outside)}))
    with tarfile.open(evil, "w") as tar:
        info = tarfile.TarInfo("manifest.json")
        info.size = len(data)
        tar.addfile(info, BytesIO(data))
    assert "files/../../escaped" in run_rdukit("restore", str(evil), status=2)


@ONE_DATABASE
def test_a_killed_backup_leaves_the_one_before_and_the_next_goes_on(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    run_rdukit("restore", str(filled.folder))
    place = tmp_path / "place"
    run_rdukit("backup", str(place))
    before = manifest_of(place)
    # As a kill between the new files and the new manifest leaves it.
    later = place / "bak-killed"
    later.mkdir()
    (later / "database.sqlite").write_bytes(b"half")
    run_rdukit("restore", str(place), "--verify")
    blobs = {path: path.stat().st_ino for path in (place / "blobs").rglob("*") if path.is_file()}
    run_rdukit("backup", str(place))
    after = manifest_of(place)
    assert after["id"] != before["id"] and not later.exists() and not (place / before["id"]).exists()
    assert {path: path.stat().st_ino for path in (place / "blobs").rglob("*") if path.is_file()} == blobs
    run_rdukit("restore", str(place), "--verify")


@ONE_DATABASE
def test_a_restore_that_was_killed_goes_on(filled: Filled, home: Path) -> None:
    run_rdukit("restore", str(filled.folder))
    # As a kill leaves it between the content and the database.
    backup_id = manifest_of(filled.folder)["id"]
    (home / "restoring").mkdir()
    (home / "restoring" / "backup").write_text(backup_id)
    (home / "db.sqlite").unlink()
    assert "is incomplete" in run_rdukit("up", "--port", "0", status=6)
    run_rdukit("restore", str(filled.folder))
    assert not (home / "restoring").exists() and (home / "db.sqlite").stat().st_size


@ONE_DATABASE
def test_missing_content_is_told_and_the_rest_is_backed_up(filled: Filled, home: Path, tmp_path: Path) -> None:
    run_rdukit("restore", str(filled.folder))
    blob = next(path for path in sorted((home / "artifacts/blobs").rglob("*")) if path.is_file())
    blob.unlink()
    told = run_rdukit("backup", str(tmp_path / "place.tar"), status=1)
    assert "error [content-damaged]" in told and blob.name in told
    assert blob.name in json.loads(run_rdukit("restore", "--verify", "--json", str(tmp_path / "place.tar")))["damaged"]


def manifest_of(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "manifest.json").read_bytes())
    return found


def as_fields(manifest: Any) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in manifest.__dataclass_fields__}

"""Content of artifacts over a gateway: ranges, downloads that break off, commands that fetch, verify and draw."""

import hashlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import Unavailable
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.client.http import ApiClient
from support import shows
from support.forked import run_rdukit_forked
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("artifact", "artifacts")

DATA = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            monkeypatch.setenv("RDUKIT_GATEWAY_URL", running.url)
            yield running


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_rdukit_forked(["artifact", *arguments])


def add(gateway: GatewayUnderTest, data: bytes = DATA) -> dict[str, Any]:
    sent = {"files": ("a.bin", data)}
    made: dict[str, Any] = gateway.ask("POST", "/v1/artifacts", gateway.admin, files=sent, data={"kind": "data"}).json()
    return made


def test_a_range_of_the_right_content_is_answered_and_of_other_content_refused(gateway: GatewayUnderTest) -> None:
    path = f"/v1/artifacts/{add(gateway)['id']}/content"
    answer = gateway.ask("GET", path, gateway.admin, headers={"Range": "bytes=1000-1999", "If-Match": f'"{DIGEST}"'})
    assert (answer.status_code, answer.content) == (206, DATA[1000:2000])
    assert answer.headers["content-range"] == f"bytes 1000-1999/{len(DATA)}"
    refused = gateway.ask("GET", path, gateway.admin, headers={"Range": "bytes=9-", "If-Match": f'"{"0" * 64}"'})
    assert (refused.status_code, refused.json()["error"]["code"]) == (412, "precondition-failed")
    beyond = gateway.ask("GET", path, gateway.admin, headers={"Range": f"bytes={len(DATA)}-"})
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (416, "range-not-satisfiable")
    assert gateway.ask("GET", path, gateway.admin).content == DATA


class Breaking(BaseHTTPRequestHandler):
    """Gives ``DATA`` in ranges, and breaks off each answer after ``piece`` bytes, ``cuts`` times."""

    asked: list[str] = []
    piece = 100_000
    cuts = 99

    def do_GET(self) -> None:
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.asked.append(self.headers.get("Range") or "")
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(DATA) - start))
        self.end_headers()
        is_cut = len(self.asked) <= self.cuts
        self.wfile.write(DATA[start : start + self.piece] if is_cut else DATA[start:])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Breaking, "asked", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Breaking)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_that_breaks_off_goes_on_where_it_was(breaking: str, tmp_path: Path) -> None:
    with ApiClient(breaking, "t") as client:
        client.fetch_file("/content", tmp_path / "got", DIGEST)
    assert (tmp_path / "got").read_bytes() == DATA
    assert Breaking.asked == ["", "bytes=100000-", "bytes=200000-"]
    assert [path.name for path in tmp_path.iterdir()] == ["got"]


@pytest.mark.long
def test_the_next_command_goes_on_with_what_is_there(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    made, target = add(gateway), tmp_path / "got.bin"
    part = tmp_path / f".got.bin.{DIGEST[:16]}.part"
    part.write_bytes(DATA[:5000])
    done = run("get", made["id"], "-o", str(target))
    assert (done.returncode, target.read_bytes()) == (0, DATA), done.stderr
    assert not part.exists()


def test_other_bytes_than_those_of_the_digest_are_not_kept(breaking: str, tmp_path: Path) -> None:
    part = tmp_path / f".got.{DIGEST[:16]}.part"
    part.write_bytes(b"x" * 1000)
    with ApiClient(breaking, "t") as client, pytest.raises(Unavailable, match="SHA-256"):
        client.fetch_file("/content", tmp_path / "got", DIGEST)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_and_an_empty_file_come_back(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "empty").write_bytes(b"")
    (source / "deep" / "a").write_bytes(DATA)
    made = run("add", str(source), "--kind", "data").stdout.strip()
    assert run("get", made, "-o", str(tmp_path / "target")).returncode == 0
    assert (tmp_path / "target" / "empty").read_bytes() == b""
    assert (tmp_path / "target" / "deep" / "a").read_bytes() == DATA
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_verify_finds_damage_and_names_it(gateway: GatewayUnderTest) -> None:
    sound, damaged = add(gateway), add(gateway, b"other")
    assert run("verify", sound["id"]).stdout == "1 artifacts: 1 files with 250 KiB are intact, 0 are not\n"
    path = FolderStore(gateway.platform.home.artifacts).path(damaged["digest"])
    path.chmod(0o600)
    path.write_bytes(b"ether")
    found = run("verify", "--all", "--json")
    assert found.returncode == 1
    wrong = [each for each in json.loads(found.stdout) if each["problems"]]
    assert [(each["id"], each["problems"][0]["digest"]) for each in wrong] == [(damaged["id"], damaged["digest"])]
    assert f"content of {damaged['id']} is missing or damaged" in run("verify", damaged["id"]).stderr
    assert run("verify").returncode == 2


def test_the_command_draws_a_lineage_and_a_token_without_jobs_sees_ids_only(
    gateway: GatewayUnderTest, tmp_path: Path
) -> None:
    tenant = gateway.ask("GET", "/v1/me", gateway.admin).json()["tenant"]["id"]
    compiled, trained = Example(gateway.platform.database, gateway.platform.store, tenant, time.time()).run_pipeline()
    (checkpoint,) = gateway.ask("GET", f"/v1/artifacts?job={trained}", gateway.admin).json()["artifacts"]
    target = tmp_path / "lineage.svg"
    done = run("lineage", checkpoint["id"], "-o", str(target))
    assert done.stderr == f"{target}: 4 artifacts and jobs\n"
    assert f"{gateway.url}/console/jobs/{compiled}" in target.read_text()
    refused = run("lineage", checkpoint["id"], "-o", str(tmp_path / "lineage.png"))
    assert (refused.returncode, list(tmp_path.iterdir())) == (2, [target])
    assert "expected a name that ends in .svg" in refused.stderr
    (pef,) = gateway.ask("GET", f"/v1/artifacts?job={compiled}", gateway.admin).json()["artifacts"]
    assert gateway.ask("DELETE", f"/v1/artifacts/{pef['id']}", gateway.admin).status_code == 200
    assert f"{pef['id']}  {pef['name']} (deleted)" in run("lineage", checkpoint["id"]).stdout
    narrow = gateway.token("default", "artifacts:read")
    jobs = gateway.ask("GET", f"/v1/artifacts/{checkpoint['id']}/lineage", narrow).json()["jobs"]
    assert [(job["id"], job["name"]) for job in jobs] == [(compiled, None), (trained, None)]

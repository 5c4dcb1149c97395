"""Content of artifacts as it is fetched in ranges, verified, and drawn with where it comes from."""

import hashlib
import json
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import RangeNotSatisfiable, Unavailable
from rdukit_platform.api.artifacts import read_range
from rdukit_platform.artifacts.picture import (
    MAX_NODES,
    LineageEdge,
    LineageNode,
    draw_lineage,
    graph_of,
    nearest,
    place,
)
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.client.http import ApiClient
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

DATA = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()
RDUKIT = Path(sys.executable).with_name("rdukit")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            monkeypatch.setenv("RDUKIT_GATEWAY_URL", running.url)
            yield running


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RDUKIT, "artifact", *arguments], capture_output=True, text=True, timeout=60, check=False)


def add(gateway: GatewayUnderTest, data: bytes = DATA) -> dict[str, Any]:
    sent = {"files": ("a.bin", data)}
    made: dict[str, Any] = gateway.ask("POST", "/v1/artifacts", gateway.admin, files=sent, data={"kind": "data"}).json()
    return made


@pytest.mark.parametrize(
    ("text", "found"),
    [(None, None), ("bytes=0-", (0, 10)), ("bytes=3-5", (3, 3)), ("bytes=3-99", (3, 7)), ("bytes=-4", (6, 4)),
     ("bytes=-99", (0, 10)), ("bytes=5-3", None), ("bytes=0-1,3-4", None), ("lines=1-2", None), ("bytes=-", None)],
)  # fmt: skip
def test_a_range_is_read_as_the_rfc_has_it(text: str | None, found: tuple[int, int] | None) -> None:
    assert read_range(text, 10) == found


@pytest.mark.parametrize("text", ["bytes=10-", "bytes=11-12", "bytes=-0"])
def test_a_range_behind_the_end_is_refused(text: str) -> None:
    with pytest.raises(RangeNotSatisfiable):
        read_range(text, 10)


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
    assert run("verify", sound["id"]).stdout == "1 artifacts: 1 files with 250 KiB are right, 0 are not\n"
    path = FolderStore(gateway.platform.home.artifacts).path(damaged["digest"])
    path.chmod(0o600)
    path.write_bytes(b"ether")
    found = run("verify", "--all", "--json")
    assert found.returncode == 1
    wrong = [each for each in json.loads(found.stdout) if each["problems"]]
    assert [(each["id"], each["problems"][0]["digest"]) for each in wrong] == [(damaged["id"], damaged["digest"])]
    assert f"content of {damaged['id']} is not what was kept" in run("verify", damaged["id"]).stderr
    assert run("verify").returncode == 2


def node(id: str, *, is_job: bool = False) -> LineageNode:
    return LineageNode(id, f"name of {id}", "sub", f"/console/{id}", is_job)


def test_each_node_lies_right_of_all_that_it_comes_from() -> None:
    nodes = [node(id) for id in "abcde"]
    edges = [
        LineageEdge("a", "b", ""),
        LineageEdge("b", "c", ""),
        LineageEdge("a", "c", ""),
        LineageEdge("d", "c", ""),
        LineageEdge("c", "e", ""),
    ]
    placed = place(nodes, edges)
    assert all(placed.at[edge.source][0] < placed.at[edge.target][0] for edge in edges)
    assert len(set(placed.at.values())) == len(nodes)
    assert all(x < placed.width and y < placed.height for x, y in placed.at.values())


def test_a_circle_ends_too() -> None:
    assert place([node("a"), node("b")], [LineageEdge("a", "b", ""), LineageEdge("b", "a", "")]).width > 0


def test_of_a_large_graph_the_nearest_are_drawn() -> None:
    nodes = [node(str(number)) for number in range(MAX_NODES + 5)]
    edges = [LineageEdge(str(number), str(number + 1), "") for number in range(MAX_NODES + 4)]
    assert nearest(nodes, edges, "0", 3) == {"0", "1", "2"}
    assert "and 5 further off" in draw_lineage(nodes, edges, "0")


def test_names_are_text_in_the_picture_and_deleted_ones_have_no_link() -> None:
    artifacts = [
        {"id": "art-1", "name": '<script>"&', "kind": "data", "job_id": None, "slot": None, "deleted_at": 5.0},
        {"id": "art-2", "name": "checkpoint", "kind": "checkpoint", "job_id": "job-1", "slot": "checkpoint"},
    ]
    links = [{"child": "art-2", "parent": "art-1", "slot": "dataset", "job_id": "job-1"}]
    nodes, edges = graph_of(artifacts, links, [{"id": "job-1", "name": "train", "box": "logreg", "verb": "train"}])
    assert edges == [LineageEdge("job-1", "art-2", "checkpoint"), LineageEdge("art-1", "job-1", "dataset")]
    picture = draw_lineage(nodes, edges, "art-2", "http://h", is_file=True)
    root = ElementTree.fromstring(picture)
    links_found = [a.attrib["href"] for a in root.iter("{http://www.w3.org/2000/svg}a")]
    assert links_found == ["http://h/console/artifacts/art-2", "http://h/console/jobs/job-1"]
    assert "<script" not in picture


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
    assert "legal: a name that ends in .svg" in refused.stderr
    (pef,) = gateway.ask("GET", f"/v1/artifacts?job={compiled}", gateway.admin).json()["artifacts"]
    assert gateway.ask("DELETE", f"/v1/artifacts/{pef['id']}", gateway.admin).status_code == 200
    assert f"{pef['id']}  {pef['name']} (deleted)" in run("lineage", checkpoint["id"]).stdout
    narrow = gateway.token("default", "artifacts:read")
    jobs = gateway.ask("GET", f"/v1/artifacts/{checkpoint['id']}/lineage", narrow).json()["jobs"]
    assert [(job["id"], job["name"]) for job in jobs] == [(compiled, None), (trained, None)]

"""Uploads in pieces: they go on where they broke off, and give nobody content that they have not sent."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit_platform.artifacts.sweep import collect
from rdukit_platform.artifacts.uploads import UPLOAD_KEEP_S, Uploads
from support import shows
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("artifact", "artifacts")

DATA = os.urandom(1000)
RDUKIT = Path(sys.executable).with_name("rdukit")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            monkeypatch.setenv("RDUKIT_GATEWAY_URL", running.url)
            yield running


def described(*files: tuple[str, bytes], **more: object) -> dict[str, object]:
    listed = [{"path": n, "bytes": len(d), "digest": hashlib.sha256(d).hexdigest()} for n, d in files]
    return {"kind": "data", "name": "d", "files": listed, **more}


def begin(gateway: GatewayUnderTest, token: str, *files: tuple[str, bytes], **more: object) -> dict[str, Any]:
    answer = gateway.ask("POST", "/v1/uploads", token, json=described(*files, **more))
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def put(gateway: GatewayUnderTest, token: str, upload: str, offset: int, piece: bytes, number: int = 0) -> Any:
    return gateway.ask("PUT", f"/v1/uploads/{upload}/files/{number}?offset={offset}", token, content=piece)


def test_an_upload_goes_on_where_it_was_and_is_finished_once(gateway: GatewayUnderTest) -> None:
    token = gateway.token("lab", "artifacts:read", "artifacts:write")
    upload = begin(gateway, token, ("a.bin", DATA))
    assert put(gateway, token, upload["id"], 0, DATA[:400]).json() == {"offset": 400}
    refused = put(gateway, token, upload["id"], 300, DATA[300:])
    assert (refused.status_code, refused.json()["error"]["detail"]["offset"]) == (409, 400)
    early = gateway.ask("POST", f"/v1/uploads/{upload['id']}/finish", token)
    assert (early.status_code, early.json()["error"]["detail"]["offset"]) == (409, 400)
    again = begin(gateway, token, ("a.bin", DATA))
    assert (again["id"], again["files"][0]["offset"]) == (upload["id"], 400)
    assert put(gateway, token, upload["id"], 400, DATA[400:]).json() == {"offset": 1000}
    assert put(gateway, token, upload["id"], 1000, b"x").status_code == 400
    made = [gateway.ask("POST", f"/v1/uploads/{upload['id']}/finish", token).json() for _ in range(2)]
    assert made[0] == made[1], "an answer that was lost is given again"
    assert (made[0]["digest"], made[0]["file_name"]) == (hashlib.sha256(DATA).hexdigest(), "a.bin")
    assert gateway.ask("GET", f"/v1/artifacts/{made[0]['id']}/content", token).content == DATA
    assert begin(gateway, token, ("a.bin", DATA))["files"][0]["offset"] == 0, "another artifact"


def test_a_digest_gets_nobody_content_that_they_have_not_sent(gateway: GatewayUnderTest) -> None:
    theirs, own = gateway.token("victim", "write"), gateway.token("lab", "write")
    gateway.ask("POST", "/v1/artifacts", theirs, files={"files": ("s", b"secret")}, data={"kind": "data"})
    upload = begin(gateway, own, ("s", b"secret"))
    assert upload["files"][0]["offset"] == 0
    assert gateway.ask("POST", f"/v1/uploads/{upload['id']}/finish", own).status_code == 409
    put(gateway, own, upload["id"], 0, b"guess!")
    wrong = gateway.ask("POST", f"/v1/uploads/{upload['id']}/finish", own)
    assert (wrong.status_code, "send it again" in wrong.text) == (409, True)
    assert begin(gateway, own, ("s", b"secret"))["files"][0]["offset"] == 0


def test_another_tenants_upload_is_not_told_from_none(gateway: GatewayUnderTest) -> None:
    upload = begin(gateway, gateway.token("victim", "write"), ("s", b"secret"))["id"]
    own, strange = gateway.token("lab", "write"), "upl-" + "0" * 32
    for method, path in (("GET", ""), ("PUT", "/files/0"), ("POST", "/finish"), ("DELETE", "")):
        told = gateway.refused(method, f"/v1/uploads/{upload}{path}", own)
        other = gateway.refused(method, f"/v1/uploads/{strange}{path}", own)
        assert (told[0], told[1].replace(upload, strange)) == (404, other[1])
    assert gateway.refused("GET", "/v1/uploads/..%2F..", own)[0] == 404


def test_a_folder_comes_in_pieces_and_what_is_not_legal_does_not(gateway: GatewayUnderTest) -> None:
    token = gateway.token("lab", "read", "write")
    upload = begin(gateway, token, ("b/x", b"22"), ("a", b""), folder=True)
    assert [file["path"] for file in upload["files"]] == ["a", "b/x"]
    put(gateway, token, upload["id"], 0, b"22", number=1)
    made = gateway.ask("POST", f"/v1/uploads/{upload['id']}/finish", token).json()
    assert (made["is_folder"], made["bytes"]) == (True, 2)
    for body in (described(("../x", b"1"), folder=True), described(("a", b"1"), ("a/b", b"1"), folder=True),
                 described(("a", b"1"), ("b", b"1")), described()):  # fmt: skip
        assert gateway.ask("POST", "/v1/uploads", token, json=body).status_code in {400, 422}


def test_a_quota_is_told_before_anything_comes_and_counts_what_has(
    gateway: GatewayUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_ARTIFACTS_TENANT_BYTES", "1500")
    token = gateway.token("lab", "write")
    upload = begin(gateway, token, ("a", DATA))
    put(gateway, token, upload["id"], 0, DATA)
    refused = gateway.ask("POST", "/v1/uploads", token, json=described(("b", DATA[:600])))
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "quota-exceeded")
    assert gateway.ask("DELETE", f"/v1/uploads/{upload['id']}", token).status_code == 200
    begin(gateway, token, ("b", DATA[:600]))


def test_an_upload_outlives_a_collection_and_ends_by_itself(gateway: GatewayUnderTest) -> None:
    platform, token = gateway.platform, gateway.token("lab", "write")
    upload = begin(gateway, token, ("a", DATA))
    put(gateway, token, upload["id"], 0, DATA[:10])
    collect(platform.database, platform.store, 4e9, 0.0)
    uploads = Uploads(platform.store)
    assert uploads.expire(time.time() + UPLOAD_KEEP_S - 60) == 0
    assert begin(gateway, token, ("a", DATA))["files"][0]["offset"] == 10
    assert uploads.expire(time.time() + UPLOAD_KEEP_S + 60) == 1
    assert begin(gateway, token, ("a", DATA))["files"][0]["offset"] == 0


def test_the_command_goes_on_after_it_was_killed(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    source = tmp_path / "large.bin"
    source.write_bytes(os.urandom(48 << 20))
    command = [str(RDUKIT), "artifact", "add", str(source), "--kind", "data"]
    first = subprocess.Popen(command)
    uploads = gateway.platform.home.artifacts / "uploads"
    deadline = time.monotonic() + 60
    while not (parts := [p for p in uploads.glob("*/0") if p.stat().st_size]) and time.monotonic() < deadline:
        time.sleep(0.002)
    first.send_signal(signal.SIGKILL)
    first.wait()
    asked = described(("large.bin", source.read_bytes())) | {"name": "large.bin"}
    (known,) = gateway.ask("POST", "/v1/uploads", gateway.admin, json=asked).json()["files"]
    assert known["offset"] == parts[0].stat().st_size > 0, "the command asks the same, and goes on from there"
    second = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    artifact = gateway.ask("GET", f"/v1/artifacts/{second.stdout.strip()}", gateway.admin).json()
    assert artifact["bytes"] == 48 << 20
    assert not parts[0].exists()
    assert len(list(uploads.iterdir())) == 1

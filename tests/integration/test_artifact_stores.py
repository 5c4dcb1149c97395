"""Artifacts from a real S3 server and a real HTTP server, alone and through a running box."""

import datetime
import gzip
import hashlib
import io
import os
import socket
import ssl
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from moto.server import ThreadedMotoServer

from rdukit.box.client import BoxClient
from rdukit.errors import Cancelled, InvalidArgument, NotFound, PermissionDenied, Unavailable
from rdukit_modelbox.artifacts.fetch import bring_file
from rdukit_modelbox.artifacts.mounts import Mounts
from rdukit_modelbox.artifacts.reference import parse_reference
from rdukit_modelbox.artifacts.store import ArtifactStore
from rdukit_modelbox.cli.show import inspect_running
from rdukit_platform.backends.contract import BoxSpec
from support import shows
from support.platform.warm import start_box

pytestmark = shows("modelbox")

DATA = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(DATA).hexdigest()


class Site(BaseHTTPRequestHandler):
    """Serves ``DATA`` in ways that servers do. Class attributes, since one site serves the module."""

    asked: list[str] = []
    files: dict[str, bytes] = {"/data.bin": DATA}

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
            return
        if path == "/private":
            self.send_error(403)
            return
        data = self.files.get(path if path != "/cut.bin" else "/data.bin")
        if data is None:
            self.send_error(404)
            return
        first = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - first))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()[:16]}"')
        self.end_headers()
        if with_body:
            part = data[first:]
            self.wfile.write(part[:300_000] if path == "/cut.bin" else part)
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3")
        client.create_bucket(Bucket="models")
        yield client
        client.close()
    server.stop()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    monkeypatch.setenv("RDUKIT_ARTIFACTS_REFUSED_NETWORKS", "none")
    Site.asked.clear()
    return ArtifactStore(tmp_path / "artifacts")


def fetch(store: ArtifactStore, uri: str, kind: str = "file") -> Path:
    return store.fetch(parse_reference(uri, "input 'data'"), kind)


def test_a_file_over_http_is_fetched_once_and_again_only_when_it_changed(store: ArtifactStore, site: str) -> None:
    Site.files["/changing.csv"] = b"1\n"
    first = fetch(store, f"{site}/changing.csv")
    assert (first.name, first.read_bytes()) == ("changing.csv", b"1\n")
    assert fetch(store, f"{site}/changing.csv") == first
    assert Site.asked == ["GET /changing.csv", "HEAD /changing.csv"]
    Site.files["/changing.csv"] = b"2\n"
    assert fetch(store, f"{site}/changing.csv").read_bytes() == b"2\n"
    link = store.link_of(parse_reference(f"{site}/changing.csv", "x"))
    assert (link.read_bytes(), first.read_bytes()) == (b"2\n", b"1\n")


def test_a_digest_is_checked_and_saves_asking(store: ArtifactStore, site: str) -> None:
    with pytest.raises(InvalidArgument, match=f"has sha256 {DIGEST}; expected 0000"):
        fetch(store, f"{site}/data.bin#sha256={'0' * 64}")
    assert not list((store.folder / "partial").iterdir())
    fetch(store, f"{site}/data.bin#sha256={DIGEST}")
    Site.asked.clear()
    assert fetch(store, f"{site}/other-name.bin#sha256={DIGEST}").read_bytes() == DATA
    assert Site.asked == []


def test_a_connection_that_is_cut_again_and_again_still_brings_the_whole(store: ArtifactStore, site: str) -> None:
    assert fetch(store, f"{site}/cut.bin#sha256={DIGEST}").read_bytes() == DATA
    starts = [int(asked.partition("bytes=")[2].rstrip("-") or 0) for asked in Site.asked]
    assert starts == [0, 300_000, 600_000, 900_000]


def test_many_who_ask_at_once_share_one_fetch(store: ArtifactStore, site: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: fetch(store, f"{site}/data.bin#sha256={DIGEST}"), range(8)))
    assert len(found) == 1
    assert Site.asked == ["GET /data.bin"]


def test_a_fetch_can_be_given_up_and_goes_on_later(store: ArtifactStore, site: str) -> None:
    def cancel(done: int, size: int) -> None:
        assert size in {0, len(DATA)}
        raise Cancelled("stop")

    reference = parse_reference(f"{site}/data.bin", "x")
    with pytest.raises(Cancelled):
        store.fetch(reference, "file", cancel)
    assert store.fetch(reference, "file").read_bytes() == DATA
    assert Site.asked[0] == "GET /data.bin"
    assert Site.asked[1].startswith("GET /data.bin bytes=")


def test_http_errors_are_told_apart(store: ArtifactStore, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_ARTIFACTS_ATTEMPTS", "1")
    for path, error in (("/none", NotFound), ("/private", PermissionDenied)):
        with pytest.raises(error):
            fetch(store, site + path)
    with pytest.raises(Unavailable, match=r"does not answer|cut off"):
        fetch(store, "http://127.0.0.1:9/x")
    monkeypatch.setenv("RDUKIT_ARTIFACTS_MAX_BYTES", "1000")
    with pytest.raises(InvalidArgument, match="up to 1000"):
        fetch(store, f"{site}/data.bin")


def test_this_machine_is_refused_by_default_also_by_a_name_and_by_a_redirect(
    store: ArtifactStore, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = site.rpartition(":")[2]
    monkeypatch.setenv("RDUKIT_ARTIFACTS_REFUSED_NETWORKS", "169.254.0.0/16")
    with pytest.raises(PermissionDenied, match=r"169\.254\.0\.0/16, from which boxes never fetch"):
        fetch(store, f"{site}/to/http://169.254.169.254/latest/meta-data/")
    with pytest.raises(PermissionDenied, match="another scheme"):
        fetch(store, f"{site}/to/file:///etc/passwd")
    with pytest.raises(InvalidArgument, match="redirects more than 5 times"):
        fetch(store, f"{site}/to/{site}/to/{site}/to/{site}/to/{site}/to/{site}/to/{site}/data.bin")
    assert fetch(store, f"{site}/to/{site}/data.bin").read_bytes() == DATA
    monkeypatch.delenv("RDUKIT_ARTIFACTS_REFUSED_NETWORKS")
    Site.asked.clear()
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0"):
        with pytest.raises(PermissionDenied, match="boxes never fetch"):
            fetch(store, f"http://{host}:{port}/data.bin")
    assert Site.asked == []
    monkeypatch.setenv("RDUKIT_ARTIFACTS_ALLOWED_NETWORKS", "127.0.0.0/16")
    assert fetch(store, f"http://localhost:{port}/data.bin").read_bytes() == DATA
    with pytest.raises(PermissionDenied, match=r"artifacts\.allowed_networks"):
        fetch(store, f"http://127.1.0.1:{port}/data.bin")


def test_a_name_that_means_another_address_the_next_time_gains_nothing(
    store: ArtifactStore, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: what is looked up for the check is what is connected to, once."""
    port = int(site.rpartition(":")[2])
    answers = iter(["192.0.2.1", "127.0.0.1", "127.0.0.1"])  # the first is nobody's
    asked: list[str] = []

    def look_up(host: str, *arguments: object, **named: object) -> list[object]:
        asked.append(next(answers))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (asked[-1], port))]

    monkeypatch.delenv("RDUKIT_ARTIFACTS_REFUSED_NETWORKS")
    monkeypatch.setenv("RDUKIT_ARTIFACTS_ALLOWED_NETWORKS", "192.0.2.0/24")
    monkeypatch.setenv("RDUKIT_ARTIFACTS_TIMEOUT_S", "0.2")
    monkeypatch.setenv("RDUKIT_ARTIFACTS_ATTEMPTS", "1")
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    Site.asked.clear()
    with pytest.raises(Unavailable):
        fetch(store, f"http://rebinding.example:{port}/data.bin")
    with pytest.raises(PermissionDenied, match="boxes never fetch"):
        fetch(store, f"http://rebinding.example:{port}/data.bin")
    assert Site.asked == [] and asked[0] == "192.0.2.1"


def test_https_needs_a_certificate_that_is_trusted(
    store: ArtifactStore, site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = tmp_path / "certificate.pem"
    certificate.write_bytes(self_signed("localhost"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        uri = f"https://localhost:{server.server_address[1]}"
        with pytest.raises(PermissionDenied, match="does not trust the certificate"):
            fetch(store, f"{uri}/data.bin")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert fetch(store, f"{uri}/data.bin").read_bytes() == DATA
        with pytest.raises(PermissionDenied, match="redirects from https to http"):
            fetch(store, f"{uri}/to/{site}/data.bin")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_archive_is_a_folder(store: ArtifactStore, site: str) -> None:
    Site.files["/set.tar.gz"] = archive({"set/train.csv": b"1,2\n", "set/deep/test.csv": b"3\n"})
    folder = fetch(store, f"{site}/set.tar.gz", "folder")
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.csv")) == [
        "deep/test.csv",
        "train.csv",
    ]
    Site.files["/evil.tar.gz"] = archive({"../../evil": b"x"})
    with pytest.raises(InvalidArgument, match="leads out"):
        fetch(store, f"{site}/evil.tar.gz", "folder")
    assert not list(store.folder.rglob("evil"))
    with pytest.raises(InvalidArgument, match="not a folder"):
        fetch(store, f"{site}/data.bin", "folder")


def test_the_longest_unused_make_room(store: ArtifactStore, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fetch(store, f"{site}/changing.csv"), fetch(store, f"{site}/data.bin")
    monkeypatch.setenv("RDUKIT_ARTIFACTS_CACHE_BYTES", "1000")
    fetch(store, f"{site}/changing.csv")
    assert old.exists() and new.exists(), "both were used a moment ago"
    long_ago = time.time() - 7200
    os.utime(new.parent, (long_ago, long_ago))
    fetch(store, f"{site}/changing.csv")
    assert old.exists() and not new.exists()
    assert fetch(store, f"{site}/data.bin").read_bytes() == DATA


def test_objects_and_prefixes_of_s3_are_fetched(store: ArtifactStore, s3: Any) -> None:
    s3.put_object(Bucket="models", Key="mlp/mlp.pef", Body=DATA)
    s3.put_object(Bucket="models", Key="set/train.csv", Body=b"1\n")
    s3.put_object(Bucket="models", Key="set/deep/", Body=b"")
    s3.put_object(Bucket="models", Key="set/deep/test.csv", Body=b"2\n")
    assert fetch(store, f"s3://models/mlp/mlp.pef#sha256={DIGEST}").read_bytes() == DATA
    folder = fetch(store, "s3://models/set/", "folder")
    assert (folder / "deep/test.csv").read_bytes() == b"2\n"
    assert fetch(store, "s3://models/set/", "folder") == folder
    s3.put_object(Bucket="models", Key="set/train.csv", Body=b"3\n")
    assert (fetch(store, "s3://models/set/", "folder") / "train.csv").read_bytes() == b"3\n"
    assert (folder / "train.csv").read_bytes() == b"1\n"
    for uri in ("s3://models/none", "s3://no-such-bucket/x", "s3://models/nothing/"):
        with pytest.raises(NotFound):
            fetch(store, uri, "any")
    with pytest.raises(InvalidArgument, match="is a prefix"):
        fetch(store, "s3://models/set/")


def test_keys_that_lead_out_of_a_prefix_are_refused(store: ArtifactStore, s3: Any) -> None:
    s3.put_object(Bucket="models", Key="bad/x/../../../evil", Body=b"x")
    with pytest.raises(InvalidArgument, match="not a path below it"):
        fetch(store, "s3://models/bad/", "folder")


def test_an_s3_server_that_is_down_is_told(store: ArtifactStore, s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_ARTIFACTS_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="cut off 1 times"):
        fetch(store, "s3://models/mlp/mlp.pef")


@pytest.mark.long
async def test_a_server_of_models_has_its_files_fetched_apart(store: ArtifactStore, s3: Any) -> None:
    s3.put_object(Bucket="models", Key="served/mlp.pef", Body=DATA)
    s3.put_object(Bucket="models", Key="served/weights.pt", Body=b"x")
    mounts = Mounts([store.folder.parent])
    path = await bring_file(mounts, f"s3://models/served/mlp.pef#sha256={DIGEST}", "parameter 'pef'")
    assert path.read_bytes() == DATA
    assert await bring_file(mounts, str(path), "parameter 'pef'") == path
    with pytest.raises(NotFound, match="s3://models/none"):
        await bring_file(mounts, "s3://models/none", "parameter 'pef'")
    with pytest.raises(InvalidArgument, match=r"parameter 'checkpoint'.*is a pickle"):
        await bring_file(mounts, "s3://models/served/weights.pt", "parameter 'checkpoint'")


def test_without_boto3_s3_says_what_to_install(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(Unavailable, match=r"pip install 'rdukit\[s3\]'"):
        fetch(store, "s3://models/x")


@pytest.mark.long
def test_a_box_takes_its_data_from_http_and_leaves_its_outputs_in_s3(
    site: str, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_ARTIFACTS_REFUSED_NETWORKS", "none")
    Site.files["/digits.tar.gz"] = archive(idx_files())
    digest = hashlib.sha256(Site.files["/digits.tar.gz"]).hexdigest()
    # A box has nothing of the kind by itself, whoever starts it.
    given = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "RDUKIT_ARTIFACTS_"))}
    box = start_box(BoxSpec("logreg", tmp_path / "state", environment=given))
    try:
        with BoxClient(box.rest_url) as client:
            told = inspect_running(box.rest_url)
            assert (told["health"]["status"], told["description"]["name"]) == ("ready", "logreg")
            inputs: dict[str, Any] = {"data": {"uri": f"{site}/digits.tar.gz", "sha256": digest}}
            done = client.wait(client.submit("preprocess", {}, inputs, "s3://models/runs/7")["id"])
            assert done["state"] == "succeeded", (done, box.logs())
            assert done["outputs"] == {"dataset": "s3://models/runs/7/dataset/"}
            again = client.wait(client.submit("preprocess", {}, {"data": f"{site}/none.tar.gz"})["id"])
            assert again["error"]["code"] == "not-found"
            pickled = tmp_path / "state" / "pickled"
            pickled.mkdir()
            (pickled / "weights.pt").write_bytes(b"\x80\x02}.")
            refused = client.wait(client.submit("preprocess", {}, {"data": "pickled"})["id"])
            assert "is a pickle" in refused["error"]["message"]
            with pytest.raises(InvalidArgument, match="must not hold a user"):
                client.submit("preprocess", {}, {"data": "http://me:secret@host/x"})
    finally:
        box.stop()
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket="models", Prefix="runs/7/")["Contents"]]
    assert "runs/7/dataset/manifest.json" in keys


def self_signed(host: str) -> bytes:
    """A key and its certificate, valid for an hour."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return certificate.public_bytes(pem) + key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def archive(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(stream.getvalue(), mtime=0)


def idx_files() -> dict[str, bytes]:
    """64 images of 28 x 28 for each split, in MNIST's names."""
    images = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (64, 28, 28)) + bytes(64 * 784)
    labels = b"\0\0\x08\x01" + (64).to_bytes(4, "big") + bytes(n % 10 for n in range(64))
    return {
        f"digits/{split}-{what}": data
        for split in ("train", "t10k")
        for what, data in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels))
    }

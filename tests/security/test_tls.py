"""TLS of gateway, box and SNML with an authority made here: trusted callers are served, and nobody else is."""

import contextlib
import datetime
import ipaddress
import json
import socket
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rdukit.box.client import BoxClient
from rdukit.errors import InvalidArgument, Unavailable
from rdukit.http.tls import client_context, find_server_files, make_server_context
from rdukit_node.snml.client import SnmlClient
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBackend, ProcessBox
from rdukit_platform.client.http import ApiClient
from rdukit_platform.db.engine import Database
from rdukit_platform.jobs.broker import Notifier
from support import shows, wait_until
from support.helpers import RawCaller
from support.node.daemons import start_daemon, stop_daemon
from support.platform.processes import platform_under_test, short_folder
from support.platform.warm import start_box
from support.tiers import first_short

pytestmark = shows("security", "snml")

BOX = Path(__file__).parents[1] / "integration" / "platform_box.py"


class Authority:
    """An authority, and what it signs, as PEM files in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._build(self._subject, self._key.public_key(), is_authority=True)
        self.file = self._write(f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str) -> tuple[str, str]:
        """Files with a certificate for this machine and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = self._build(subject, key.public_key(), is_authority=False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        written = certificate.public_bytes(serialization.Encoding.PEM)
        return self._write(f"{self._name}-{name}.pem", written), self._write(f"{self._name}-{name}.key", private)

    def _build(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder().subject_name(subject).issuer_name(self._subject).public_key(key)
            .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip

    def _write(self, name: str, data: bytes) -> str:
        path = self._folder / name
        path.write_bytes(data)
        return str(path)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ours")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "foreign")


def as_caller(monkeypatch: pytest.MonkeyPatch, authority: Authority, signed: Authority | None = None) -> None:
    """Trust ``authority``, with a certificate of ``signed``."""
    monkeypatch.setenv("RDUKIT_TLS_CA", authority.file)
    certificate, key = ("", "") if signed is None else signed.sign("caller")
    monkeypatch.setenv("RDUKIT_TLS_CERTIFICATE", certificate)
    monkeypatch.setenv("RDUKIT_TLS_KEY", key)


@pytest.fixture(scope="module")
def box(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    """A cold one, which asks its callers for certificates, too."""
    certificate, key = ours.sign("box")
    environment = {
        "RDUKIT_BOX_TLS_CERTIFICATE": certificate, "RDUKIT_BOX_TLS_KEY": key, "RDUKIT_BOX_TLS_CA": ours.file,
    }  # fmt: skip
    box = ProcessBackend().start(BoxSpec("logreg", tmp_path_factory.mktemp("box"), environment=environment))
    yield box
    box.stop()


def test_a_box_serves_who_has_a_certificate_of_its_authority(
    box: ProcessBox, ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_caller(monkeypatch, ours, ours)
    assert box.rest_url.startswith("https://127.0.0.1:")
    with BoxClient(box.rest_url) as client:
        assert client.describe()["name"] == "logreg"
    assert box.is_ready()


@pytest.mark.parametrize("who", ["trusts another authority", "has no certificate", "has one of another authority"])
def test_a_box_serves_nobody_else(
    box: ProcessBox, ours: Authority, foreign: Authority, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    if who == "trusts another authority":
        as_caller(monkeypatch, foreign, ours)
    else:
        as_caller(monkeypatch, ours, None if who == "has no certificate" else foreign)
    with BoxClient(box.rest_url) as client, pytest.raises(Unavailable):
        client.describe()


def test_plain_requests_are_not_answered_and_old_versions_not_spoken(box: ProcessBox, ours: Authority) -> None:
    host, _, port = box.rest_url.removeprefix("https://").partition(":")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{host}:{port}/health/live", trust_env=False, timeout=10)
    files = find_server_files(*ours.sign("server"), "", "box")
    assert files is not None
    for context in (make_server_context(files), client_context(ours.file)):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_grpc_of_a_box_has_the_same(box: ProcessBox, ours: Authority, foreign: Authority) -> None:
    request = health_pb2.HealthCheckRequest(service="rdukit.modelbox.v1.ModelBox")

    def check(signer: Authority | None) -> int:
        pair = (None, None) if signer is None else signer.sign("grpc")
        certificate, key = (None if each is None else Path(each).read_bytes() for each in pair)
        credentials = grpc.ssl_channel_credentials(Path(ours.file).read_bytes(), key, certificate)
        with grpc.secure_channel(box.grpc_address, credentials) as channel:
            return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=20).status)

    assert check(ours) == health_pb2.HealthCheckResponse.SERVING
    for stranger in (None, foreign):
        with pytest.raises(grpc.RpcError) as caught:
            check(stranger)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.fixture(scope="module", params=["gateway", "box"])
def hasty(request: pytest.FixtureRequest, ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server that waits for nobody."""
    certificate, key = ours.sign("hasty")
    part = request.param.upper()
    settings = {
        f"RDUKIT_{part}_TLS_CERTIFICATE": certificate, f"RDUKIT_{part}_TLS_KEY": key, "RDUKIT_TLS_CA": ours.file,
        f"RDUKIT_{part}_SILENCE_S": "2",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        as_caller(patch, ours)
        if request.param == "gateway":
            with short_folder() as home, platform_under_test(home, BOX, settings) as running:
                yield running.running["url"]
            return
        box = start_box(BoxSpec("logreg", tmp_path_factory.mktemp("box"), environment=settings))
        yield box.rest_url
        box.stop()


@pytest.fixture(scope="module")
def patient(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    """A box that waits for long, with room for a few of one address and a few more of all."""
    certificate, key = ours.sign("patient")
    settings = {
        "RDUKIT_BOX_TLS_CERTIFICATE": certificate, "RDUKIT_BOX_TLS_KEY": key, "RDUKIT_TLS_CA": ours.file,
        "RDUKIT_BOX_SILENCE_S": "3600", "RDUKIT_BOX_ADDRESS_CONNECTIONS": "4", "RDUKIT_BOX_MAX_CONNECTIONS": "8",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        as_caller(patch, ours)
        box = start_box(BoxSpec("logreg", tmp_path_factory.mktemp("box"), environment=settings))
        yield box
        box.stop()


def hello() -> bytes:
    """What a client says first."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


def is_served(url: str, ours: Authority, source: str) -> bool:
    """Whether an honest caller at the address ``source`` is answered."""
    transport = httpx.HTTPTransport(verify=client_context(ours.file), local_address=source)
    with httpx.Client(transport=transport, timeout=60) as client:
        return client.get(f"{url}/health/live").status_code == 200


def closed(connections: Sequence[socket.socket]) -> list[int]:
    """Which of them the server has closed."""
    found = []
    for number, connection in enumerate(connections):
        connection.setblocking(False)
        try:
            while connection.recv(65536):
                pass
            found.append(number)
        except BlockingIOError:
            pass
        except ConnectionResetError:
            found.append(number)
    return found


@pytest.mark.parametrize("part", first_short(["half a hello", "nothing", "no answer to the server's", "no TLS"]))
def test_a_handshake_that_does_not_end_is_not_waited_for(hasty: str, ours: Authority, part: str) -> None:
    sent = {
        "nothing": b"", "half a hello": hello()[:60], "no answer to the server's": hello(), "no TLS": b"GET / HTTP/1.1",
    }[part]  # fmt: skip
    with contextlib.closing(RawCaller(hasty)) as caller:
        half = [caller.connect(sent) for _ in range(3)]
        assert is_served(hasty, ours, "127.0.0.1")
        wait_until(lambda: len(closed(half)) == 3, 30, "they are closed")


@pytest.mark.parametrize("part", ["nothing", "half a hello", "no answer to the server's"])
def test_handshakes_count_among_the_connections_of_an_address_and_of_all(
    patient: ProcessBox, ours: Authority, part: str
) -> None:
    sent = {"nothing": b"", "half a hello": hello()[:60], "no answer to the server's": hello()}[part]
    with contextlib.closing(RawCaller(patient.rest_url)) as caller:
        of_one = [caller.connect(sent) for _ in range(7)]
        wait_until(lambda: closed(of_one) == [0, 1, 2], what="beyond an address's most, the oldest goes")
        assert is_served(patient.rest_url, ours, "127.0.0.9")
        assert is_served(patient.rest_url, ours, "127.0.0.1"), "of the attacker's address, too"
        wait_until(lambda: closed(of_one) == [0, 1, 2, 3], what="that took the place of one of its")
        others = [caller.connect(sent, f"127.0.1.{number}") for number in range(1, 12)]
        wait_until(lambda: len(closed(of_one + others)) == 10, what="beyond the most of all, the oldest go")
        assert is_served(patient.rest_url, ours, "127.0.0.9")


@pytest.mark.long
def test_a_connection_whose_end_is_not_answered_is_closed_all_the_same(hasty: str, ours: Authority) -> None:
    host, _, port = hasty.removeprefix("https://").partition(":")
    with socket.create_connection((host, int(port)), 60) as plain:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        speaking = client_context(ours.file).wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                speaking.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(65536))
        plain.sendall(outgoing.read())
        wait_until(lambda: closed([plain]) == [0], 25, "it idled, and does not say that it ends")


def test_half_open_connections_to_grpc_are_closed(patient: ProcessBox) -> None:
    with contextlib.closing(RawCaller(f"https://{patient.grpc_address}")) as caller:
        half = [caller.connect(sent) for sent in (b"", hello()[:60], hello())]
        wait_until(lambda: len(closed(half)) == 3, 60, "they are closed")


def test_the_gateway_and_its_callers_speak_tls(
    ours: Authority, foreign: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = ours.sign("gateway")
    as_caller(monkeypatch, ours, ours)
    variables = {
        "RDUKIT_GATEWAY_TLS_CERTIFICATE": certificate, "RDUKIT_GATEWAY_TLS_KEY": key, "RDUKIT_TLS_CA": ours.file,
        "RDUKIT_GATEWAY_TLS_CA": ours.file,
    }  # fmt: skip
    with short_folder() as home, platform_under_test(home, BOX, variables) as platform:
        assert platform.running["url"].startswith("https://")
        ended = platform.wait_end(platform.submit("preprocess")["id"])
        assert ended["state"] == "succeeded"
        as_caller(monkeypatch, foreign)
        with ApiClient(platform.running["url"], "any") as stranger, pytest.raises(Unavailable):
            stranger.get("/v1/me")


def test_snml_speaks_tls_on_its_port(ours: Authority, foreign: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = ours.sign("snml")
    settings = {
        "RDUKIT_SNML_TLS_CERTIFICATE": certificate, "RDUKIT_SNML_TLS_KEY": key, "RDUKIT_SNML_TLS_CA": ours.file,
    }  # fmt: skip
    with short_folder() as home:
        daemon = start_daemon(home, more=["--snml-port", "0", "--announce", str(home / "node.json")], settings=settings)
        try:
            port = json.loads((home / "node.json").read_text())["snml_port"]
            as_caller(monkeypatch, ours, ours)
            with SnmlClient(f"127.0.0.1:{port}", timeout_s=20) as client:
                assert client.ask("GetSystemVersionInfo") is not None
            as_caller(monkeypatch, ours, foreign)
            with SnmlClient(f"127.0.0.1:{port}", timeout_s=5) as client, pytest.raises(Unavailable):
                client.ask("GetSystemVersionInfo")
        finally:
            assert stop_daemon(daemon) == 0


@pytest.mark.parametrize("wrong", ["no key", "another key", "no file", "no certificate", "wrong authority"])
def test_files_that_do_not_fit_are_refused_before_anything_is_served(
    ours: Authority, foreign: Authority, tmp_path: Path, wrong: str
) -> None:
    certificate, key = ours.sign("server")
    _, other = foreign.sign("server")
    (tmp_path / "empty").touch()
    files = {
        "no key": (certificate, "", ""), "another key": (certificate, other, ""),
        "no file": (certificate, str(tmp_path / "none"), ""), "no certificate": ("", key, ours.file),
        "wrong authority": (certificate, key, str(tmp_path / "empty")),
    }[wrong]  # fmt: skip
    with pytest.raises(InvalidArgument, match=r"belong together|cannot be used"):
        find_server_files(*files, "box")
    assert find_server_files("", "", "", "box") is None


def test_urls_of_broker_and_database_keep_their_tls_parameters(ours: Authority) -> None:
    notifier = Notifier(f"rediss://broker.example:6390/0?ssl_cert_reqs=required&ssl_ca_certs={ours.file}")
    made = notifier._client.connection_pool.make_connection()
    assert (made.ca_certs, made.cert_reqs) == (ours.file, ssl.CERT_REQUIRED)
    notifier.close()
    database = Database(f"postgresql+psycopg://u@db.example/x?sslmode=verify-full&sslrootcert={ours.file}")
    _, arguments = database.engine.dialect.create_connect_args(database.engine.url)
    assert (arguments["sslmode"], arguments["sslrootcert"]) == ("verify-full", ours.file)
    database.close()

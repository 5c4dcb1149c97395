"""The broker of the Compose file: who is in its network, and that it answers nobody without its password."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rdukit.errors import InvalidArgument, Unavailable
from rdukit_platform.jobs.broker import Notifier
from rdukit_platform.setting_texts import with_password
from rdukit_platform.settings import Home
from support import shows, wait_until

pytestmark = shows("containers", "security")

COMPOSE = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text())
WORKERS = {"worker", "worker-two"}
TRUSTED = {"gateway", "scheduler"} | WORKERS


def services_with(**wanted: str) -> set[str]:
    """Services whose lists of these names have these entries."""
    return {
        name
        for name, service in COMPOSE["services"].items()
        if all(any(str(entry).startswith(value) for entry in service.get(key, ())) for key, value in wanted.items())
    }


def test_only_gateway_scheduler_and_workers_share_a_network_with_broker_and_database() -> None:
    assert services_with(networks="queue") == {"broker"} | TRUSTED
    assert services_with(networks="tables") == {"database"} | TRUSTED
    assert COMPOSE["networks"]["queue"]["internal"] and COMPOSE["networks"]["tables"]["internal"]
    assert services_with(volumes="password:") == {"broker"} | TRUSTED
    assert services_with(volumes="password:/run/broker:ro") == TRUSTED
    assert {COMPOSE["services"][name]["network_mode"] for name in ("snd", "snd-two")} == {"none"}


def test_only_the_worker_gets_the_engine_where_jobs_are_containers() -> None:
    boxes = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.boxes.yml").read_text())
    assert set(boxes["services"]) == {"worker"}
    worker = boxes["services"]["worker"]
    assert [text.rpartition(":")[2] for text in worker["volumes"]] == ["/run/engine.sock"]
    assert worker["environment"]["DOCKER_HOST"] == "unix:///run/engine.sock"
    assert worker["environment"]["RDUKIT_WORKER_BOX_BACKEND"] == "docker"
    homes = {text.partition(":")[2] for text in COMPOSE["services"]["worker"]["volumes"] if text.startswith("home:")}
    assert homes == {boxes["volumes"]["home"]["driver_opts"]["device"]}, "one path for engine and worker"


def test_the_keys_of_a_bucket_and_the_way_to_it_are_the_platforms_alone() -> None:
    bucket = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.bucket.yml").read_text())
    assert set(bucket["services"]) == TRUSTED
    assert bucket["networks"] == {"bucket": {}}, "with a way out"
    for service in bucket["services"].values():
        assert service["networks"] == ["bucket"]
        assert service["environment"]["RDUKIT_ARTIFACTS_STORE"].startswith("${RDUKIT_ARTIFACTS_STORE:?")
        assert {name for name in service["environment"] if name.startswith("AWS_")} == {
            "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
        }  # fmt: skip
    for name, service in COMPOSE["services"].items():
        assert not [key for key in service.get("environment") or () if key.startswith("AWS_")], name


def test_the_exporter_reads_the_nodes_home_and_is_in_the_network_of_those_that_watch_alone() -> None:
    exporter = COMPOSE["services"]["exporter"]
    assert exporter["volumes"] == ["home:/var/lib/rdukit:ro"]
    assert exporter["networks"] == ["watch"] and COMPOSE["networks"]["watch"]["internal"]
    assert "ports" not in exporter


def test_only_workers_may_open_the_namespaces_of_fences() -> None:
    options = {name: set(service["security_opt"]) for name, service in COMPOSE["services"].items()}
    unconfined = {"seccomp=unconfined", "systempaths=unconfined", "apparmor=unconfined"}
    for name in WORKERS:
        assert options.pop(name) == {"no-new-privileges:true"} | unconfined, name
    assert set(map(frozenset, options.values())) == {frozenset({"no-new-privileges:true"})}


def test_nobody_else_hears_where_broker_and_database_are() -> None:
    for name, service in COMPOSE["services"].items():
        told = {key for key in service["environment"] if "BROKER_URL" in key or "DATABASE_URL" in key}
        assert bool(told) == (name in TRUSTED), name


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The broker's command of the file, in a folder and at a port of this test."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    *_, script = COMPOSE["services"]["broker"]["command"]
    script = script.replace("port 6379", f"port {port}").replace("dir /data", f"dir {tmp_path}")
    assert "6379" not in script and "/data" not in script
    password = tmp_path / "password"
    environment = {**os.environ, "RDUKIT_BROKER_PASSWORD_FILE": str(password)}
    process = subprocess.Popen([sys.executable, "-c", script.replace("0.0.0.0", "127.0.0.1")], env=environment)
    try:
        wait_until(lambda: ask(port) != b"")
        yield port, password
    finally:
        process.kill()
        process.wait()


def ask(port: int) -> bytes:
    """What the broker answers somebody without a password."""
    try:
        with socket.create_connection(("127.0.0.1", port), 3) as caller:
            caller.sendall(b"PING\r\n")
            return caller.recv(64)
    except OSError:
        return b""


def test_the_broker_answers_whoever_has_its_password_and_nobody_else(
    broker: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, password = broker
    assert ask(port).startswith(b"-NOAUTH")
    (probe,) = [text for text in health_check() if "NOAUTH" in text]
    assert "-NOAUTH" in probe, "the check of health does not need it"
    assert stat.S_IMODE(password.stat().st_mode) == 0o600 and len(password.read_text()) >= 32
    monkeypatch.setenv("RDUKIT_BROKER_URL", f"redis://127.0.0.1:{port}/0")
    monkeypatch.setenv("RDUKIT_BROKER_PASSWORD_FILE", str(password))
    notifier = Notifier(Home(password.parent).broker_url())
    try:
        assert notifier.is_up()
    finally:
        notifier.close()
    arguments: list[Any] = [
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)
    ]
    assert not any(password.read_bytes() in words for words in arguments)


def health_check() -> list[str]:
    """The words of the broker's check."""
    return [str(word) for word in COMPOSE["services"]["broker"]["healthcheck"]["test"]]


def test_a_password_goes_into_the_url_and_none_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_password("redis://broker:6379/0", "a/b@c") == "redis://:a%2Fb%40c@broker:6379/0"
    for url in ("redis://:old@broker/0", "broker"):
        with pytest.raises(InvalidArgument, match=r"broker\.url"):
            with_password(url, "x")
    monkeypatch.setenv("RDUKIT_BROKER_PASSWORD_FILE", str(tmp_path / "none"))
    with pytest.raises(Unavailable, match=r"broker\.password_file"):
        Home(tmp_path).broker_url()

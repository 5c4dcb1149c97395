"""``rdukit up`` as a user starts it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from rdukit_node.telemetry.exporter import METRICS as NODE_METRICS
from support import shows
from support.platform.processes import has_ended, platform_under_test, short_folder

pytestmark = shows("up", "status", "job", "health")

MONITORING = Path(__file__).parents[2] / "charts/rdukit/files"
RDUKIT = [sys.executable, "-c", "from rdukit.cli import main; main()"]


@pytest.fixture
def home() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


def run_rdukit(home: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """One ``rdukit`` command in a fresh process."""
    environment = {**os.environ, "RDUKIT_HOME": str(home), **settings}
    return subprocess.run(
        [*RDUKIT, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_up_gets_ready_refuses_a_second_and_stops_all(home: Path) -> None:
    with platform_under_test(home) as platform:
        health = httpx.get(f"{platform.running['url']}/health", trust_env=False).json()
        assert health["status"] == "ready"
        assert all(health["parts"].values())
        assert httpx.get(f"{platform.running['url']}/docs", trust_env=False).status_code == 200
        assert run_rdukit(home, "status", "platform", "node").returncode == 0
        told = platform.client._http.get("/metrics").raise_for_status().text
        known = {line.split()[2] for line in told.splitlines() if line.startswith("# TYPE ")}
        assert metrics_of_monitoring() - NODE_METRICS.keys() <= known, "what dashboards and alerts ask for is told"
        second = run_rdukit(home, "up", "--port", "0")
        assert second.returncode == 6
        assert f"already runs in {home}" in second.stderr
        listed = run_rdukit(home, "job", "list", "--json")
        assert listed.returncode == 0, listed.stderr
        more = ("--priority", "2", "--run-limit", "10m", "--label", "project=genes")
        job = run_rdukit(home, "job", "submit", "logreg", "compile", *more).stdout.strip()
        found = json.loads(run_rdukit(home, "job", "list", "--label", "project=genes", "--json").stdout)["jobs"]
        assert [(one["id"], one["priority"], one["run_limit_s"]) for one in found] == [(job, 2, 600.0)]
        why = run_rdukit(home, "job", "why", job)
        assert why.stdout.startswith("state "), why.stderr
        assert run_rdukit(home, "job", "cancel", job).returncode in {0, 6}
        pids = platform.running["pids"]
        assert set(pids) == {"services", "valkey", "snd", "gateway", "scheduler", "worker"}
        os.kill(platform.running["pid"], signal.SIGINT)  # Ctrl-C
        assert has_ended(platform.running["pid"])
    assert all(has_ended(pid) for pid in pids.values())
    assert not (home / "run" / "platform.json").exists()


def metrics_of_monitoring() -> set[str]:
    """Names of the metrics that dashboards and alerts ask for; those of a histogram by its own name."""
    files = [MONITORING / "alerts.yaml", *(MONITORING / "dashboards").glob("*.json")]
    asked = set().union(*(re.findall(r"\brdukit_\w+\b(?![^{}]*\")", file.read_text()) for file in files))
    return {name.removesuffix("_bucket") for name in asked}


@pytest.mark.long
def test_the_status_of_a_platform_that_is_on_its_way_or_away_is_no_success(home: Path) -> None:
    assert run_rdukit(home, "status").returncode == 0, "nothing is asked for, and nothing is wrong"
    away = run_rdukit(home, "status", "platform")
    assert (away.returncode, "not running; start one: rdukit up" in away.stdout) == (7, True)
    with subprocess.Popen([sys.executable, "-c", "input()", "up"], stdin=subprocess.PIPE) as coming:
        (home / "run").mkdir(mode=0o700, exist_ok=True)
        (home / "run" / "up.lock").write_text(str(coming.pid))
        (home / "token").write_text("of an earlier start")
        for arguments in ((), ("platform",)):
            told = run_rdukit(home, "status", *arguments)
            assert (told.returncode, "platform  not ready yet; its logs are in" in told.stdout) == (7, True)
        with socket.create_server(("127.0.0.1", 0)) as other:
            asked = run_rdukit(home, "job", "list", RDUKIT_GATEWAY_PORT=str(other.getsockname()[1]))
            other.setblocking(False)
            assert "is starting; rdukit status shows when it is ready" in asked.stderr
            with pytest.raises(BlockingIOError):  # nobody else gets the token of this home folder
                other.accept()
        coming.communicate(b"\n")
    assert "not running" in run_rdukit(home, "status", "platform").stdout, "its lock is left"
    assert "expected node, platform, box" in run_rdukit(home, "status", "gateway").stderr


def talk_otherwise(listener: socket.socket) -> None:
    """Answer each connection as a program that speaks no HTTP."""
    with suppress(OSError):
        while True:
            with listener.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-other\r\n")


@pytest.mark.long
def test_another_program_at_the_gateways_port_is_no_platform_that_was_not_started(home: Path) -> None:
    (home / "token").write_text("of an earlier start")
    (home / "token").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        talk = threading.Thread(target=talk_otherwise, args=(other,))
        talk.start()
        told = run_rdukit(home, "status", RDUKIT_GATEWAY_PORT=str(port))
        other.shutdown(socket.SHUT_RDWR)
        talk.join()
    assert (told.returncode, f":{port} is not a gateway" in told.stdout) == (7, True), told.stdout


def test_a_taken_port_is_named(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_rdukit(home, "up", "--port", str(port))
    assert done.returncode == 6
    assert f"127.0.0.1:{port}" in done.stderr


def test_a_home_too_long_for_sockets_is_refused(home: Path) -> None:
    done = run_rdukit(home / ("x" * 90), "up", "--port", "0")
    assert done.returncode == 2
    assert "too long" in done.stderr


def test_commands_without_a_platform_say_how_to_start_one(home: Path) -> None:
    for arguments in (("job", "list"), ("artifact", "list")):
        done = run_rdukit(home, *arguments)
        assert done.returncode == 7
        assert "rdukit up" in done.stderr

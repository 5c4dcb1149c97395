"""``rdukit up`` as a user starts it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.platform.processes import has_ended, platform_under_test, short_folder

RDUKIT = [sys.executable, "-c", "from rdukit.cli import main; main()"]


@pytest.fixture
def home() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


def run_rdukit(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One ``rdukit`` command in a fresh process."""
    environment = {**os.environ, "RDUKIT_HOME": str(home)}
    return subprocess.run(
        [*RDUKIT, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_up_gets_ready_refuses_a_second_and_stops_all(home: Path) -> None:
    with platform_under_test(home) as platform:
        health = httpx.get(f"{platform.running['url']}/health", trust_env=False).json()
        assert health["status"] == "ready"
        assert all(health["parts"].values())
        assert httpx.get(f"{platform.running['url']}/docs", trust_env=False).status_code == 200
        second = run_rdukit(home, "up", "--port", "0")
        assert second.returncode == 6
        assert f"runs in {home} already" in second.stderr
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

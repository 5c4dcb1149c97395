"""The exporter as a process, beside a real node daemon."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import shows, wait_until
from support.node.daemons import RunningDaemon, environment, running_daemon, start_daemon, stop_daemon

pytestmark = shows("sambanova_exporter", "tools")

_COMMAND = [sys.executable, "-m", "rdukit_node.cli.exporter"]


class RunningExporter:
    """An exporter that has said where it listens."""

    def __init__(self, home: Path, *more: str) -> None:
        announce = home / "exporter.json"
        announce.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [*_COMMAND, "--port", "0", "--announce", str(announce), *more],
            env=environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_until(lambda: announce.exists() or self.process.poll() is not None)
        assert announce.exists(), self.process.communicate()
        self.url: str = json.loads(announce.read_text())["url"]

    def text(self) -> str:
        with urllib.request.urlopen(self.url, timeout=60) as answer:
            body: bytes = answer.read()
        return body.decode()

    def values(self) -> dict[str, float]:
        lines = [line for line in self.text().splitlines() if not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon("SN10-8") as running:
        yield running


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="exporter-", dir="/tmp"))  # a socket's path must be short
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start() -> Iterator[Callable[..., RunningExporter]]:
    started: list[RunningExporter] = []

    def make(home: Path, *more: str) -> RunningExporter:
        started.append(RunningExporter(home, *more))
        return started[-1]

    yield make
    for exporter in started:
        exporter.stop()


def test_a_scrape_shows_tiles_leases_and_faults_of_the_node(
    daemon: RunningDaemon, start: Callable[..., RunningExporter]
) -> None:
    exporter = start(daemon.home)
    with daemon.connect() as holder, daemon.connect() as admin:
        holder.acquire("logreg", 2, 1 << 20, tenant="physics", job="j7")
        before = exporter.values()
        assert before["rdukit_node_up"] == 1
        assert before['rdukit_tiles{state="leased"}'] == 2
        assert before['sambanova_tile_idle_percent{rdu="0",tile="0",xrdu="0"}'] == 100
        assert sum(name.startswith("sambanova_tile_exec_percent{") for name in before) == 32
        assert sum('job="j7"' in name for name in before if name.startswith("rdukit_tile_lease_info")) == 2
        lasting = next(
            row for row in admin.call("catalogue")["classes"] if row["component_kind"] == "TILE" and row["persists"]
        )
        broken = "/NODE/XRDU_3/RDU_1/TILE_3"
        admin.call("inject", events=[{"class": lasting["name"], "component": broken}])
        after = exporter.values()
        assert after["sambanova_platform_error_count"] > before["sambanova_platform_error_count"]
        assert sum(value for name, value in after.items() if name.startswith("rdukit_faults_active")) >= 1
        assert any(name.startswith("rdukit_fault_info{") and broken in name for name in after)
        assert after['rdukit_tiles{state="excluded"}'] == 1
        assert 'sambanova_tile_idle_percent{rdu="1",tile="3",xrdu="3"}' not in after


def test_a_daemon_that_goes_and_comes_back_is_seen_without_stale_figures(
    home: Path, start: Callable[..., RunningExporter]
) -> None:
    exporter = start(home)
    assert exporter.values() == {"rdukit_node_up": 0}
    first = start_daemon(home)
    try:
        assert exporter.values()["rdukit_node_up"] == 1
    finally:
        stop_daemon(first)
    assert exporter.values() == {"rdukit_node_up": 0}
    second = start_daemon(home)
    try:
        assert exporter.values()["rdukit_applications"] == 0
    finally:
        stop_daemon(second)


def test_promtool_objects_to_nothing_but_a_documented_name(
    daemon: RunningDaemon, start: Callable[..., RunningExporter]
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool; it is in Debian's package prometheus")
    exporter = start(daemon.home)
    with daemon.connect() as holder:
        holder.acquire("logreg", 2, 1 << 20, job="j7")
        text = exporter.text()
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    complaints = (checked.stdout + checked.stderr).strip().splitlines()
    assert [line.split()[0] for line in complaints] == ["sambanova_platform_error_count"]
    assert '"_count" suffix' in complaints[0]


def test_the_configuration_file_switches_collectors_and_sigterm_ends_the_exporter(
    daemon: RunningDaemon, home: Path, start: Callable[..., RunningExporter]
) -> None:
    file = home / "exporter.conf"
    file.write_text("collector_tile = off\ncollector_lease = off\n")
    exporter = start(daemon.home, "-c", str(file))
    names = {name.partition("{")[0] for name in exporter.values()}
    assert "rdukit_tiles" in names and "rdukit_rdu_ddr_read_bytes_total" in names
    assert not any("tile_" in name or "lease_" in name for name in names)
    assert exporter.stop() == 0


def test_an_unreadable_configuration_or_a_taken_port_ends_the_exporter_with_a_reason(
    home: Path, start: Callable[..., RunningExporter]
) -> None:
    def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        env = {**environment(home), **variables}
        return subprocess.run([*_COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False)

    refused = run(SAMBANOVA_EXPORTER_CONFIG_FILE=str(home))
    assert refused.returncode == 5 and "cannot be read" in refused.stderr
    (home / "bad.conf").write_text("colour = blue\n")
    unknown = run("-c", os.fspath(home / "bad.conf"))
    assert unknown.returncode == 2 and "expected http_address" in unknown.stderr
    port = start(home).url.rpartition(":")[2].partition("/")[0]
    taken = run("--port", port)
    assert taken.returncode == 6 and f"cannot listen on 127.0.0.1:{port}" in taken.stderr

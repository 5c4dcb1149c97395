"""Eight tenants train on one node at the same time: each computes what it computes alone, on tiles of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import shows
from support.node.daemons import RunningDaemon, environment, running_daemon

pytestmark = [shows("node", "isolation"), pytest.mark.long]

PROGRAM = Path(__file__).with_name("tenant_programs.py")


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon("SN30-8", ["--no-snml"]) as running:
        yield running


@pytest.fixture(scope="module")
def runs(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """By number of tenants at once, what was said."""
    folder = tmp_path_factory.mktemp("tenants")
    for arguments in (("compile", str(folder)), ("run", str(folder), "--at-once", "1,8", "--steps", "20")):
        node = "private" if arguments[0] == "compile" else "daemon"
        finished = subprocess.run(
            [sys.executable, str(PROGRAM), *arguments],
            env=environment(daemon.home, RDUKIT_NODE=node, RDUKIT_KERNELS="portable"),
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr[-3000:]
    return {said["at_once"]: said for said in map(json.loads, finished.stdout.splitlines())}


@pytest.mark.long
def test_outputs_are_bit_equal_to_running_alone(runs: dict[int, Any]) -> None:
    alone, together = runs[1]["tenants"], runs[8]["tenants"]
    assert [row["digest"] for row in together] == [row["digest"] for row in alone]
    assert len({row["digest"] for row in alone}) == 8, "they are different programs"


def test_every_tenant_has_its_own_tiles_and_an_isolation_report(runs: dict[int, Any]) -> None:
    tenants = runs[8]["tenants"]
    assert len({row["lease"] for row in tenants}) == 8
    tiles = [tile for row in tenants for tile in row["tiles"]]
    assert len(tiles) == len(set(tiles)) == 16
    for row in tenants:
        parts = {
            name: text for key, report in row["isolation"].items() if key != "node" for name, text in report.items()
        }
        assert parts["mode"] == "auto"
        assert parts["no_new_privileges"].startswith("applied")
        assert row["isolation"]["node"], "the daemon's part of the isolation"


def test_the_event_log_shows_eight_at_once_and_no_overlap(daemon: RunningDaemon, runs: dict[int, Any]) -> None:
    with daemon.connect() as client:
        events: list[dict[str, Any]] = []
        while page := client.call("events", since=events[-1]["seq"] if events else 0)["events"]:
            events += page
    held: dict[str, str] = {}
    most = 0
    for event in events:
        if event["kind"] == "grant":
            assert not set(event["tiles"]) & set(held)
            held |= dict.fromkeys(event["tiles"], event["lease"])
        elif event["kind"] in ("release", "death"):
            held = {tile: lease for tile, lease in held.items() if lease != event["lease"]}
        most = max(most, len(set(held.values())))
    assert most == 8
    assert held == {}

"""``snfadm --replace`` and ``--reset-counts``: a new serial number outlives the daemon; tools show it without one."""

import json
import subprocess
import sys
from pathlib import Path

from support import shows
from support.node.daemons import environment, running_daemon, start_daemon, stop_daemon

pytestmark = shows("node", "snfadm")

RDU = "/NODE/XRDU_0/RDU_0"


def snfadm(home: Path, *words: str) -> str:
    command = [sys.executable, "-c", "from rdukit_node.cli.snfadm import main; main()", *words]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def serial_of(home: Path) -> str:
    rows = json.loads(snfadm(home, "-l", "inventory", "-c", RDU, "--json"))
    (found,) = [row["serial"] for row in rows["components"] if row["comp_name"] == RDU]
    return str(found)


def test_a_part_that_was_replaced_has_its_serial_number_from_then_on() -> None:
    with running_daemon() as daemon:
        before = serial_of(daemon.home)
        snfadm(daemon.home, "--inject", "tile-excluded", "-c", f"{RDU}/TILE_0")
        said = snfadm(daemon.home, "--replace", RDU)
        after = serial_of(daemon.home)
        assert after != before and f"{RDU} has a new part: {after}" in said and "cleared" in said
        assert "whose counts were reset" in snfadm(daemon.home, "--reset-counts", "/NODE")
        daemon.end(is_orderly=False)
        assert serial_of(daemon.home) == after, "the tool reads the database"
        again = start_daemon(daemon.home)
        try:
            assert serial_of(daemon.home) == after
        finally:
            stop_daemon(again)

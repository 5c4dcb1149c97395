"""snfadm, snconfig, slurmfeeder and snprof with a real daemon, as their users run them."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rdukit.pef.file import read_pef
from rdukit_node.cli.slurmfeeder import needs_of
from support import shows
from support.forked import run_python
from support.node.daemons import RunningDaemon, environment, running_daemon, stop_daemon

pytestmark = shows("snfadm", "snconfig", "slurmfeeder", "snprof", "tools", "faults", "logreg")

NOBODY = 65534
#: The interpreter may be where another user cannot read, so everything is imported before the user changes.
AS_NOBODY = f"""
import importlib, importlib.readers, os, sys
import difflib, yaml
import rdukit_node.faults.store
tool = importlib.import_module(sys.argv.pop(1))
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
tool.main()
"""
AS_SELF = "import importlib, sys; importlib.import_module(sys.argv.pop(1)).main()"
TILE = "/NODE/XRDU_0/RDU_0/TILE_1"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")


@pytest.fixture
def node() -> Iterator[RunningDaemon]:
    with running_daemon() as daemon:
        yield daemon


@pytest.fixture
def open_node(node: RunningDaemon) -> RunningDaemon:
    """A node that other users can reach, as one in the vendor's places is."""
    node.home.chmod(0o755)
    (node.home / "run").chmod(0o755)
    node.socket.chmod(0o666)
    return node


def run_tool(
    node: RunningDaemon, tool: str, *arguments: str, script: str = AS_SELF, timeout_s: float = 60.0
) -> "subprocess.CompletedProcess[str]":
    module = "rdukit_runtime.profile.snprof" if tool == "snprof" else f"rdukit_node.cli.{tool}"
    settings = environment(node.home, RDUKIT_KERNELS="portable")
    return run_python(["-c", script, module, *arguments], settings, cwd=node.home, timeout_s=timeout_s)


def ask(node: RunningDaemon, *arguments: str) -> Any:
    """The JSON that snfadm prints."""
    done = run_tool(node, "snfadm", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def break_tile(node: RunningDaemon) -> str:
    """Exclude a tile for good. Returns the fault's id."""
    with node.connect() as client:
        data = {"persists": True, "resets_that_fail": None}
        made = client.call("inject", events=[{"class": "tile-hang", "component": TILE, "data": data}])
    assert made["faults"], made
    return str(made["faults"][-1])


def test_the_inventory_is_stable_and_in_the_documented_form(node: RunningDaemon) -> None:
    first = run_tool(node, "snfadm", "-l", "inventory")
    lines = first.stdout.splitlines()
    assert lines[0].startswith("/NODE/XRDU_0/RDU_0 | ")
    assert all(len(line.split(" | ")) == 4 and line.endswith("| Online") for line in lines if "Present" in line)
    assert lines[-1] == "/NODE/XRDU_0/RDU_0/TILE_3 | N/A | Present | Online"
    kinds = [line.split(" | ")[0].rpartition("/")[2].partition("_")[0] for line in lines]
    assert list(dict.fromkeys(kinds)) == ["RDU", "DIMM", "PCIE", "TILE"]
    assert run_tool(node, "snfadm", "-l", "inventory").stdout == first.stdout
    break_tile(node)
    later = run_tool(node, "snfadm", "-l", "inventory")
    assert later.returncode == 0
    changed = [line.rpartition(" | ")[0::2] for line in later.stdout.splitlines() if line not in lines]
    assert [health for _, health in changed] == ["Degraded", "Excluded"]  # the RDU and its tile
    assert changed[1][0] == f"{TILE} | N/A | Present"


@pytest.mark.parametrize("is_broken", [False, True], ids=["with nothing to report", "with a fault"])
def test_every_listing_is_valid_json_and_csv(node: RunningDaemon, is_broken: bool) -> None:
    if is_broken:
        break_tile(node)
    for listing in ("inventory", "error", "fault", "policy", "hang", "op-state", "applications", "catalogue"):
        rows = next(iter(ask(node, "-l", listing).values()))
        table = list(csv.DictReader(io.StringIO(run_tool(node, "snfadm", "-l", listing, "--csv", "-v").stdout)))
        assert len(table) == len(rows), listing
        if listing == "fault":
            assert bool(rows) == is_broken


def test_a_fault_goes_from_injection_over_a_premature_clear_to_its_repair(node: RunningDaemon) -> None:
    assert run_tool(node, "snfadm", "--exit-code").returncode == 0
    lasting = ["--data", "persists=true", "--data", "resets_that_fail=null"]
    done = run_tool(node, "snfadm", "--inject", "tile-hang", "-c", TILE, *lasting)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("error ")
    fault = ask(node, "-l", "fault")["faults"][0]
    assert (fault["comp_name"], fault["fault_type"]) == (TILE, "FTYPE_TILE_EXCLUDED")
    assert ask(node, "-l", "error", "-c", "/XRDU_0")["errors"][0]["fault_uuid"] == fault["fault_uuid"]
    assert ask(node, "-l", "error", "-c", "/NODE/XRDU_0/RDU_0/TILE_0")["errors"] == []
    assert run_tool(node, "snfadm", "--exit-code", "--severity", "major").returncode == 1
    assert TILE in run_tool(node, "snfadm", "--suggestions").stdout
    assert fault["recovery_act"] in run_tool(node, "snfadm", "-l", "fault", "-v").stdout

    cleared = run_tool(node, "snfadm", "--clear", fault["fault_uuid"])
    assert "its cause remains" in cleared.stdout, cleared.stderr
    again = ask(node, "-l", "fault")["faults"]
    assert [row["fault_uuid"] == fault["fault_uuid"] for row in again] == [False]
    assert len(ask(node, "-l", "fault", "-a")["faults"]) == 2

    assert run_tool(node, "snfadm", "--repair", TILE).returncode == 0
    assert ask(node, "-l", "fault")["faults"] == []
    assert run_tool(node, "snfadm", "--exit-code").returncode == 0


def test_a_policy_changes_when_errors_make_a_fault_and_stays_after_a_restart(node: RunningDaemon) -> None:
    dimm = "/NODE/XRDU_0/RDU_0/DDRCH_0/DIMM_C0"
    done = run_tool(node, "snfadm", "--set-policy", "ETYPE_DDR_CE", "--count", "2", "--severity", "critical")
    assert done.returncode == 0, done.stderr
    assert "2 in 86400 s" in done.stdout
    assert ask(node, "--inject", "ddr-correctable", "-c", dimm)["faults"] == []
    assert len(ask(node, "--inject", "ddr-correctable", "-c", dimm)["faults"]) == 1
    assert ask(node, "-l", "fault")["faults"][0]["severity"] == "Critical"
    stop_daemon(node)
    stored = json.loads(run_tool(node, "snfadm", "-l", "policy", "--json").stdout)["policies"]
    assert next(row["count"] for row in stored if row["error_type"] == "ETYPE_DDR_CE") == 2


def test_an_application_is_listed_while_it_runs_and_after_its_end(node: RunningDaemon) -> None:
    with node.connect() as client:
        lease = client.acquire("app", 2, 4096, tenant="t", job="j7")
        running = ask(node, "-l", "applications")["applications"]
        assert [(row["lease"], row["ended_at"], row["reason"]) for row in running] == [(lease["id"], None, "running")]
        client.release(lease["id"])
    ended = ask(node, "-l", "applications", "-c", "/XRDU_0/RDU_0")["applications"]
    assert [(row["lease"], row["job"], len(row["tiles"])) for row in ended] == [(lease["id"], "j7", 2)]
    assert ended[0]["ended_at"] > ended[0]["granted_at"]
    assert set(ended[0]) == set(running[0])


@needs_root
def test_another_user_may_look_but_not_change(open_node: RunningDaemon) -> None:
    fault = break_tile(open_node)
    look = run_tool(open_node, "snfadm", "-l", "fault", "--json", script=AS_NOBODY)
    assert look.returncode == 0, look.stderr
    assert json.loads(look.stdout)["faults"][0]["fault_uuid"] == fault
    assert run_tool(open_node, "snconfig", "show", "Node", "dynamic", script=AS_NOBODY).returncode == 0
    for change in (["--clear", fault], ["--repair", TILE], ["--reset", TILE], ["--inject", "ddr-correctable"]):
        done = run_tool(open_node, "snfadm", *change, script=AS_NOBODY)
        assert done.returncode == 5, (change, done.stderr)
        assert "permission-denied" in done.stderr
    assert run_tool(open_node, "snconfig", "set", "hugepages", "1", script=AS_NOBODY).returncode in {3, 5}
    assert len(ask(open_node, "-l", "fault")["faults"]) == 1


@needs_root
def test_who_may_not_connect_is_told_so_and_sees_no_tile_called_free(node: RunningDaemon) -> None:
    fault = break_tile(node)
    for folder in (node.home, node.home / "run", node.home / "snfm"):  # a home is private unless it is opened
        folder.chmod(0o755)
    (node.home / "snfm" / "snfm.db").chmod(0o644)
    look = run_tool(node, "snfadm", "-l", "fault", script=AS_NOBODY)
    assert fault in look.stdout
    assert "may not connect" in look.stderr
    dynamic = run_tool(node, "snconfig", "show", "Node", "dynamic", script=AS_NOBODY)
    assert (dynamic.returncode, dynamic.stdout) == (7, "")
    assert "only the daemon knows the holders of tiles" in dynamic.stderr
    assert run_tool(node, "snconfig", "show", "Node", "static", script=AS_NOBODY).returncode == 0


@needs_root
def test_who_may_read_the_token_may_change(open_node: RunningDaemon) -> None:
    fault = break_tile(open_node)
    token = next(open_node.home.rglob("admin.token"))
    assert token.stat().st_mode & 0o777 == 0o600
    os.chown(token, NOBODY, NOBODY)
    done = run_tool(open_node, "snfadm", "--repair", TILE, script=AS_NOBODY)
    assert done.returncode == 0, done.stderr
    assert ask(open_node, "-l", "fault", "-a")["faults"][0]["fault_uuid"] == fault


def test_without_a_daemon_listings_come_from_the_database_with_their_age(node: RunningDaemon) -> None:
    fault = break_tile(node)
    before = run_tool(node, "snfadm", "-l", "inventory").stdout
    tree = run_tool(node, "snconfig", "show", "Node", "static").stdout
    stop_daemon(node)
    for listing, key in (("fault", "faults"), ("error", "errors"), ("op-state", "rdus"), ("hang", "hangs")):
        done = run_tool(node, "snfadm", "-l", listing, "--json")
        assert len(json.loads(done.stdout)[key]) >= 1, (listing, done.stderr)
        assert " s ago" in done.stderr
    assert fault in run_tool(node, "snfadm", "-l", "fault").stdout
    assert run_tool(node, "snfadm", "-l", "inventory").stdout == before
    stored = run_tool(node, "snconfig", "show", "Node", "static")
    assert [line for line in stored.stdout.splitlines() if "Timestamp" not in line] == [
        line for line in tree.splitlines() if "Timestamp" not in line
    ]
    assert run_tool(node, "snfadm", "--exit-code").returncode == 1
    assert run_tool(node, "snfadm", "--exit-code", "--severity", "Critical").returncode == 2
    refused = run_tool(node, "snfadm", "--clear", fault)
    assert refused.returncode == 7


def test_followers_see_new_faults_and_their_end(node: RunningDaemon) -> None:
    follower = subprocess.Popen(
        [sys.executable, "-c", AS_SELF, "rdukit_node.cli.snfadm", "-l", "fault", "--follow", "--json"],
        env=environment(node.home), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert follower.stdout is not None
        fault = break_tile(node)
        assert json.loads(follower.stdout.readline())["fault_uuid"] == fault
        run_tool(node, "snfadm", "--repair", TILE)
        last = json.loads(follower.stdout.readline())
        assert (last["fault_uuid"], last["fault_state"]) == (fault, "CLEARED")
    finally:
        follower.kill()
        follower.communicate()


def test_a_scenario_runs_from_a_file(node: RunningDaemon) -> None:
    file = node.home / "storm.yaml"
    file.write_text("steps:\n  - {at: 0s, class: ddr-correctable}\n")
    done = run_tool(node, "snfadm", "--scenario", str(file), "--json")
    assert json.loads(done.stdout) == {"steps": 1}, done.stderr


def test_perfect_tells_the_rdu_that_lost_a_tile_and_owners_are_shown(node: RunningDaemon) -> None:
    def perfect() -> list[str]:
        shown = run_tool(node, "snconfig", "show", "Node", "dynamic").stdout.splitlines()
        return [line.strip() for line in shown if "perfect" in line]

    assert perfect() == ["perfect           : True (/NODE/XRDU_0/RDU_0)"]
    with node.connect() as client:
        client.acquire("mlp", tiles=2, memory_bytes=1 << 20)
        shown = run_tool(node, "snconfig", "show", "Node", "dynamic").stdout
        assert shown.count(f"Owner PID         : {os.getpid()}") == 2
    break_tile(node)
    assert perfect() == ["perfect           : False (/NODE/XRDU_0/RDU_0)"]
    assert "DEGRADED" in run_tool(node, "snconfig", "show", "Node", "op-state").stdout


def test_json_files_of_snconfig_are_named_and_printed(node: RunningDaemon) -> None:
    folder = node.home / "reports"
    shown = run_tool(node, "snconfig", "show", "Node", "all", "-j", str(folder)).stdout.splitlines()
    names = sorted(file.name for file in folder.iterdir())
    assert [name[:10] for name in names] == ["show_node_"] * 2
    assert sorted(line.rpartition("/")[2] for line in shown[-2:]) == names
    static = json.loads(next(folder.glob("show_node_static_*.json")).read_text())
    assert static["platform_name"] == "DataScale TEST-1"
    assert len(static["xrdus"][0]["rdus"][0]["tiles"]) == 4


@pytest.mark.long
def test_a_program_gets_what_slurmfeeder_says_and_snprof_breaks_its_time_down(node: RunningDaemon) -> None:
    program = f"{sys.executable} -m rdukit_zoo.logreg"
    options = "--pef-name=lr --output-folder=out"
    compiled = subprocess.run(
        f"{program} compile --arch=sn10 --num-tiles=2 {options}".split(), cwd=node.home, capture_output=True, text=True,
        env=environment(node.home, RDUKIT_KERNELS="portable"), timeout=120, check=False,
    )  # fmt: skip
    assert compiled.returncode == 0, compiled.stderr
    pef = node.home / "out/lr/lr.pef"
    run = f"{program} run --num-epochs=1 --pef={pef}"
    done = run_tool(node, "snprof", "-c", run, "--json", timeout_s=120)
    assert done.returncode == 0, done.stderr
    plain = subprocess.run(
        run.split(), cwd=node.home, capture_output=True, text=True, timeout=120, check=True,
        env=environment(node.home, RDUKIT_KERNELS="portable"),
    )  # fmt: skip
    results = re.compile(r"(Loss|Test accuracy .*): ([\d.]+)")
    assert results.findall(done.stderr) == results.findall(plain.stdout) != []
    summary = json.loads(done.stdout)
    rows = {row["Breakdown"]: row["Time in nsec"] for row in summary["breakdown"]}
    assert summary["runs"] > 100
    assert sum(rows.values()) == 2 * rows["TOTAL"]
    assert all(nanoseconds > 0 for nanoseconds in rows.values()), rows
    assert (node.home / "snprof/summary.csv").read_text().splitlines()[
        1
    ] == f"TOTAL,{rows['TOTAL']},{rows['TOTAL'] / 1e9},100.0"

    needs = needs_of(read_pef(pef), "TEST-1")
    with node.connect() as client:
        granted = client.call("applications")["applications"][0]
    assert (len(granted["tiles"]), granted["memory_bytes"]) == (needs.tiles, needs.ddr_bytes)
    assert granted["runs"] >= summary["runs"]

"""A hardware failure on its way: injected into a running program, and seen by everybody who looks at the node."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.errors import DramUeException, LeaseLost, NoResources, TileFaultException
from rdukit.snd import SndClient
from rdukit_runtime.application import Application, open_application
from support import shows
from support.node.daemons import RunningDaemon, environment, running_daemon, start_daemon, stop_daemon
from support.pefs.examples import write_example_pef

pytestmark = shows("node", "faults", "isolation")

RDU = "/NODE/XRDU_0/RDU_0"


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningDaemon]:
    with running_daemon() as daemon:
        monkeypatch.setenv("RDUKIT_HOME", str(daemon.home))
        monkeypatch.setenv("RDUKIT_NODE", "daemon")
        yield daemon


def run_once(application: Application) -> None:
    program = application.program
    application.run("main", program.choose_sections(program.find_graph("main")), application.pef.hyperparameters)


def run_for(application: Application, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run_once(application)
        time.sleep(0.01)


def inject(client: SndClient, fault: str, component: str, **more: object) -> tuple[list[str], list[str]]:
    answer = client.call("inject", events=[{"class": fault, "component": component, **more}])
    return answer["errors"], answer["faults"]


def test_an_uncorrectable_memory_error_is_the_same_everywhere(daemon: RunningDaemon, tmp_path: Path) -> None:
    with (
        open_application(write_example_pef(tmp_path / "a.pef"), "victim") as application,
        daemon.connect() as client,
    ):
        run_once(application)
        dimm = next(
            row["comp_name"]
            for row in client.call("inventory")["components"]
            if "DIMM" in row["comp_name"] and row["presence"] == "Present"
        )
        (error,), (fault,) = inject(client, "ddr-uncorrectable", dimm)
        with pytest.raises(DramUeException) as caught:
            run_once(application)
        exception = caught.value
        assert (exception.component, exception.error_uuid, exception.fault_uuid) == (dimm, error, fault)
        assert exception.recovery
        with pytest.raises(DramUeException):
            application.lease.allocate("more", 1)
        (row,) = client.call("faults")["faults"]
        assert (row["fault_uuid"], row["err_uuid"], row["comp_name"]) == (fault, error, dimm)
        assert row["application"] == "victim"
        (state,) = client.call("op_state")["rdus"]
        assert state["state"] != "FUNCTIONAL"
        status = client.status()
        assert status["leases"][0]["fault"]["detail"]["fault_uuid"] == fault
        events = client.call("events")["events"]
        assert any(event["kind"] == "interrupt" and event["fault_uuid"] == fault for event in events)
    assert fault in (daemon.home / "logs/sn.log").read_text() or "DIMM" in (daemon.home / "logs/sn.log").read_text()
    with daemon.connect() as client:
        (accounted,) = client.call("applications")["applications"]
        assert accounted["fault"] == fault
        assert accounted["runs"] == 1


def test_a_program_hears_of_a_hung_tile_and_a_new_one_gets_another(daemon: RunningDaemon, tmp_path: Path) -> None:
    pef = write_example_pef(tmp_path / "a.pef")
    with daemon.connect() as client:
        with open_application(pef, "victim") as application:
            (tile,) = application.lease.tiles
            inject(client, "tile-hang", tile, data={"resets_that_fail": None})
            with pytest.raises(TileFaultException) as caught:
                run_once(application)
            assert caught.value.component == tile
        with open_application(pef, "victim") as application:
            assert application.lease.tiles != (tile,)
            run_once(application)
        client.call("repair", component=tile)
        assert client.status()["rdus"][0]["perfect"]


def test_when_the_daemon_is_killed_its_programs_learn_it_and_the_database_does_not_forget(tmp_path: Path) -> None:
    pef = write_example_pef(tmp_path / "a.pef")
    with pytest.MonkeyPatch.context() as patch, running_daemon() as daemon:
        patch.setenv("RDUKIT_HOME", str(daemon.home))
        patch.setenv("RDUKIT_NODE", "daemon")
        patch.setenv("RDUKIT_SND_REATTACH_S", "0.1")
        with daemon.connect() as client:
            (error,), (fault,) = inject(client, "tile-excluded", f"{RDU}/TILE_3")
        with open_application(pef, "orphan") as application:
            run_once(application)
            daemon.process.kill()
            daemon.process.communicate()
            with pytest.raises(LeaseLost):
                run_for(application, 2.0)
        again = start_daemon(daemon.home)
        try:
            with again.connect() as client:
                assert fault in [row["fault_uuid"] for row in client.call("faults")["faults"]]
                types = {row["err_type"]: row["err_uuid"] for row in client.call("errors")["errors"]}
                assert error in types.values()
                assert "ETYPE_SND_RESTART" in types, "a daemon that was killed is an error of its own"
                assert client.status()["tiles"][3]["health"] == "Excluded"
            with open_application(pef, "next") as application:
                run_once(application)
        finally:
            stop_daemon(again)


def test_a_daemon_that_ended_in_order_reports_no_restart(tmp_path: Path) -> None:
    with running_daemon() as daemon:
        assert stop_daemon(daemon) == 0
        again = start_daemon(daemon.home)
        try:
            with again.connect() as client:
                assert client.call("errors")["errors"] == []
        finally:
            stop_daemon(again)


def test_a_program_waits_for_its_tiles_if_it_is_told_to(
    daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pef = write_example_pef(tmp_path / "a.pef")
    with daemon.connect() as client:
        lease = client.acquire("first", 4, 0)
        with pytest.raises(NoResources, match="0 of 4 tiles are free"):
            open_application(pef, "impatient")
        script = (
            "import sys; from rdukit_runtime.application import open_application\n"
            "with open_application(sys.argv[1], 'patient') as application: print(application.lease.tiles[0])"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(pef)],
            env=environment(daemon.home, RDUKIT_NODE="daemon", RDUKIT_ACQUIRE_WAIT_S="60"),
            stdout=subprocess.PIPE,
            text=True,
        )
        while not client.status()["waiting"]:
            assert process.poll() is None
            time.sleep(0.02)
        client.release(lease["id"])
        out, _ = process.communicate(timeout=60)
        assert out.startswith(RDU)


@pytest.mark.long
def test_sigterm_ends_a_program_in_order_and_the_log_says_that_it_was_cancelled(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    script = (
        "import sys, time; from rdukit_node.logs.files import application_log\n"
        "from rdukit_runtime.application import PROGRAM, open_application\n"
        "application_log(PROGRAM).announce()\n"
        "application = open_application(sys.argv[1], 'job'); print('ready', flush=True); time.sleep(60)"
    )
    pef = write_example_pef(tmp_path / "a.pef")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(pef)],
        env=environment(daemon.home, RDUKIT_NODE="daemon"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    _, words = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert "Log ID initialized to: " in words and f"[python][{process.pid}] at {daemon.home}/logs/sn.log" in words
    assert "cancelled by SIGTERM" in (daemon.home / "logs/sn.log").read_text()
    with daemon.connect() as client:
        (row,) = client.call("applications")["applications"]
        assert row["reason"] == "released by a holder"
        assert json.dumps(row)

"""Power, temperature and clock are a model of the load, and say so."""

import importlib

import pytest
from click.testing import CliRunner

from rdukit import __version__
from rdukit_node.cli.node_views import power_lines
from rdukit_node.telemetry.emulated import AIR_C, BUSY_W, IDLE_W, EmulatedReading, emulated_readings
from rdukit_node.telemetry.exporter import Observed, node_samples
from rdukit_node.telemetry.sampling import Reading
from support import shows
from support.node.harness import DaemonHarness, FakeNode

pytestmark = shows("tools", "snconfig", "sambanova_exporter")


@pytest.mark.parametrize("tool", ["snfadm", "snconfig", "sntilestat", "snddrstat", "snpciestat", "slurmfeeder"])
def test_each_tool_says_its_version(tool: str) -> None:
    command = getattr(importlib.import_module(f"rdukit_node.cli.{tool}"), tool)
    assert CliRunner().invoke(command, ["--version"]).output == f"{tool}, version {__version__}\n"


def test_a_busy_rdu_takes_more_and_is_hotter_than_one_at_rest() -> None:
    node = FakeNode()
    node.grant("L1", [0, 1])
    before = node.read()
    node.advance(1)
    node.work("L1", exec_ns=500_000_000)
    busy, idle = emulated_readings(before, node.read())[:2]
    assert idle.power_w == IDLE_W
    assert busy.power_w == IDLE_W + BUSY_W * 0.25
    assert busy.temperature_c > idle.temperature_c > AIR_C
    assert (busy.clock_hz, busy.as_json()["is_emulated"]) == (1.32e9, True)


def test_a_thermal_fault_and_the_temperature_agree_until_it_is_repaired() -> None:
    desk = DaemonHarness("SN10-8")
    desk.connect(1, is_admin=True)

    def read() -> list[EmulatedReading]:
        desk.clock.advance(1)
        before = Reading(desk.ok(1, "counters"), desk.ok(1, "status"), [])
        desk.clock.advance(1)
        return emulated_readings(before, Reading(desk.ok(1, "counters"), desk.ok(1, "status"), []))

    cool = read()[1]
    hot = {"class": "thermal", "component": cool.path, "count": 3, "data": {"celsius": 97, "limit_celsius": 90}}
    desk.ok(1, "inject", events=[hot])
    warm, other = read()[1], read()[0]
    assert (warm.temperature_c, warm.throttle_reasons) == (97, ("thermal",))
    assert (other.temperature_c, other.throttle_reasons) == (cool.temperature_c, ())
    assert "would throttle: thermal" in power_lines([warm.as_json()])[1]
    desk.clock.advance(3600)
    assert read()[1].temperature_c == 97, "as long as the fault is active"
    desk.ok(1, "repair", component=cool.path)
    assert read()[1] == cool


def test_a_thermal_warning_that_is_no_fault_passes() -> None:
    desk = DaemonHarness("SN10-8")
    desk.connect(1, is_admin=True)
    desk.ok(1, "inject", events=[{"class": "thermal", "component": "/NODE/XRDU_0/RDU_0", "seed": 1}])
    assert desk.ok(1, "status")["rdus"][0]["celsius"] > 90
    desk.clock.advance(61)
    assert desk.ok(1, "status")["rdus"][0]["celsius"] is None


def test_an_rdu_out_of_service_has_no_readings_and_the_exporter_leaves_it_out() -> None:
    node = FakeNode()
    node.states[3] = "UNAVAILABLE"
    before = node.read()
    node.advance(1)
    after = node.read()
    assert [reading.rdu for reading in emulated_readings(before, after)] == [0, 1, 2, 4, 5, 6, 7]
    named = [s for s in node_samples(Observed(before, after)) if s.metric == "rdukit_rdu_emulated_power_watts"]
    assert len(named) == 7
    lines = power_lines([reading.as_json() for reading in emulated_readings(before, after)])
    assert lines[0].startswith("Emulated") and "90.0 W" in lines[1]

"""Checks of a node's diagnostic from answers as plain values, and how a tool is run on another machine."""

from typing import Any

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument
from rdukit.hardware import find_node
from rdukit_node.cli.diag import result_lines, summed
from rdukit_node.cli.output import command_there
from rdukit_node.diagnostic.model import CheckResult, CheckVerdict, check_node, plan_tiles, worst
from rdukit_node.inventory import components, node_tiles
from support import shows

pytestmark = shows("node", "tools")

NODE = find_node("SN10-8")
RDU = "/NODE/XRDU_0/RDU_0"


def status(**changes: dict[str, Any]) -> dict[str, Any]:
    """Return what a healthy node says; ``changes``: of its tiles, by path with underscores for the slashes."""
    tiles = [{"path": t.path, "health": "Online", **changes.get(t.path, {})} for t in node_tiles(NODE)]
    rdus = [{"comp_name": RDU, "state": "FUNCTIONAL"}]
    return {"platform": "SN10-8", "version": "1.0", "tiles": tiles, "rdus": rdus, "database": {"is_writable": True}}


def inventory() -> list[dict[str, Any]]:
    return [{"comp_name": each.path, "presence": "Present"} for each in components(NODE)]


def by_check(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.check: result for result in results}


class TestCheckNode:
    def test_a_healthy_node_passes_everything(self) -> None:
        results = check_node(status(), inventory(), [], "1.0")
        assert {result.verdict for result in results} == {CheckVerdict.PASS}
        assert set(by_check(results)) == {"daemon", "inventory", "database", "state", "faults"}

    def test_each_trouble_fails_its_own_check(self) -> None:
        sick = status()
        sick["database"] = {"is_writable": False, "reason": "disk full"}
        sick["rdus"] = [{"comp_name": RDU, "state": "UNAVAILABLE", "reason": "hung"}]
        fault = {
            "severity": "Major",
            "fault_type": "FTYPE_X",
            "comp_name": RDU,
            "fault_desc": "It.",
            "recovery_act": "Do.",
        }
        found = by_check(check_node(sick, inventory()[:-1], [fault], "1.0"))
        failed = {name for name, result in found.items() if result.verdict is CheckVerdict.FAIL}
        assert failed == {"inventory", "database", "state", "faults"}
        assert "disk full" in found["database"].said
        assert found["faults"].advice == "Do."
        assert inventory()[-1]["comp_name"] in found["inventory"].said

    def test_another_version_and_a_minor_fault_are_warnings(self) -> None:
        minor = {"severity": "Minor", "fault_type": "FTYPE_X", "comp_name": RDU}
        found = by_check(check_node(status(), inventory(), [minor], "1.1"))
        assert (found["daemon"].verdict, found["faults"].verdict) == (CheckVerdict.WARN, CheckVerdict.WARN)

    def test_a_component_leaves_out_the_faults_of_others(self) -> None:
        other = {"severity": "Major", "fault_type": "FTYPE_X", "comp_name": "/NODE/XRDU_1/RDU_0"}
        assert worst(check_node(status(), inventory(), [other], "1.0", RDU)) is CheckVerdict.PASS


class TestPlanTiles:
    def test_only_free_healthy_tiles_are_tried(self) -> None:
        plan = plan_tiles(
            status(**{
                f"{RDU}/TILE_0": {"health": "Excluded"}, f"{RDU}/TILE_1": {"lease": "l", "application": "mlp"},
                f"{RDU}/TILE_2": {"cordon": "drained"},
            })
        )  # fmt: skip
        assert min(plan.tiles) == 3
        assert RDU not in plan.rdus
        assert plan.rdus["/NODE/XRDU_0/RDU_1"] == (4, 5, 6, 7)
        assert [str(result.verdict) for result in plan.results] == ["fail", "skip", "skip"]
        assert "mlp" in plan.results[1].said

    def test_a_tile_alone_is_no_whole_rdu(self) -> None:
        plan = plan_tiles(status(), f"{RDU}/TILE_1")
        assert (plan.tiles, plan.rdus) == ({1: f"{RDU}/TILE_1"}, {})

    def test_a_name_that_begins_like_another_is_another(self) -> None:
        assert all(path.startswith(f"{RDU}/") for path in plan_tiles(status(), RDU).tiles.values())


def test_equal_passes_are_one_line_and_failures_their_own() -> None:
    passed = [CheckResult("memory", f"{RDU}/TILE_{n}", CheckVerdict.PASS, "5 patterns", seconds=1.0) for n in range(3)]
    failed = CheckResult("memory", f"{RDU}/TILE_3", CheckVerdict.FAIL, "1 of 8 bytes", "cordon it")
    found = summed([*passed, failed])
    assert [(r.component, r.seconds) for r in found] == [(f"{RDU}/TILE_3", 0.0), ("3 components", 3.0)]
    assert "cordon it" in result_lines(found)[1]


class TestCommandThere:
    def test_all_but_the_host_goes_along_quoted(self) -> None:
        line = command_there(
            "ssh -p 22", "me@there", "snfadm", ["-l", "fault", "--host", "me@there", "-c", "a b"], False
        )
        assert line == ["ssh", "-p", "22", "me@there", "--", "snfadm -l fault -c 'a b'"]
        assert command_there("ssh", "h", "t", ["--host=h", "top"], True) == ["ssh", "-t", "h", "--", "t top"]

    def test_every_tool_runs_there(self) -> None:
        from rdukit_node.cli.exporter import exporter
        from rdukit_node.cli.slurmfeeder import slurmfeeder
        from rdukit_node.cli.snconfig import snconfig
        from rdukit_node.cli.snddrstat import snddrstat
        from rdukit_node.cli.snfadm import snfadm
        from rdukit_node.cli.snpciestat import snpciestat
        from rdukit_node.cli.sntilestat import sntilestat
        from rdukit_runtime.profile.snprof import snprof

        tools = (exporter, slurmfeeder, snconfig, snddrstat, snfadm, snpciestat, snprof, sntilestat)
        for tool in tools:
            assert "--host" in CliRunner().invoke(tool, ["--help"]).output, tool.name

    @pytest.mark.parametrize("host", ["-oProxyCommand=x", "", "a b", "a;b"])
    def test_what_is_no_host_is_refused(self, host: str) -> None:
        with pytest.raises(InvalidArgument, match="expected HOST"):
            command_there("ssh", host, "snfadm", [], False)

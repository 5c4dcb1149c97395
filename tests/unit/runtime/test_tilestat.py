"""What sntilestat prints, and when the statistics tools sample."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument
from rdukit_node.cli.intervals import StatisticsOptions, document, fit_lines, make_plan
from rdukit_node.cli.output import csv_text
from rdukit_node.cli.snddrstat import snddrstat
from rdukit_node.cli.snpciestat import snpciestat
from rdukit_node.cli.sntilestat import TOOL, sntilestat, tile_lines, tile_rows
from rdukit_node.telemetry.sampling import Reading
from support import shows
from support.node.harness import FakeNode

pytestmark = shows("sntilestat", "tools", "node-watch")


def readings(platform: str = "SN10-8") -> tuple[Reading, Reading, FakeNode]:
    """Two programs for one second: tiles 0 and 1 are jdoe's, tile 5 is ann's and idle."""
    node = FakeNode(platform)
    node.grant("a", [0, 1], pid=41207)
    node.grant("b", [5], pid=7, user="ann", job="j7", command="python " + "x" * 60)
    before = node.read()
    node.work("a", exec_ns=957_000_000, pload_ns=6_000_000, aload_ns=3_000_000)
    node.advance(1)
    return before, node.read(), node


def rows(options: StatisticsOptions, platform: str = "SN10-8") -> list[dict[str, Any]]:
    before, after, _ = readings(platform)
    return tile_rows(before, after, options)


def test_the_layout_is_that_of_the_vendors_tool() -> None:
    assert tile_lines(rows(StatisticsOptions()))[:7] == [
        "TILE                 %idle %exec %pload %aload %chkpt %quiesce    PID     USER COMMAND",
        "/XRDU_0/RDU_0/TILE_0   3.4  95.7    0.6    0.3    0.0      0.0  41207     jdoe "
        "python mlp.py run --pef=pef/mlp/mlp.pef",
        "/XRDU_0/RDU_0/TILE_1   3.4  95.7    0.6    0.3    0.0      0.0  41207     jdoe "
        "python mlp.py run --pef=pef/mlp/mlp.pef",
        "/XRDU_0/RDU_0/TILE_2 100.0   0.0    0.0    0.0    0.0      0.0",
        "/XRDU_0/RDU_0/TILE_3 100.0   0.0    0.0    0.0    0.0      0.0",
        "/XRDU_0/RDU_1/TILE_0 100.0   0.0    0.0    0.0    0.0      0.0",
        "/XRDU_0/RDU_1/TILE_1 100.0   0.0    0.0    0.0    0.0      0.0      7      ann python " + "x" * 43,
    ]


@pytest.mark.parametrize(("platform", "tiles"), [("SN10-8", 32), ("SN30-8", 64), ("SN40L-16", 64), ("TEST-1", 4)])
def test_there_is_one_row_a_tile_in_the_nodes_order(platform: str, tiles: int) -> None:
    node = FakeNode(platform)
    printed = tile_lines(tile_rows(node.read(), node.read(), StatisticsOptions()))
    assert len(printed) == 1 + tiles
    assert [line.split()[0] for line in printed[1:]] == [t["path"].removeprefix("/NODE") for t in node.tiles]


def test_the_printed_percentages_of_every_line_add_up_to_a_hundred() -> None:
    node = FakeNode("TEST-1")
    node.grant("a", [0, 1, 2])
    before = node.read()
    node.work("a", exec_ns=333_333_333, pload_ns=111_111_111, aload_ns=77_777_777, chkpt_ns=55_555_555, quiesce_ns=1)
    node.advance(1)
    for line in tile_lines(tile_rows(before, node.read(), StatisticsOptions()))[1:]:
        assert sum(Decimal(number) for number in line.split()[1:7]) == Decimal(100)


def test_skip_idle_leaves_the_rdus_that_are_in_use() -> None:
    shown = [row["tile"] for row in rows(StatisticsOptions(skip_idle=True))]
    assert shown == [f"/XRDU_0/RDU_{r}/TILE_{t}" for r in (0, 1) for t in range(4)]
    node = FakeNode()
    assert tile_rows(node.read(), node.read(), StatisticsOptions(skip_idle=True)) == []


@pytest.mark.parametrize(
    "options",
    [
        StatisticsOptions(user="ann"),
        StatisticsOptions(pid=7),
        StatisticsOptions(job="j7"),
        StatisticsOptions(job="j7", user="ann", pid=7),
    ],
)
def test_filters_leave_the_tiles_of_the_holder(options: StatisticsOptions) -> None:
    assert [row["tile"] for row in rows(options)] == ["/XRDU_0/RDU_1/TILE_1"]


def test_a_process_that_only_shares_the_lease_is_found_too() -> None:
    before, after, node = readings()
    node.details["a"]["pids"] = [41207, 41208]
    assert len(tile_rows(before, node.read(), StatisticsOptions(pid=41208))) == 2
    assert tile_rows(before, after, StatisticsOptions(pid=41208)) == []


def test_broken_tiles_and_failed_programs_are_marked_and_healthy_lines_are_not() -> None:
    _, _, node = readings()
    node.set_health("/NODE/XRDU_0/RDU_0/TILE_0", "Excluded")
    node.set_health("/NODE/XRDU_0/RDU_0/TILE_2", "Unavailable")
    node.details["a"]["fault"] = {"code": "tile-fault", "message": "tile hung", "detail": {}}
    lines = tile_lines(tile_rows(node.read(), node.read(), StatisticsOptions()))
    assert lines[1].endswith("jdoe [Excluded] python mlp.py run --pef=pef/mlp/mlp.pef")
    assert lines[2].endswith("jdoe [Fault] python mlp.py run --pef=pef/mlp/mlp.pef")
    assert lines[3].endswith("0.0                 [Unavailable]")
    assert lines[4].endswith("0.0")


def test_another_users_command_line_cannot_write_to_the_terminal() -> None:
    before, _, node = readings()
    node.leases["b"].update(command="\x1b[2Jpwned\n", user="e\tve")
    line = tile_lines(tile_rows(before, node.read(), StatisticsOptions(pid=7)))[1]
    assert line.endswith("e?ve ?[2Jpwned?")


def test_long_names_widen_their_column_instead_of_shifting_the_next() -> None:
    before, _, node = readings()
    node.leases["b"].update(user="averylongname", pid=12345678)
    head, first, *_ = tile_lines(tile_rows(before, node.read(), StatisticsOptions()))
    assert head.index("COMMAND") == first.index("python")


def test_the_json_document_is_whole_also_without_rows() -> None:
    before, after, _ = readings()
    assert document(TOOL, before, after, []) == {
        "tool": "sntilestat", "node": "sm-01", "platform": "SN10-8", "time_ns": after.time_ns, "window_s": 1.0,
        "tiles": [],
    }  # fmt: skip


def test_comma_separated_values_leave_empty_what_an_idle_tile_has_not() -> None:
    lines = csv_text(TOOL.columns, rows(StatisticsOptions(skip_idle=True))).splitlines()
    assert lines[0].startswith("tile,idle,exec,pload,aload,chkpt,quiesce,pid,user,command,")
    assert lines[1].startswith("/XRDU_0/RDU_0/TILE_0,3.4,95.7,0.6,0.3,0.0,0.0,41207,jdoe,python mlp.py")
    assert lines[3] == "/XRDU_0/RDU_0/TILE_2,100.0,0.0,0.0,0.0,0.0,0.0,,,,,,,,Online"


def test_a_bare_call_answers_after_a_short_window() -> None:
    plan = make_plan(StatisticsOptions(), stdout_is_terminal=True)
    assert (plan.count, plan.is_live) == (1, False)
    assert plan.first_window_s <= 0.5


def test_one_sample_with_an_interval_is_over_that_interval() -> None:
    assert make_plan(StatisticsOptions(interval_s=3.0), stdout_is_terminal=False).first_window_s == 3.0


def test_many_samples_start_with_a_short_window() -> None:
    plan = make_plan(StatisticsOptions(interval_s=3.0, count=4), stdout_is_terminal=False)
    assert (plan.first_window_s, plan.interval_s, plan.count) == (0.5, 3.0, 4)
    assert make_plan(StatisticsOptions(interval_s=0.2, count=4), stdout_is_terminal=False).first_window_s == 0.2


def test_an_interval_goes_on_in_a_terminal_and_scripts_get_the_documented_one_sample() -> None:
    live = make_plan(StatisticsOptions(interval_s=1.0), stdout_is_terminal=True)
    assert (live.count, live.is_live) == (None, True)
    piped = make_plan(StatisticsOptions(interval_s=1.0), stdout_is_terminal=False)
    assert (piped.count, piped.is_live) == (1, False)
    machine = make_plan(StatisticsOptions(interval_s=1.0, as_json=True), stdout_is_terminal=True)
    assert (machine.count, machine.is_live) == (1, False)
    assert make_plan(StatisticsOptions(count=0), stdout_is_terminal=False).count is None


@pytest.mark.parametrize("interval", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_an_interval_that_is_no_time_is_refused(interval: float) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        make_plan(StatisticsOptions(interval_s=interval), stdout_is_terminal=False)


def test_two_forms_on_one_stdout_are_refused_and_a_file_beside_json_is_not() -> None:
    with pytest.raises(InvalidArgument, match="both write to stdout"):
        make_plan(StatisticsOptions(csv_file="-", as_json=True), stdout_is_terminal=False)
    make_plan(StatisticsOptions(csv_file="x.csv", as_json=True), stdout_is_terminal=False)


def test_a_screen_that_is_too_small_says_how_much_is_missing() -> None:
    shown = fit_lines(["abcdef", "b", "c", "d"], 40, 3, "tiles")
    assert shown == ["abcdef", "b", "… 2 more tiles; enlarge the window or pa"]
    assert fit_lines(["abcdef", "b"], 3, 2, "tiles") == ["abc", "b"]


@pytest.mark.parametrize("command", [sntilestat, snddrstat, snpciestat])
def test_every_tool_explains_its_options_with_an_example(command: Any) -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    assert "Example:" in text
    for option in ("-i SEC", "--count", "-T", "--skip-idle", "-u USER", "-p PID", "--job", "--csv", "--json"):
        assert option in text


def test_a_file_that_cannot_be_written_is_refused_before_a_node_is_asked(tmp_path: Path) -> None:
    result = CliRunner().invoke(sntilestat, ["--csv", str(tmp_path / "absent/x.csv")])
    assert isinstance(result.exception, InvalidArgument)
    assert "the file cannot be written: No such file" in result.exception.message

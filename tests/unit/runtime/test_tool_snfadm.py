"""snfadm's listings and requests, from answers as plain values."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument
from rdukit_node.cli.fault_changes import change_lines, change_request, policy_request, read_pair
from rdukit_node.cli.fault_views import (
    VIEWS,
    choose_rows,
    find_severity,
    judge,
    running_rows,
    suggestion_blocks,
    view_blocks,
    view_csv,
    view_lines,
    with_advice,
    with_elapsed,
    with_node_prefix,
)
from rdukit_node.cli.snfadm import _verdict, check_component, fetch_rows, snfadm
from support import shows

pytestmark = shows("snfadm", "tools")

INVENTORY = [
    {"comp_name": "/NODE", "kind": "NODE", "serial": "N/A"},
    {"comp_name": "/NODE/XRDU_1", "kind": "XRDU", "serial": "N/A"},
    {"comp_name": "/NODE/XRDU_1/RDU_0", "kind": "RDU", "serial": "4170B03145A6C210"},
    {"comp_name": "/NODE/XRDU_1/RDU_0/DDRCH_0", "kind": "DDRCH", "serial": "N/A"},
    {"comp_name": "/NODE/XRDU_1/RDU_0/DDRCH_0/DIMM_C0", "kind": "DIMM", "serial": "31C0A11"},
    {"comp_name": "/NODE/XRDU_1/RDU_0/PCIE_0", "kind": "PCIE", "serial": "N/A"},
    {"comp_name": "/NODE/XRDU_1/RDU_0/TILE_0", "kind": "TILE", "serial": "N/A"},
]
COMPONENTS = [{**row, "presence": "Present", "health": "Online", "size_bytes": 0} for row in INVENTORY]
FAULT: dict[str, Any] = {
    "fault_uuid": "9f0c6e1a-0000-4000-8000-000000000051", "timestamp": 1_718_072_095 * 10**9, "severity": "Major",
    "fault_type": "FTYPE_TILE_EXCLUDED", "fault_state": "ACTIVE", "comp_name": "/NODE/XRDU_2/RDU_1/TILE_5",
    "comp_ser_num": "N/A", "err_uuid": "e-1", "fault_desc": "The tile hung.", "recovery_act": "Reset the RDU.",
    "cleared_timestamp": None, "cleared_by": None, "suspects": [], "action": "exclude-tile", "application": None,
    "tenant": None, "job": None,
}  # fmt: skip
LINK = {
    **FAULT, "fault_uuid": "f-2", "severity": "Critical", "fault_type": "FTYPE_HOST_PCIE",
    "comp_name": "/NODE/XRDU_0/RDU_0/PCIE_0", "suspects": ["/NODE/XRDU_0/RDU_0/PCIE_0", "/NODE/XRDU_0"],
}  # fmt: skip
FUNCTIONAL = {"rdu": 0, "comp_name": "/NODE/XRDU_0/RDU_0", "state": "FUNCTIONAL"}


class FakeReader:
    """Answers with pages of rows, as the daemon does."""

    age_s: float | None = None

    def __init__(self, rows: list[dict[str, Any]], key: str) -> None:
        self.rows, self.key = rows, key
        self.asked: list[tuple[str, dict[str, object]]] = []

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        self.asked.append((op, {name: value for name, value in arguments.items() if value is not None}))
        identities = [row["fault_uuid"] for row in self.rows]
        start = identities.index(arguments["after"]) + 1 if arguments.get("after") else 0
        return {self.key: self.rows[start : start + 2], "more": start + 2 < len(self.rows)}


OPTIONS: dict[str, Any] = {"component": None, "since": None, "until": None, "all_faults": False}


def test_the_inventory_has_four_columns_and_only_parts_that_can_fail() -> None:
    assert view_lines(VIEWS["inventory"], COMPONENTS) == [
        "/NODE/XRDU_1/RDU_0 | 4170B03145A6C210 | Present | Online",
        "/NODE/XRDU_1/RDU_0/DDRCH_0/DIMM_C0 | 31C0A11 | Present | Online",
        "/NODE/XRDU_1/RDU_0/PCIE_0 | N/A | Present | Online",
        "/NODE/XRDU_1/RDU_0/TILE_0 | N/A | Present | Online",
    ]


def test_a_fault_is_one_line() -> None:
    assert view_lines(VIEWS["fault"], [FAULT]) == [
        f"2024-06-11T02:14:55Z  {FAULT['fault_uuid']}  Major  FTYPE_TILE_EXCLUDED  /NODE/XRDU_2/RDU_1/TILE_5  ACTIVE"
    ]


@pytest.mark.parametrize("name", VIEWS)
def test_a_listing_of_nothing_is_no_line_and_a_csv_header(name: str) -> None:
    view = VIEWS[name]
    assert view_lines(view, []) == []
    assert view_blocks(view, []) == []
    assert view_csv(view, []) == ",".join(view.columns)


def test_the_csv_header_of_faults_is_the_documented_one() -> None:
    text = view_csv(VIEWS["fault"], [FAULT])
    assert text.splitlines()[0] == (
        "fault_uuid,timestamp,severity,fault_type,fault_state,comp_name,comp_ser_num,err_uuid,fault_desc,recovery_act,"
        "cleared_timestamp"
    )
    row = next(csv.DictReader(io.StringIO(text)))
    assert (row["timestamp"], row["cleared_timestamp"]) == ("2024-06-11T02:14:55Z", "")
    assert "suspects" in view_csv(VIEWS["fault"], [FAULT], is_verbose=True).splitlines()[0]


def test_the_long_form_has_every_field_and_numbers_the_suspects() -> None:
    lines = view_blocks(VIEWS["fault"], [FAULT, LINK])
    assert "recovery_act      : Reset the RDU." in lines
    assert "suspects          : 1. /NODE/XRDU_0/RDU_0/PCIE_0" in lines
    assert "                  : 2. /NODE/XRDU_0" in lines
    assert lines.count("") == 1


def test_the_description_of_a_cleared_fault_says_when() -> None:
    cleared = {**FAULT, "fault_state": "CLEARED", "cleared_timestamp": 1_718_072_100 * 10**9, "cleared_by": "root"}
    text = "\n".join(view_blocks(VIEWS["fault"], [cleared]))
    assert "The tile hung. (cleared by root at 2024-06-11T02:15:00Z)" in text


def test_the_long_form_of_an_error_has_the_advice_of_its_policy() -> None:
    errors = [{"err_uuid": "e-1", "err_type": "ETYPE_DDR_CE"}, {"err_uuid": "e-2", "err_type": "ETYPE_NEW"}]
    found = with_advice(errors, [{"error_type": "ETYPE_DDR_CE", "recovery_act": "Plan a replacement."}])
    assert "recovery_act   : Plan a replacement." in view_blocks(VIEWS["error"], found)
    assert found[1]["recovery_act"] is None


def test_suggestions_begin_with_the_gravest_and_keep_the_order_of_suspects() -> None:
    lines = suggestion_blocks([FAULT, LINK])
    assert lines[0].startswith("Critical  FTYPE_HOST_PCIE")
    assert lines.index("    suspect  1. /NODE/XRDU_0/RDU_0/PCIE_0") < lines.index("    suspect  2. /NODE/XRDU_0")
    assert any(line.startswith("Major") for line in lines)


def test_a_component_stands_for_its_parts_but_not_for_names_that_begin_alike() -> None:
    rows = [{"comp_name": f"/NODE/XRDU_0/RDU_0/TILE_{n}"} for n in (1, 10)]
    tile = with_node_prefix("/XRDU_0/RDU_0/TILE_1")
    assert choose_rows(VIEWS["inventory"], rows, component=tile) == rows[:1]
    assert choose_rows(VIEWS["inventory"], rows, component=with_node_prefix("NODE/XRDU_0/")) == rows
    assert choose_rows(VIEWS["catalogue"], [{"name": "x"}], component=tile) == [{"name": "x"}]


def test_times_limit_rows_from_both_sides() -> None:
    rows = [{"timestamp": n, "comp_name": "/NODE"} for n in (1, 2, 3)]
    assert choose_rows(VIEWS["hang"], rows, since=2, until=2) == rows[1:2]


def test_all_pages_are_fetched() -> None:
    rows = [{**FAULT, "fault_uuid": f"f-{n}"} for n in range(5)]
    reader = FakeReader(rows, "faults")
    found = fetch_rows(reader, VIEWS["fault"], {**OPTIONS, "all_faults": True, "component": "/XRDU_2"})  # type: ignore[arg-type]
    assert found == rows
    assert [arguments.get("after") for _, arguments in reader.asked] == [None, "f-1", "f-3"]
    assert reader.asked[0] == ("faults", {"limit": 500, "cleared": True, "component": "/NODE/XRDU_2"})


class OnePlatform:
    """Says which platform it is, and has nothing to report."""

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        return {"platform": "TEST-1", "faults": [], "rdus": []}


def test_a_component_that_the_node_does_not_have_is_refused_instead_of_called_healthy() -> None:
    check_component(OnePlatform(), "/XRDU_0/RDU_0")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="TEST-1 has no component '/XRDU_9'; expected /NODE/XRDU_0"):
        check_component(OnePlatform(), "/XRDU_9")  # type: ignore[arg-type]


ENDED: dict[str, Any] = {
    "lease": "lease-1", "application": "logreg", "tenant": "t", "job": "j1", "user": "ann", "pid": 12,
    "command": "python logreg.py", "tiles": ["/NODE/XRDU_0/RDU_0/TILE_0"], "memory_bytes": 1024,
    "granted_at": 10 * 10**9, "ended_at": 70 * 10**9, "reason": "released by a holder", "runs": 3, "sections": 9,
    "cycles": 7, "flops": 8, "bytes": 9, "host_seconds": 0.5, "fault": None,
}  # fmt: skip
HELD: dict[str, Any] = {
    "id": "lease-2", "application": "gpt", "tenant": None, "job": None, "user": "bob", "pids": [13, 14],
    "command": "python gpt.py", "tiles": ["/NODE/XRDU_0/RDU_1/TILE_0"], "memory_bytes": 2048, "granted_at": 80.0,
    "counters": {"runs": 1, "sections": 2, "phase": "exec"}, "fault": None,
}  # fmt: skip


def test_applications_are_listed_with_who_how_long_and_why_they_ended() -> None:
    rows = with_elapsed([*running_rows([HELD]), ENDED], now_ns=90 * 10**9)
    assert [line.split() for line in view_lines(VIEWS["applications"], rows)] == [
        "1970-01-01T00:01:20Z 10 s lease-2 gpt bob tenant=- job=- tiles=1 runs=1 host=0 s running".split(),
        "1970-01-01T00:00:10Z 1 min lease-1 logreg ann tenant=t job=j1 tiles=1 runs=3 host=500 ms released by a "
        "holder".split(),
    ]
    table = list(csv.DictReader(io.StringIO(view_csv(VIEWS["applications"], rows, is_verbose=True))))
    assert [(row["elapsed_s"], row["ended_at"], row["command"]) for row in table] == [
        ("10.0", "", "python gpt.py"), ("60.0", "1970-01-01T00:01:10Z", "python logreg.py"),
    ]  # fmt: skip


def test_an_application_that_the_hardware_failed_says_after_which_fault_it_ended() -> None:
    failed = {**HELD, "fault": {"code": "tile-fault", "message": "it hangs", "detail": {"fault_uuid": "f-1"}}}
    rows = with_elapsed([*running_rows([failed]), {**ENDED, "fault": "f-2"}], now_ns=90 * 10**9)
    lines = view_lines(VIEWS["applications"], rows)
    assert lines[0].endswith("running, after fault f-1")
    assert lines[1].endswith("released by a holder, after fault f-2")


def test_applications_are_chosen_by_their_tiles_and_by_the_time_in_which_they_were_there() -> None:
    rows = [*running_rows([HELD]), ENDED]
    view = VIEWS["applications"]
    assert choose_rows(view, rows, component="/NODE/XRDU_0/RDU_0") == [ENDED]
    assert choose_rows(view, rows, since=71 * 10**9) == rows[:1]
    assert choose_rows(view, rows, since=20 * 10**9, until=30 * 10**9) == [ENDED]
    assert choose_rows(view, rows, until=5 * 10**9) == []


POLICY: dict[str, Any] = {
    "error_type": "ETYPE_DDR_CE", "fault_type": "FTYPE_DIMM_CE_RATE", "count": 24, "window_s": 86400, "action": "none",
    "severity": "Minor", "fault_desc": "d", "fault_detail_desc": "e", "recovery_act": "r",
}  # fmt: skip
NO_CHANGE: dict[str, Any] = {
    "set_policy": "ETYPE_DDR_CE", "count": None, "window": None, "action": None, "severity": None, "fault_type": None,
}  # fmt: skip


def test_a_policy_keeps_what_the_options_do_not_say() -> None:
    assert policy_request({**NO_CHANGE, "count": 3, "severity": "major"}, [POLICY]) == {
        "error_type": "ETYPE_DDR_CE", "fault_type": "FTYPE_DIMM_CE_RATE", "count": 3, "window_s": 86400,
        "action": "none", "severity": "Major",
    }  # fmt: skip
    assert change_lines("--set-policy", {"policy": POLICY}) == [
        "ETYPE_DDR_CE  FTYPE_DIMM_CE_RATE  24 in 86400 s  none  Minor"
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"set_policy": "ETYPE_X", "count": 1}, "expected ETYPE_DDR_CE"),
        ({}, "--count, --window, --action, --severity, --fault-type"),
        ({"severity": "bad"}, "Minor, Major, Critical"),
        ({"action": "bad"}, "retire-channel"),
    ],
)
def test_a_policy_that_is_none_is_refused_with_what_is_legal(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        policy_request({**NO_CHANGE, **options}, [POLICY])


def test_a_policy_without_a_count_says_when_its_fault_comes() -> None:
    assert "if the reset fails" in view_lines(VIEWS["policy"], [{**POLICY, "count": 1_000_000, "window_s": 60}])[0]


@pytest.mark.parametrize(
    ("severity", "status"), [("Minor", 1), ("Major", 1), ("Critical", 0)], ids=["minor", "major", "critical"]
)
def test_the_verdict_counts_faults_from_a_severity_on(severity: str, status: int) -> None:
    assert judge([FAULT], [FUNCTIONAL], severity, is_current=True).exit_status == status


def test_cleared_faults_do_not_count() -> None:
    verdict = judge([{**FAULT, "fault_state": "CLEARED"}], [FUNCTIONAL], "Minor", is_current=True)
    assert (verdict.exit_status, verdict.line) == (0, "healthy")


def test_a_node_that_recovers_is_not_called_healthy() -> None:
    verdict = judge([], [{**FUNCTIONAL, "state": "PENDING"}], "Critical", is_current=True)
    assert (verdict.exit_status, verdict.line) == (1, "faulty: /NODE/XRDU_0/RDU_0 is PENDING")


def test_a_database_without_a_daemon_can_tell_faults_but_not_health() -> None:
    assert judge([], [FUNCTIONAL], "Minor", is_current=False).exit_status == 2
    assert judge([FAULT], [FUNCTIONAL], "Minor", is_current=False).exit_status == 1


class OneFault(FakeReader):
    """Tells of one active fault who asks for its time, as the daemon does."""

    def ask(self, op: str, since: int | None = None, until: int | None = None, **arguments: object) -> dict[str, Any]:
        is_asked_for = (since or 0) <= FAULT["timestamp"] <= (until or FAULT["timestamp"])
        return {"faults": [FAULT] if is_asked_for else [], "rdus": [FUNCTIONAL]}


@pytest.mark.parametrize("times", [{"since": "2h"}, {"until": "2001-01-01T00:00:00"}], ids=str)
def test_the_times_of_a_listing_hide_no_active_fault_from_the_verdict(times: dict[str, str]) -> None:
    reader, options = OneFault([], ""), {**OPTIONS, **times, "severity": None, "as_json": False}
    assert fetch_rows(reader, VIEWS["fault"], options) == []  # type: ignore[arg-type]
    assert _verdict(reader, "fault", options) == 1  # type: ignore[arg-type]


def test_a_severity_is_found_in_any_case_and_others_are_refused() -> None:
    assert find_severity("critical") == "Critical"
    with pytest.raises(InvalidArgument, match="Minor, Major, Critical"):
        find_severity("fatal")


def test_an_injection_holds_only_what_was_given() -> None:
    given = {
        "inject_class": "ddr-ue",
        "component": "/XRDU_0",
        "count": 3,
        "seed": None,
        "data": ("address=4096", "by=me"),
    }
    assert change_request("--inject", given) == (
        "inject",
        {
            "events": [
                {"class": "ddr-ue", "component": "/NODE/XRDU_0", "count": 3, "data": {"address": 4096, "by": "me"}}
            ]
        },
    )
    bare = {"inject_class": "ddr-ue", "component": None, "count": None, "seed": None, "data": ()}
    assert change_request("--inject", bare) == ("inject", {"events": [{"class": "ddr-ue"}]})


def test_repair_and_reset_take_paths_without_the_node() -> None:
    assert change_request("--reset", {"reset": "/XRDU_0/RDU_1"}) == ("reset", {"component": "/NODE/XRDU_0/RDU_1"})
    assert change_request("--repair", {"repair": "/NODE"}) == ("repair", {"component": "/NODE"})


def test_data_is_read_as_json_where_it_is_and_else_as_text() -> None:
    assert [read_pair(text) for text in ("n=1", "list=[1]", "word=a b", "empty=", "eq=a=b")] == [
        ("n", 1), ("list", [1]), ("word", "a b"), ("empty", ""), ("eq", "a=b"),
    ]  # fmt: skip
    for wrong in ("novalue", "=1"):
        with pytest.raises(InvalidArgument, match="KEY=VALUE"):
            read_pair(wrong)


def test_a_scenario_that_is_absent_binary_or_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_text("x" * 300_000)
    for name in ("absent", "binary", "long"):
        with pytest.raises(InvalidArgument, match="the scenario"):
            change_request("--scenario", {"scenario": tmp_path / name, "seed": None})


def test_clearing_says_whether_the_fault_came_back() -> None:
    answer = {"fault": FAULT, "returned": "f-9"}
    assert change_lines("--clear", answer)[1].startswith("the fault returned as f-9, because its cause remains")
    assert len(change_lines("--clear", {"fault": FAULT, "returned": None})) == 1


def test_what_an_injection_made_is_listed_once_each() -> None:
    assert change_lines("--inject", {"errors": ["a", "a", "b"], "faults": ["f"]}) == ["error a", "error b", "fault f"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-l", "fault", "--clear", "x"],
        ["--repair", "/NODE", "--reset", "/NODE"],
        ["-l", "fault", "--csv", "--json"],
        ["-l", "inventory", "--follow"],
        ["-l", "fault", "--severity", "Minor"],
        ["--exit-code", "--severity", "bad"],
        ["-l", "fault", "--count", "2"],
        ["-l", "policy", "--action", "none"],
        ["--inject", "tile-hang", "--window", "3"],
        ["-l", "fault", "--since", "soon"],
        ["--clear", "x", "--exit-code"],
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_is_asked(arguments: list[str]) -> None:
    result = CliRunner().invoke(snfadm, arguments)
    assert isinstance(result.exception, InvalidArgument)

"""What the admin tools share."""

import csv
import importlib
import io
import json

import pytest

from rdukit.errors import InvalidArgument
from rdukit_node.cli.output import aligned, csv_text, json_text, parse_time, time_text
from support import shows

pytestmark = shows("tools")

NOW = 1_718_072_095.0  # 2024-06-11T02:14:55Z


def test_columns_line_up_and_lines_have_no_blanks_at_the_end() -> None:
    lines = aligned([["TILE", "%idle"], ["/XRDU_0", "3.4"], ["", "100.0"]], right=(1,))
    assert lines == ["TILE     %idle", "/XRDU_0    3.4", "         100.0"]
    assert aligned([]) == []


def test_csv_has_its_header_when_there_is_nothing_to_report() -> None:
    assert csv_text(("a", "b"), []) == "a,b"


def test_csv_can_be_read_back_whatever_the_cells_hold() -> None:
    rows = [{"a": 'say "no", twice\nover', "b": ["x", "y"], "c": None}, {"a": 1, "c": {"k": 2}}]
    found = list(csv.DictReader(io.StringIO(csv_text(("a", "b", "c"), rows))))
    assert found == [{"a": 'say "no", twice\nover', "b": "x;y", "c": ""}, {"a": "1", "b": "", "c": '{"k": 2}'}]


def test_json_is_one_document_with_keys_in_order() -> None:
    text = json_text({"b": [], "a": 1})
    assert json.loads(text) == {"a": 1, "b": []}
    assert text.index('"a"') < text.index('"b"')


def test_times_are_read_as_written_in_any_zone_and_as_ages() -> None:
    exact = int(NOW) * 10**9
    assert time_text(exact) == "2024-06-11T02:14:55Z"
    assert parse_time("2024-06-11T02:14:55Z", 0.0) == exact
    assert parse_time("2024-06-11T02:14:55", 0.0) == exact
    assert parse_time("2024-06-11T04:14:55+02:00", 0.0) == exact
    assert parse_time("10m", NOW) == exact - 600 * 10**9
    assert parse_time("2d", NOW) == exact - 2 * 86400 * 10**9
    assert time_text(None) == "-"
    assert time_text(2**200) == str(2**200)


@pytest.mark.parametrize("text", ["", "yesterday", "10", "-5m", "2024-13-01", "1y"])
def test_a_time_that_is_none_is_refused_with_what_is_legal(text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected 2024"):
        parse_time(text, NOW)


@pytest.mark.parametrize("tool", ["snfadm", "snconfig", "sntilestat", "snddrstat", "snpciestat"])
def test_each_tool_takes_the_folder_of_the_nodes_state(tool: str) -> None:
    command = getattr(importlib.import_module(f"rdukit_node.cli.{tool}"), tool)
    groups = [command, *getattr(command, "commands", {}).values()]
    assert any("--state" in option.opts for each in groups for option in each.params) or any(
        "--state" in option.opts
        for each in groups
        for inner in getattr(each, "commands", {}).values()
        for option in inner.params
    )

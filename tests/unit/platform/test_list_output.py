"""What commands print of an answer: JSON for machines, else a line or a table, with the option of the next page."""

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rdukit.cli.commands import JSON_OPTION
from rdukit_platform.cli import show
from support import shows

pytestmark = shows("jobs")

PAGE: dict[str, Any] = {"things": [{"id": "one"}, {"id": "other"}], "next_cursor": None}


@click.command()
@show.page_options
@JSON_OPTION
def things(limit: int, cursor: str | None, as_json: bool) -> None:
    """List things from the cursor on."""
    page = {**PAGE, "next_cursor": cursor}
    show.print_page(page, as_json, ("ID", "NUMBER"), [(one["id"], limit) for one in page["things"]])


def test_a_page_is_a_table_and_names_the_option_of_the_next_one() -> None:
    shown = CliRunner().invoke(things, ["--limit", "7", "--cursor", "abc"], catch_exceptions=False)
    assert [line.split() for line in shown.stdout.splitlines()] == [["ID", "NUMBER"], ["one", "7"], ["other", "7"]]
    assert shown.stderr == "more with: --cursor abc\n"
    last = CliRunner().invoke(things, catch_exceptions=False)
    assert last.stderr == ""
    assert "50" in last.stdout


def test_a_page_as_json_is_the_answer_itself() -> None:
    shown = CliRunner().invoke(things, ["--json", "--cursor", "abc"], catch_exceptions=False)
    assert json.loads(shown.stdout) == {**PAGE, "next_cursor": "abc"}
    assert shown.stderr == ""


@pytest.mark.parametrize("limit", ["0", "201", "many"])
def test_a_page_has_1_to_200_lines(limit: str) -> None:
    refused = CliRunner().invoke(things, ["--limit", limit])
    assert refused.exit_code == 2
    assert "--limit" in refused.output


def test_an_answer_is_json_or_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_answer({"id": "one"}, as_json=True, text="one is there")
    assert json.loads(capsys.readouterr().out) == {"id": "one"}
    show.print_answer({"id": "one"}, as_json=False, text="one is there")
    assert capsys.readouterr().out == "one is there\n"

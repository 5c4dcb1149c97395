"""Tables on the command line: within the screen, words whole."""

from pathlib import Path

import pytest

from rdukit.cli.tables import Table, format_table, print_fields, print_table
from rdukit.pef.file import read_pef
from rdukit.pef.inspect import memory_plan_tables, pef_tables, symbols_table
from support import shows
from support.pefs.examples import write_example_pef

pytestmark = shows("pef")

WORDS = "one two three four five six seven eight nine ten eleven twelve"
TABLE = Table("", ("ID", "SIZE", "WHAT"), (("job-1", "1", WORDS), ("job-22", "10", "short")), frozenset({"SIZE"}))


def test_without_a_screen_a_row_is_a_line() -> None:
    assert format_table(TABLE).splitlines() == [
        "ID      SIZE  WHAT",
        f"job-1      1  {WORDS}",
        "job-22    10  short",
    ]


def test_a_long_cell_goes_on_at_the_next_line_between_words() -> None:
    assert format_table(TABLE, 50).splitlines() == [
        "ID      SIZE  WHAT",
        "job-1      1  one two three four five six seven",
        "              eight nine ten eleven twelve",
        "job-22    10  short",
    ]


def test_too_many_columns_are_cut_into_bands_that_begin_with_the_first() -> None:
    columns = tuple(f"column-{i}" for i in range(6))
    lines = format_table(Table("", columns, (tuple("abcdef"),)), 32).splitlines()
    assert lines == [
        "column-0  column-1  column-2",
        "a         b         c",
        "",
        "column-0  column-3  column-4",
        "a         d         e",
        "",
        "column-0  column-5",
        "a         f",
    ]


def test_a_word_longer_than_the_screen_stays_whole() -> None:
    path = "/very/long" * 10
    assert path in format_table(Table("", ("WHAT", "VALUE"), (("path", path),)), 40)


def test_a_list_goes_on_after_a_comma() -> None:
    lines = format_table(Table("", ("BOX", "VERBS"), (("logreg", "preprocess,compile,train,infer"),)), 30).splitlines()
    assert lines[1:] == ["logreg  preprocess,compile,", "        train,infer"]


def test_a_time_is_not_broken_and_a_band_leaves_out_rows_without_cells_in_it() -> None:
    rows = (("lab", "a" * 30, "2026-11-26 23:34:18"), ("other", "b" * 30, ""))
    lines = format_table(Table("", ("NAME", "TITLE", "CREATED"), rows), 40).splitlines()
    assert lines[-2:] == ["NAME   CREATED", "lab    2026-11-26 23:34:18"]


def test_fields_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("id", "job-1"), ("reason", ""), ("tiles", 0), ("error", None)])
    assert capsys.readouterr().out == "id     job-1\ntiles  0\n"


def test_a_name_with_control_characters_moves_no_cursor_and_adds_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("ID", "NAME"), [("job-1", "a\x1b[31m\nb\x9b")])
    assert capsys.readouterr().out == "ID     NAME\njob-1  a\\x1b[31m\\nb\\x9b\n"


def test_a_field_of_several_lines_keeps_them_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([("id", "job-1"), ("error", "line 1\nstate\x1b[1m")])
    assert capsys.readouterr().out == "id     job-1\nerror  line 1\n       state\\x1b[1m\n"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_pefs_tables_fit_the_screen(width: int, tmp_path: Path) -> None:
    loaded = read_pef(write_example_pef(tmp_path / "example.pef", natives=True))
    for table in [*pef_tables(loaded), symbols_table(loaded.pef), *memory_plan_tables(loaded.pef)]:
        text = format_table(table, width)
        assert max(map(len, text.splitlines())) <= width
        assert set(" ".join(map(" ".join, table.rows)).split()) <= set(text.split())


def test_a_colour_is_seen_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("ID", "STATE"), [("job-1", "failed")], {"failed": "red"})
    assert capsys.readouterr().out == "ID     STATE\njob-1  failed\n"
    table = Table("", ("ID", "STATE"), (("job-1", "failed"),))
    assert "\x1b[31mfailed\x1b[0m" in format_table(table, 80, {"failed": "red"})

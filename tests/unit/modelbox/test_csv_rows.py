"""CSV files of tables and of texts are read by the same rules."""

from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.sources import Format, RowErrors, SourceFile
from rdukit_modelbox.preprocessing.table_rows import open_csv
from support import shows

pytestmark = shows("preprocess")


def source_of(folder: Path, text: str, name: str = "rows.csv") -> SourceFile:
    path = folder / name
    path.write_text(text)
    return SourceFile(path, name, Format.CSV, path.stat().st_size, 0, is_gzip=False)


def test_rows_that_are_no_csv_or_of_another_length_are_skipped_and_told(tmp_path: Path) -> None:
    source = source_of(tmp_path, 'a , b\n1,2\n"x"y,2\n\n3\n"two\nlines",4\n')
    bad = RowErrors(skips=True)
    with open_csv(source, bad) as file:
        assert file.header == ["a", "b"]
        assert list(file.rows()) == [(2, ["1", "2"]), (7, ["two\nlines", "4"])]
        assert file.consumed == source.bytes
    assert bad.count == 2
    assert bad.examples[0].startswith("rows.csv:3: ")
    assert bad.examples[1] == "rows.csv:5: 1 fields"


def test_a_name_with_tsv_means_tabs(tmp_path: Path) -> None:
    with open_csv(source_of(tmp_path, "a\tb\n1,5\t2\n", "rows.TSV"), RowErrors(skips=False)) as file:
        assert list(file.rows()) == [(2, ["1,5", "2"])]


def test_a_header_with_semicolons_and_no_comma_means_semicolons(tmp_path: Path) -> None:
    source = source_of(tmp_path, '"a, b";c\n"1;2";3,4\n')
    with open_csv(source, RowErrors(skips=False)) as file:
        assert file.header == ["a, b", "c"]
        assert list(file.rows()) == [(2, ["1;2", "3,4"])]
    with open_csv(source_of(tmp_path, '"a;b",c\n1,2;3\n'), RowErrors(skips=False)) as file:
        assert file.header == ["a;b", "c"] and list(file.rows()) == [(2, ["1", "2;3"])]


@pytest.mark.parametrize("skips", [False, True])
def test_a_header_that_is_no_csv_is_refused_even_where_bad_rows_are_skipped(tmp_path: Path, skips: bool) -> None:
    source = source_of(tmp_path, '"a"b,c\n1,2\n')
    with (
        pytest.raises(InvalidArgument, match=r"rows\.csv:1: the header .*; expected fields as in RFC 4180"),
        open_csv(source, RowErrors(skips=skips)),
    ):
        pass


@pytest.mark.parametrize("mark", ["\t", "|"])
def test_fields_between_other_marks_are_named_and_one_column_is_one(tmp_path: Path, mark: str) -> None:
    with (
        pytest.raises(InvalidArgument, match=r"rows\.csv:1: the header is one column, .*; expected fields betw"),
        open_csv(source_of(tmp_path, f"a{mark}b\n1{mark}2\n"), RowErrors(skips=True)),
    ):
        pass
    with open_csv(source_of(tmp_path, f"text\na{mark}b\n"), RowErrors(skips=False)) as file:
        assert list(file.rows()) == [(2, [f"a{mark}b"])]

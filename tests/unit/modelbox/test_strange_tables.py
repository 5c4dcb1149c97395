"""Tables as strangers bring them: codes, signs, forms of dates, odd Parquet and JSON lines, and columns that tell."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from rdukit.errors import IllegalValue, InvalidArgument
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.preprocessing.columns import RowPreprocessRequest, as_name, classes_of, split_names
from rdukit_modelbox.preprocessing.datasets import load_dataset
from rdukit_modelbox.preprocessing.rows import preprocess_rows
from rdukit_modelbox.preprocessing.sources import Format, find_sources
from rdukit_modelbox.preprocessing.table_rows import find_layout
from rdukit_modelbox.verbs.context import VerbResult
from rdukit_serving.raw_inputs.layout import CATEGORY, NUMBER, find_kind
from rdukit_serving.raw_inputs.legal_values import NotLegal, date_of, name_of
from rdukit_serving.raw_inputs.preprocessing import TablePreprocessing, find_preprocessing, read_features
from support import shows
from support.boxes import RecordingContext

pytestmark = shows("tables", "preprocess")

Write = Callable[[Path], Path]
COLUMN = arrow.array([1, 2, 3, 4])


def preprocess(data: Path, output: Path, **changed: Any) -> VerbResult:
    context = RecordingContext(load_box(find_box_file("mlp")))
    usual: dict[str, Any] = {"normalize": "as_is", "limit": 0, "test_ratio": 0.0, "columns": "", "categorical": ""}
    return preprocess_rows(context, {**usual, "label_column": "label", **changed}, {"data": data}, output)


def table(folder: Path, text: str, **changed: Any) -> TablePreprocessing:
    (folder / "t.csv").write_text(text)
    preprocess(folder / "t.csv", folder, **changed)
    found = find_preprocessing(folder / "dataset")
    assert found is not None
    return found


def lines(*rows: str) -> Write:
    def write(folder: Path) -> Path:
        (folder / "t.jsonl").write_text("\n".join(rows) + "\n")
        return folder / "t.jsonl"

    return write


def csv(text: str) -> Write:
    def write(folder: Path) -> Path:
        (folder / "t.csv").write_bytes(text.encode())
        return folder / "t.csv"

    return write


def columns(**values: Any) -> Write:
    def write(folder: Path) -> Path:
        names = [name.rstrip("_") for name in values]
        parquet.write_table(arrow.Table.from_arrays(list(values.values()), names=names), folder / "t.parquet")
        return folder / "t.parquet"

    return write


def files(**texts: str) -> Write:
    def write(folder: Path) -> Path:
        (folder / "in").mkdir()
        for name, text in texts.items():
            (folder / "in" / f"{name}.csv").write_text(text)
        return folder / "in"

    return write


LABELS = arrow.array(["a", "b", "a", "b"])
MARKED = r"t\.csv:2, column 'x': .* is not a number; expected a number with a decimal point, without commas, spaces"


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (columns(x=COLUMN, x_=COLUMN, label=LABELS), r"t\.parquet: more than one column is named 'x'; expected differ"),
        (columns(x=arrow.array([10**7] * 4, arrow.int32()).cast(arrow.date32()), label=LABELS),
         r"t\.parquet:1, column 'x': the date32.* is not a date; expected one from the year 1"),
        (columns(x=arrow.array([1] * 4, arrow.timestamp("us", "Mars/Olympus")), label=LABELS),
         r"t\.parquet:1, column 'x': the timestamp.* is not a date; .* in a known zone"),
        (columns(x=arrow.array([1001] * 4, arrow.duration("ns")), label=LABELS), r"t\.parquet:1, .*is not a name"),
        (columns(x=arrow.array([1e17] * 4), label=arrow.array([2.0**53, 1, 2, 3])),
         r"t\.parquet:1, column 'label': 9007199254740992 as a float stands for several .*expected such a number as"),
        (lines('{"x": 1, "label": "a"}', '{"x": 1, "x": 2, "label": "b"}'), r"t\.jsonl:2, column 'x': the key 'x' is"),
        (lines(*['{"x": 1, "label": "a"}'] * 2048, '{"x": 1, "y": 2, "label": "a"}'),
         r"t\.jsonl:2049, column 'y': the key 'y' is new; expected the keys of the first rows: label, x"),
        (lines('{"x": 1, "label": "a"}', '{"x": 1, "y": 2, "label": "b"}'), r"t\.jsonl:1, column 'y': no value"),
        (files(one="x,y,label\n1,2,a\n", two="x,label\n1,b\n"), r"two\.csv lacks the column 'y'; expected the columns"),
        (files(one="x,label\n1,a\n", two="x,y,label\n1,2,b\n"), r"two\.csv also has the column 'y'; expected the colu"),
        (csv(",x,label\n0,1,a\n1,2,b\n"), r"t\.csv: column 1 has no name; expected a name .*index=False"),
        (csv("x,label\n12%,a\n13%,b\n"), MARKED), (csv("x,label\n$5.00,a\n$6,b\n"), MARKED),
        (csv("x,label\n5 €,a\n6 €,b\n"), MARKED), (csv("x,label\n1 200,a\n3 400,b\n"), MARKED),
        (csv("x,label\n1\u202f200,a\n3\u202f400,b\n"), MARKED), (csv("x,label\n1'200,a\n3'400,b\n"), MARKED),
        (csv("x,label\n\u22125,a\n\u22126,b\n"), MARKED),
        (csv("d,label\n2024-01-02,a\n2024-01-02T03:04:05+25:00,b\n"), r"t\.csv:3, column 'd': [^;]*is not a date; exp"),
        (csv("x,label\r1,a\r2,b\r"), r"t\.csv:1: the header is not readable as CSV: a line ends with CR alone.*; expe"),
    ],
)  # fmt: skip
def test_what_would_be_misread_is_refused_by_its_place(tmp_path: Path, write: Write, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as refused:
        preprocess(write(tmp_path), tmp_path, missing="error")
    assert "timedelta" not in refused.value.message


def test_a_missing_key_is_a_missing_value_and_a_file_may_have_more_than_the_chosen_columns(tmp_path: Path) -> None:
    rows = ('{"x": 1, "label": "a"}', '{"x": 2, "y": 4, "label": "b"}', '{"x": 3, "y": 6, "label": "b"}')
    preprocess(lines(*rows)(tmp_path), tmp_path, missing="mean")
    assert load_dataset(tmp_path / "dataset").train.features_NF.tolist() == [[1, 5], [2, 4], [3, 6]]
    data = files(one="x,y,label\n1,2,a\n", two="label,x,z\nb,3,4\n")(tmp_path)
    preprocess(data, tmp_path / "chosen", columns="x")
    assert load_dataset(tmp_path / "chosen/dataset").train.features_NF.tolist() == [[1], [3]]


def test_files_without_rows_and_bad_rows_that_are_skipped_do_not_end_a_preprocess(tmp_path: Path) -> None:
    data = files(one="x,label\n1,a\n", three="x,label\n1,2,3\n2,b\n", two="x,label\n", zero="")(tmp_path)
    done = preprocess(data, tmp_path, bad_rows="skip")
    assert (done.figures["train_samples"], done.figures["bad_rows"]) == (2, 1)


def test_the_first_rows_of_json_lines_say_the_columns_of_a_box_that_reads_only_numbers(tmp_path: Path) -> None:
    data = lines('{"x": 1, "label": "a"}', '{"x": 2, "y": 4, "label": "b"}')(tmp_path)
    request = RowPreprocessRequest.of({"label_column": "label"})
    assert find_layout(find_sources(data, "*", "auto", (Format.JSONL,))[0], request).numeric == ("x", "y")


def test_a_key_that_is_there_twice_is_found_among_many(tmp_path: Path) -> None:
    many = ", ".join(f'"k{n}": 1' for n in range(100_000))
    data = lines('{"x": 1, "label": "a"}', f'{{"x": 1, {many}, "x": 2, "label": "b"}}')(tmp_path)
    with pytest.raises(InvalidArgument, match=r"t\.jsonl:2, column 'x': the key 'x' is there twice"):
        preprocess(data, tmp_path, columns="x")


def test_ranges_are_categories_and_a_number_with_leading_zeros_beside_points_is_a_number() -> None:
    assert find_kind(["0%", "1-10%", "11-50%", "0%"]) == find_kind(["$5", "free", "gift"]) == CATEGORY
    assert find_kind(["5%", "7%", "n.v."]) == find_kind(["1,5", "2,5", "low"]) == NUMBER
    assert find_kind(["0.5", "00", "3.25"]) == find_kind(["0", "1"]) == NUMBER
    assert find_kind(["00501", "501"]) == CATEGORY


def test_codes_with_leading_zeros_are_categories_and_classes_of_their_own(tmp_path: Path) -> None:
    made = table(tmp_path, "zip,x,label\n00501,0.5,01\n501,-0.5,1\n10115,0,01\n00501,10,1\n")
    assert made.feature_names == ("x", "zip=00501", "zip=10115", "zip=501")
    assert made.classes == ("01", "1")
    with pytest.raises(InvalidArgument, match="column 'zip': '502' is a category that no training row had"):
        read_features(made, [{"zip": 502, "x": 1}])
    assert classes_of(["0", "2"]) == {"0": 0, "2": 2}
    assert classes_of(["1", "9" * 5000]) == {"1": 0, "9" * 5000: 1}, "no class of ten thousand or more is a number"


@pytest.mark.parametrize(
    "text",
    ["2024-01-02T03:04:05.250+0200", "2024-01-02 03:04:05,25+02", "2024-01-02T01:04:05.250000999Z",
     "2024-01-01T19:34:05.25-05:30"],
)  # fmt: skip
def test_iso_dates_of_other_writers_are_the_same_moment(text: str) -> None:
    assert date_of(text) == datetime.datetime(2024, 1, 2, 1, 4, 5, 250_000, datetime.UTC)


def test_times_of_parquet_in_nanoseconds_are_read_without_pandas(tmp_path: Path) -> None:
    moment = 1_704_164_645_250_000_999
    for zone in (None, "Asia/Tokyo"):
        data = columns(t=arrow.array([moment] * 4, arrow.timestamp("ns", zone)), label=LABELS)(tmp_path)
        preprocess(data, tmp_path / str(zone))
        found = load_dataset(tmp_path / str(zone) / "dataset").train.features_NF
        assert found[0].tolist() == [2024, 1, 1, np.float32(moment / 86400e9)]


def test_names_with_commas_are_quoted_and_told_so(tmp_path: Path) -> None:
    assert split_names(' a , "b, c","d ""e""",, f"g') == ("a", "b, c", 'd "e"', 'f"g')
    assert split_names("a,\nb") == ("a", "b")
    for name in ("a", "b, c", 'd "e"'):
        assert split_names(as_name(name)) == (name,)
    with pytest.raises(IllegalValue, match=r"is no list of names: .*; expected names between commas, with commas as"):
        split_names('"a, b')
    text = '"size, cm",x,label\n' + "".join(f"7,{n % 5},{'ab'[n % 2]}\n" for n in range(30))
    (tmp_path / "t.csv").write_text(text)
    found: Any = preprocess(tmp_path / "t.csv", tmp_path).figures["findings"]
    (told,) = found
    assert told.endswith('leave it out with exclude="size, cm"')
    assert table(tmp_path / "..", text, exclude='"size, cm"').feature_names == ("x",)


def findings(folder: Path, header: str, rows: list[str]) -> list[str]:
    (folder / "t.csv").write_text("\n".join([header, *rows]) + "\n")
    done = preprocess(folder / "t.csv", folder, missing="zero")
    found: Any = done.figures.get("findings", [])
    return list(found)


def test_blanks_that_say_the_label_are_reported(tmp_path: Path) -> None:
    rows = [
        f"{n % 7},1,2024-01-{n % 28 + 1:02},{n % 4 or ''},late" if n % 3 else f"{n % 7},,,{n % 4 or ''},paid"
        for n in range(300)
    ]
    told = findings(tmp_path, "a,flag,paid_on,some,label", rows)
    reveals = [line.split("'")[1] for line in told if "reveals the label" in line]
    assert reveals == ["flag", "paid_on"]
    assert any("rows without a value have other labels than rows with one" in line for line in told)


def test_blanks_of_labels_that_occur_once_and_large_measures_are_not_reported(tmp_path: Path) -> None:
    rows = [f"{n % 7},{n % 4 or ''},{n % 5 * 1e18 + n % 2 / 2},c{n}" for n in range(90)]
    assert not [line for line in findings(tmp_path, "a,some,energy,label", rows) if "'a'" in line or "ome'" in line]
    assert not [line for line in findings(tmp_path, "a,some,energy,label", rows) if "'energy'" in line]


def test_ids_beyond_the_numbers_of_floats_and_odd_labels_are_reported(tmp_path: Path) -> None:
    (told,) = findings(tmp_path, "id,x,label", [f"{2**53 + n},{n % 9},{'ab'[n % 2]}" for n in range(40)])
    assert told.startswith("column 'id' has whole numbers from 2^53, of which neighbours become one number")
    (told,) = findings(tmp_path, "x,label", [f"{n % 9},{(7, 90)[n % 2]}" for n in range(40)])
    assert told.startswith("the label's numbers are classes 0 to 90, of which only 2 occur")
    told = findings(tmp_path, "x,y,label", [f"{n % 9},{n % 5},yes" for n in range(40)])[0]
    assert told == "the label is 'yes' in all rows; expected two or more classes to learn"


def test_a_float_of_grpc_names_no_category_that_another_number_has(tmp_path: Path) -> None:
    made = table(tmp_path, f"account,label\n{2**53 + 1},a\n{2**53},b\n", categorical="account")
    assert read_features(made, [{"account": 2**53 + 1}, {"account": str(2**53)}]).tolist() == [[0, 1], [1, 0]]
    with pytest.raises(NotLegal, match="9007199254740992 as a float stands for several whole numbers"):
        name_of(float(2**53 + 1))
    assert name_of(float(2**53 - 1)) == str(2**53 - 1)


def test_a_null_counts_as_rare_where_rare_names_are_one_and_the_description_says_so(tmp_path: Path) -> None:
    rows = "".join(f"{city},{label}\n" for city, label in [("Oslo", "a"), ("Rome", "b")] * 3 + [("Bern", "a")])
    made = table(tmp_path, "city,label\n" + rows, rare_below=2, missing="mean")
    assert read_features(made, [{"city": None}]).tolist() == [[0, 0, 1]]
    assert [column["may_be_null"] for column in made.describe()["columns"]] == [True]
    assert json.loads(json.dumps(made.describe()))["columns"][0]["categories"] == ["Oslo", "Rome", "(other)"]

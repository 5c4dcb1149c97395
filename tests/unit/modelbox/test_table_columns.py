"""Columns of a table: their kinds, what is told of them before a training, and the preprocessing that is kept."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdukit.errors import IllegalValue, InvalidArgument, NotFound, PefMismatch
from rdukit.pef.identity import ModelIdentity
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.preprocessing.columns import known_names
from rdukit_modelbox.preprocessing.datasets import load_dataset
from rdukit_modelbox.preprocessing.rows import preprocess_rows
from rdukit_modelbox.verbs.context import VerbResult
from rdukit_serving.raw_inputs.encoding import OTHER
from rdukit_serving.raw_inputs.preprocessing import (
    TablePreprocessing,
    find_preprocessing,
    open_preprocessing,
    read_features,
    write_preprocessing,
)
from support import shows
from support.boxes import RecordingContext

pytestmark = shows("tables", "preprocess", "mlp")

HEADER = "customer,since,city,fee,label"


def preprocess(folder: Path, lines: list[str], **changed: Any) -> VerbResult:
    (folder / "in.csv").write_text("\n".join(lines) + "\n")
    context = RecordingContext(load_box(find_box_file("mlp")))
    parameters = {
        "normalize": "standard", "limit": 0, "test_ratio": 0.0, "columns": "", "categorical": "",
        "label_column": "label",
    }  # fmt: skip
    return preprocess_rows(context, {**parameters, **changed}, {"data": folder / "in.csv"}, folder)


def customers(count: int = 40) -> list[str]:
    draw = random.Random(0)
    days = [f"20{draw.randrange(19, 25)}-{draw.randrange(1, 13):02}-{draw.randrange(1, 28):02}" for _ in range(count)]
    rows = [
        f"C{n},{day},{draw.choice(['Oslo', 'Rome', 'Lima'])},{draw.uniform(5, 60):.2f},{draw.choice(['no', 'yes'])}"
        for n, day in enumerate(days)
    ]
    return [HEADER, *rows]


def table_of(folder: Path) -> TablePreprocessing:
    found = find_preprocessing(folder / "dataset")
    assert found is not None
    return found


def test_texts_are_categories_and_dates_become_features_without_being_named(tmp_path: Path) -> None:
    preprocess(tmp_path, customers(), exclude="customer")
    table = table_of(tmp_path)
    assert table.layout.numeric == ("fee",)
    assert table.layout.categorical == ("city",)
    assert table.layout.dates == ("since",)
    assert table.feature_names == (
        "fee", "since.year", "since.month", "since.weekday", "since.days", "city=Lima", "city=Oslo", "city=Rome"
    )  # fmt: skip
    assert table.feature_names == load_dataset(tmp_path / "dataset").columns
    assert table.classes == ("no", "yes")


def test_a_date_is_its_year_month_weekday_and_days(tmp_path: Path) -> None:
    lines = ["when,label", "2025-04-03,a", "2025-04-03T12:00:00,b", "2025-04-03T12:00:00+02:00,a", "1969-12-31,b"]
    preprocess(tmp_path, lines, normalize="as_is")
    rows = load_dataset(tmp_path / "dataset").train.features_NF
    thursday = [2025, 4, 3]
    assert rows.tolist() == [
        [*thursday, 20181], [*thursday, 20181.5], [*thursday, np.float32(20181 + 10 / 24)], [1969, 12, 2, -1]
    ]  # fmt: skip


@pytest.mark.parametrize("written", ["03/04/2025", "2025-13-01", "2025-02-30", "3.4.2025", "2025-4-3"])
def test_a_date_in_another_form_is_refused_with_its_row(tmp_path: Path, written: str) -> None:
    lines = ["when,label", "2025-04-03,a", f"{written},b"]
    with pytest.raises(InvalidArgument, match=r"in\.csv:3, column 'when': .* is not a date.* such as 2025-04-03"):
        preprocess(tmp_path, lines)


def test_a_text_among_numbers_is_refused_and_makes_no_category(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"in\.csv:3, column 'fee': '12a' is not a number"):
        preprocess(tmp_path, ["fee,label", "12,a", "12a,b"])


def test_the_file_makes_the_features_that_the_model_was_trained_on(tmp_path: Path) -> None:
    lines = customers()
    lines[3] = lines[3].replace("Oslo", "").replace("Rome", "").replace("Lima", "")
    lines[5] = ",".join([*lines[5].split(",")[:3], "", lines[5].split(",")[4]])
    preprocess(tmp_path, lines, missing="mean", exclude="customer", rare_below=2)
    rows = [dict(zip(HEADER.split(","), line.split(","), strict=True)) for line in lines[1:]]
    typed = [{**row, "fee": float(row["fee"]) if row["fee"] else None} for row in rows]
    for given in (rows, typed):
        assert read_features(table_of(tmp_path), given).tobytes() == (
            load_dataset(tmp_path / "dataset").train.features_NF.tobytes()
        )


@pytest.mark.parametrize("encoding", ["one_hot", "ordinal"])
def test_a_checkpoint_knows_the_columns_in_the_order_of_the_table(tmp_path: Path, encoding: str) -> None:
    lines = ["town,kind,age,label", *(f"{t},{k},{n},{n % 2}" for n, (t, k) in enumerate(["pa", "qb", "pb"] * 4))]
    preprocess(tmp_path, lines, label_column="label", encoding=encoding)
    dataset, table = load_dataset(tmp_path / "dataset"), table_of(tmp_path)
    assert table.layout.categorical == ("town", "kind")
    assert dataset.columns == table.feature_names
    table.check_model(dataset.features, 2, ModelIdentity("mlp", columns=dataset.columns), "it")
    others = ("age", *reversed(dataset.columns[1:]))
    with pytest.raises(PefMismatch, match=r"entry 1 of the columns is 'town.*, but 'kind"):
        table.check_model(dataset.features, 2, ModelIdentity("mlp", columns=others), "it")


ROW = {"since": "2021-05-06", "city": "Oslo", "fee": 12.5}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"since": "2021-05-06", "fee": 1}, "row 1: column 'city' is missing; expected fee .number., city .category."),
        ({**ROW, "cities": "Oslo"}, "row 1: column 'cities' was not in the training table; expected fee"),
        ({**ROW, "city": "Bern"}, "row 1, column 'city': 'Bern' is a category that no training row had; expected Lima"),
        ({**ROW, "city": None}, "row 1, column 'city': no value; expected a value, as the model was trained with miss"),
        (
            {**ROW, "fee": None},
            "row 1, column 'fee': no value; expected a value, as the model was trained with missing",
        ),
        ({**ROW, "since": ""}, "row 1, column 'since': no value; expected a value"),
        ({**ROW, "fee": "12a"}, "row 1, column 'fee': '12a' is not a number"),
        ({**ROW, "fee": [1]}, "row 1, column 'fee': .* is not a number"),
        ({**ROW, "city": {}}, "row 1, column 'city': .* is not a name"),
        ({**ROW, "fee": 10**400}, "row 1, column 'fee': .* not finite"),
        ({**ROW, "since": "yesterday"}, "row 1, column 'since': 'yesterday' is not a date"),
        ([1, 2, 3], "row 1 is not an object; expected values by column name"),
    ],
)
def test_a_row_that_the_training_table_does_not_explain_is_refused(tmp_path: Path, row: Any, words: str) -> None:
    preprocess(tmp_path, customers(), exclude="customer")
    table = table_of(tmp_path)
    with_known_others = {**ROW, "customer": "C7", "label": "yes"}
    assert read_features(table, [with_known_others]).shape == (1, 8)
    with pytest.raises(InvalidArgument, match=words):
        read_features(table, [ROW, row])


def test_rare_categories_are_one_that_unknown_ones_join(tmp_path: Path) -> None:
    lines = ["city,label", *["Oslo,a", "Rome,b"] * 3, "Bern,a", "Lima,b"]
    preprocess(tmp_path, lines, rare_below=2, normalize="as_is")
    table = table_of(tmp_path)
    assert table.feature_names == ("city=Oslo", "city=Rome", "city=(other)")
    features = read_features(table, [{"city": name} for name in ("Rome", "Bern", "Pune")])
    assert features.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]


def test_a_category_of_as_many_rows_as_asked_for_is_not_rare() -> None:
    counts = {"Oslo": 3, "Rome": 2, "Bern": 1}
    assert known_names(counts, 2) == ("Oslo", "Rome", OTHER)
    assert known_names(counts, 1) == known_names(counts, 0) == ("Bern", "Oslo", "Rome")


def test_unknown_categories_are_refused_where_no_rare_one_trained_their_feature(tmp_path: Path) -> None:
    preprocess(tmp_path, ["city,label", *["Oslo,a", "Rome,b"] * 3], rare_below=2)
    with pytest.raises(InvalidArgument, match="'Bern' is a category that no training row had"):
        read_features(table_of(tmp_path), [{"city": "Bern"}])


def test_columns_that_carry_nothing_or_the_answer_are_told_before_the_training(tmp_path: Path) -> None:
    draw = random.Random(1)
    lines = ["number,account,branch,street,answer,fee,label"]
    for n in range(300):
        label = draw.choice(["no", "yes"])
        answer = {"no": 0, "yes": 1}[label]
        lines.append(f"{n},A{n},north,S{n % 150},{answer},{draw.uniform(0, 9):.1f},{label}")
    told = preprocess(tmp_path, lines).figures["findings"]
    assert isinstance(told, list)
    assert [line.split(" is ")[0].split(" has ")[0].split(" differs ")[0].split(" reveals ")[0] for line in told] == [
        "column 'branch'", "column 'street'", "column 'number'", "column 'account'", "column 'answer'"
    ]  # fmt: skip
    words = " ".join(told)
    for part in ("constant", "150 categories", "differs in each of the 300", "reveals the label", "exclude=answer"):
        assert part in words
    quiet = preprocess(tmp_path, lines, exclude="number,account,branch,street,answer")
    assert "findings" not in quiet.figures


def test_a_label_of_many_values_is_told_to_be_none_of_classes(tmp_path: Path) -> None:
    lines = ["size,label", *(f"{n % 7},{n * 1.5}" for n in range(150))]
    (told,) = preprocess(tmp_path, lines).figures["findings"]  # type: ignore[misc]
    assert told.startswith("the label has 150 different values, each of which is a class; expected predict=number")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"exclude": "label"}, "'label' is in both label_column and exclude"),
        ({"exclude": "fee", "columns": "fee"}, "'fee' is in both exclude and columns"),
        ({"dates": "since", "categorical": "since"}, "'since' is in both categorical and dates"),
        ({"dates": "since", "columns": "fee"}, "dates names since, not in columns"),
    ],
)
def test_columns_with_two_roles_are_refused(tmp_path: Path, changed: dict[str, str], words: str) -> None:
    with pytest.raises(IllegalValue, match=words):
        preprocess(tmp_path, customers(), **changed)


@pytest.mark.parametrize("parameter", ["exclude", "dates", "categorical"])
def test_a_column_that_is_not_there_is_refused(tmp_path: Path, parameter: str) -> None:
    with pytest.raises(InvalidArgument, match="no column 'sinse'; its columns are customer, since"):
        preprocess(tmp_path, customers(), **{parameter: "sinse"})


def test_probabilities_have_the_names_of_the_classes(tmp_path: Path) -> None:
    preprocess(tmp_path, customers(), exclude="customer")
    first, second = table_of(tmp_path).predictions(np.array([[0.0, np.log(3)], [800.0, -800.0]], np.float32))
    assert first.label == "yes"
    assert first.probabilities == pytest.approx({"no": 0.25, "yes": 0.75})
    assert second.to_json() == {"label": "no", "probability": 1.0, "probabilities": {"no": 1.0, "yes": 0.0}}


def test_a_file_of_another_model_or_version_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"has no preprocessing\.json"):
        open_preprocessing(tmp_path, 8, 2)
    preprocess(tmp_path, customers(), exclude="customer")
    table, path = table_of(tmp_path), tmp_path / "preprocessing.json"
    table.check_model(8, 2, ModelIdentity("mlp", columns=table.feature_names, classes=("no", "yes")), "it")
    for features, classes, identity, words in (
        (9, 2, None, "features is 8, but 9 in"),
        (8, 3, None, "classes is 2, but 3 in"),
        (8, 2, ModelIdentity("mlp", columns=("a",)), "columns"),
        (8, 2, ModelIdentity("mlp", classes=("yes", "no")), "class names"),
    ):
        with pytest.raises(PefMismatch, match=words):
            table.check_model(features, classes, identity, "it")
    write_preprocessing(tmp_path, table)
    value = json.loads(path.read_text())
    for changed, words in (
        ({**value, "version": 2}, r"has version 2; expected 1"),
        ({**value, "features": 7}, "damaged"),
        ({**value, "columns": {}}, "damaged"),
        ({key: part for key, part in value.items() if key != "encoding"}, "damaged"),
        ([], "damaged"),
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(InvalidArgument, match=words):
            find_preprocessing(tmp_path)
    path.write_text("{")
    with pytest.raises(InvalidArgument, match="damaged"):
        find_preprocessing(tmp_path)

"""A table's own splits: a column says them, or the names of files; a part to validate with is one of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdukit.errors import IllegalValue, InvalidArgument
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.preprocessing.data_rules import validation_rows
from rdukit_modelbox.preprocessing.datasets import load_dataset
from rdukit_modelbox.preprocessing.rows import preprocess_rows
from rdukit_modelbox.tasks.classification import RowData
from rdukit_modelbox.verbs.context import VerbResult
from support import shows
from support.boxes import RecordingContext

pytestmark = shows("tables", "training")

SPLITS = ["train", "test", " Dev", "validation", "train", "val", "train", "test"]


def preprocess(data: Path, to: Path, **changed: Any) -> VerbResult:
    context = RecordingContext(load_box(find_box_file("mlp")))
    parameters = {"normalize": "as_is", "limit": 0, "test_ratio": 0.5, "columns": "", "label_column": "label"}
    return preprocess_rows(context, {**parameters, **changed}, {"data": data}, to)


def table(folder: Path, splits: list[str]) -> Path:
    lines = [f"{number},{split},{'ab'[number % 2]}" for number, split in enumerate(splits)]
    (folder / "in.csv").write_text("\n".join(["size,part,label", *lines]) + "\n")
    return folder / "in.csv"


def test_a_column_says_each_rows_split_and_is_no_feature(tmp_path: Path) -> None:
    made = preprocess(table(tmp_path, SPLITS), tmp_path, split_column="part")
    assert [made.figures[name] for name in ("train_samples", "test_samples", "dev_samples", "features")] == [3, 2, 3, 1]
    dataset = load_dataset(made.outputs["dataset"])
    assert dataset.dev is not None and dataset.columns == ("size",)
    found = [sorted(part.features_NF[:, 0].tolist()) for part in (dataset.train, dataset.test, dataset.dev)]
    assert found == [[0, 4, 6], [1, 7], [2, 3, 5]]
    rows = RowData(dataset, tmp_path)
    assert [rows.count(split) for split in ("train", "dev", "test", "other")] == [3, 3, 2, 0]


def test_wrong_splits_name_line_and_column(tmp_path: Path) -> None:
    data = table(tmp_path, [*SPLITS, "later"])
    with pytest.raises(InvalidArgument, match=r"in\.csv:10.*'part'.*the split is 'later'.*train, dev or test"):
        preprocess(data, tmp_path, split_column="part")
    with pytest.raises(InvalidArgument, match="no column 'half'"):
        preprocess(data, tmp_path, split_column="half")
    with pytest.raises(IllegalValue, match="'part' is in both split_column and exclude"):
        preprocess(data, tmp_path, split_column="part", exclude="part")


def test_a_file_named_dev_validates(tmp_path: Path) -> None:
    for name, rows in {"train": 5, "test": 2, "val": 3}.items():
        lines = [f"{number},{'ab'[number % 2]}" for number in range(rows)]
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.csv").write_text("\n".join(["size,label", *lines]) + "\n")
    made = preprocess(tmp_path / "in", tmp_path / "out")
    assert [made.figures[name] for name in ("train_samples", "test_samples", "dev_samples")] == [5, 2, 3]


def test_samples_to_validate_depend_on_their_number_alone() -> None:
    held = validation_rows(100, 0.1)
    assert len(held) == 10 and np.array_equal(held, validation_rows(100, 0.1)) and np.all(np.diff(held) > 0)
    assert len(validation_rows(5, 0.001)) == 1

"""A share of the training samples becomes the split to validate with, in each kind of data set."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rdukit_modelbox.preprocessing.arrays import ArrayDataset, ArrayForm, open_arrays, write_arrays
from rdukit_modelbox.preprocessing.data_rules import validation_rows
from rdukit_modelbox.preprocessing.datasets import Samples, load_dataset, save_dataset
from rdukit_modelbox.tasks.base import TaskData, reported_split, watched_split
from rdukit_modelbox.tasks.classification import RowData
from support import shows

pytestmark = shows("validation")


def rows(folder: Path) -> RowData:
    def part(count: int) -> Samples:
        return Samples(np.arange(count, dtype=np.float32)[:, None], np.arange(count))

    save_dataset(folder, part(20), part(3), classes=20, normalize="none", source="none")
    return RowData(load_dataset(folder), folder)


def arrays(folder: Path) -> ArrayDataset:
    forms = [ArrayForm("value", (1,), "float32")]

    def part(count: int) -> dict[str, NDArray[np.float32]]:
        return {"value": np.arange(count, dtype=np.float32)[:, None]}

    write_arrays(folder, forms, {"train": part(20), "test": part(3)}, {})
    return open_arrays(folder, forms)


def trained(data: TaskData) -> list[float]:
    return sorted(float(value) for batch in data.batches(4, 0, 0, 0) for value in batch[0][:, 0])


@pytest.mark.parametrize("kind", [rows, arrays], ids=["rows", "arrays"])
def test_samples_to_validate_are_not_trained_on(tmp_path: Path, kind: type[RowData | ArrayDataset]) -> None:
    whole = kind(tmp_path)  # type: ignore[call-arg]
    data = whole.with_validation(0.2)
    held = validation_rows(20, 0.2).tolist()
    assert [data.count(split) for split in ("train", "dev", "test")] == [16, 4, 3]
    assert trained(data) == [float(n) for n in range(20) if n not in held]
    assert (watched_split(data), reported_split(data)) == ("dev", "test")
    assert (watched_split(whole), reported_split(whole), whole.count("dev")) == ("test", "test", 0)
    assert data.digest == whole.digest and len(trained(whole)) == 20


def test_validation_samples_are_evaluated_in_their_order(tmp_path: Path) -> None:
    held = validation_rows(20, 0.2).tolist()
    (tmp_path / "a").mkdir()
    ((count, batch),) = arrays(tmp_path / "a").with_validation(0.2).held_out("dev", 6)
    assert count == 4 and batch["value"][:4, 0].tolist() == held
    samples = rows(tmp_path / "b").with_validation(0.2).split("dev")
    assert samples is not None and samples.labels_N.tolist() == held

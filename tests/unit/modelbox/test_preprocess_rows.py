"""Tables, arrays and images become normalised rows with classes."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from PIL import Image

from rdukit.errors import Cancelled, IllegalValue, InvalidArgument, NotFound
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.metrics import find_undeclared
from rdukit_modelbox.contract.parts import Verb
from rdukit_modelbox.preprocessing.columns import ColumnFigures
from rdukit_modelbox.preprocessing.datasets import load_dataset, write_dataset
from rdukit_modelbox.verbs.context import VerbResult
from rdukit_modelbox.verbs.preprocess import run_preprocess
from support import shows
from support.boxes import RecordingContext

pytestmark = shows("preprocess", "mlp", "ffn")


def recorder(box: str = "mlp", cancel_at: int = 0) -> RecordingContext:
    return RecordingContext(load_box(find_box_file(box)), cancel_at=cancel_at)


def preprocess(data: Path, output: Path, context: RecordingContext | None = None, **changed: Any) -> VerbResult:
    parameters = {"normalize": "as_is", "limit": 0, "test_ratio": 0.25, **changed}
    done = run_preprocess(context or recorder(), parameters, {"data": data}, output)
    assert find_undeclared(load_box(find_box_file("mlp")), Verb.PREPROCESS, done.figures) == []
    return done


FEATURES = np.arange(24, dtype=np.float32).reshape(8, 3)
LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1])


def _csv(folder: Path) -> Path:
    rows = [f"{x:g},{y:g},{label},{z:g}" for (x, y, z), label in zip(FEATURES, LABELS, strict=True)]
    (folder / "a.csv.gz").write_bytes(gzip.compress("\n".join(["x,y,label,z", *rows]).encode()))
    return folder / "a.csv.gz"


def _jsonl(folder: Path) -> Path:
    rows = zip(FEATURES.tolist(), LABELS.tolist(), strict=True)
    (folder / "a.jsonl").write_text(
        "".join(json.dumps(dict(zip("xyz", f, strict=True)) | {"label": n}) + "\n" for f, n in rows)
    )
    return folder


def _parquet(folder: Path) -> Path:
    columns = {name: FEATURES[:, index] for index, name in enumerate("xyz")}
    pyarrow.parquet.write_table(pyarrow.table({**columns, "label": LABELS}), folder / "a.parquet")
    return folder


def _npz(folder: Path) -> Path:
    np.savez_compressed(
        folder / "a.npz", values=FEATURES.astype(np.float64).reshape(8, 3, 1), label=LABELS.astype(np.uint8)
    )
    return folder / "a.npz"


def _hdf5(folder: Path) -> Path:
    with h5py.File(folder / "a.hdf5", "w") as file:
        file["values"], file["y"] = FEATURES, LABELS[:, None]
    return folder / "a.hdf5"


@pytest.mark.parametrize("make", [_csv, _jsonl, _parquet, _npz, _hdf5])
def test_the_same_rows_in_any_format_give_the_same_data_set(make: Callable[[Path], Path], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    done = preprocess(make(tmp_path / "in"), tmp_path)
    assert {key: done.figures[key] for key in ("train_samples", "test_samples", "features", "classes")} == {
        "train_samples": 6, "test_samples": 2, "features": 3, "classes": 3,
    }  # fmt: skip
    found = load_dataset(tmp_path / "dataset")
    rows = np.concatenate([found.train.features_NF, found.test.features_NF])
    labels = np.concatenate([found.train.labels_N, found.test.labels_N])
    order = np.argsort(rows[:, 0])
    assert rows[order].tolist() == FEATURES.tolist()
    assert labels[order].tolist() == LABELS.tolist()
    # Without shuffling the order of each split is the input's.
    assert (np.diff(found.train.features_NF[:, 0]) > 0).all()


def write_images(folder: Path, sizes: dict[str, tuple[int, int]]) -> Path:
    for index, (name, size) in enumerate(sizes.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (index, index, index)).save(folder / name)
    return folder


def test_folders_of_images_are_classes(tmp_path: Path) -> None:
    names = {f"{kind}/{n}.{ending}": (4 + n, 5) for kind, ending in (("cat", "png"), ("dog", "bmp")) for n in range(4)}
    done = preprocess(write_images(tmp_path / "in", names), tmp_path, image_size=2)
    assert (done.figures["features"], done.figures["classes"], done.figures["train_samples"]) == (4, 2, 6)
    manifest = json.loads((tmp_path / "dataset/manifest.json").read_text())
    assert manifest["labels"] == {"cat": 0, "dog": 1}
    assert manifest["class_counts"]["train"] == {"cat": 3, "dog": 3}
    with pytest.raises(InvalidArgument, match=r"cat/1\.png: 5 x 5 pixels, unlike other images; " r"expected one size"):
        preprocess(tmp_path / "in", tmp_path / "out", image_size=0, image_mode="rgb")


def test_images_fit_a_box_of_digits_and_names_choose_the_split(tmp_path: Path) -> None:
    names = {f"{split}/{digit}/{n}.png": (20, 20) for split in ("train", "test") for digit in (3, 7) for n in range(2)}
    folder = write_images(tmp_path / "in", names)
    done = preprocess(folder, tmp_path, recorder("ffn"), normalize="none")
    assert (done.figures["train_samples"], done.figures["test_samples"], done.figures["classes"]) == (4, 4, 8)
    found = load_dataset(tmp_path / "dataset")
    assert found.train.features_NF.max() == np.float32(3 / 255)
    assert sorted(set(found.test.labels_N.tolist())) == [3, 7]
    with pytest.raises(InvalidArgument, match="the rows have 4 features, but box ffn expects 784"):
        preprocess(folder, tmp_path / "out", recorder("ffn"), image_size=2)


def test_names_are_encoded_and_missing_values_follow_the_policy(tmp_path: Path) -> None:
    data = tmp_path / "a.csv"
    data.write_text("size,colour,label\n1,red,yes\n,blue,no\n3,red,yes\n5,NA,no\n")
    settings: dict[str, Any] = {"categorical": "colour", "test_ratio": 0.0}
    with pytest.raises(InvalidArgument, match=r"a\.csv:3, column 'size': no value; expected a value, or missing=drop"):
        preprocess(data, tmp_path, **settings)
    with pytest.raises(
        InvalidArgument, match=r"a\.csv:2, column 'colour': 'red' is not a number; expected .*categorical"
    ):
        preprocess(data, tmp_path, test_ratio=0.0)
    preprocess(data, tmp_path / "mean", missing="mean", **settings)
    found = load_dataset(tmp_path / "mean/dataset")
    # size, then one column each for "", blue and red.
    assert found.train.features_NF.tolist() == [[1, 0, 0, 1], [3, 0, 1, 0], [3, 0, 0, 1], [5, 1, 0, 0]]
    assert found.train.labels_N.tolist() == [1, 0, 1, 0]
    done = preprocess(data, tmp_path / "drop", missing="drop", encoding="ordinal", **settings)
    assert done.figures["dropped_rows"] == 2
    assert load_dataset(tmp_path / "drop/dataset").train.features_NF.tolist() == [[1, 0], [3, 0]]
    preprocess(data, tmp_path / "skip", bad_rows="skip", columns="size", test_ratio=0.0)
    assert load_dataset(tmp_path / "skip/dataset").train.features_NF.tolist() == [[1], [3], [5]]


def test_normalising_goes_by_the_training_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = _csv(tmp_path / "in")
    preprocess(data, tmp_path / "a", normalize="standard")
    train = load_dataset(tmp_path / "a/dataset").train.features_NF
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-6)
    preprocess(data, tmp_path / "b", normalize="min_max", columns="x,z")
    train = load_dataset(tmp_path / "b/dataset").train.features_NF
    assert (train.min(), train.max(), train.shape[1]) == (0, 1, 2)
    columns = json.loads((tmp_path / "b/dataset/manifest.json").read_text())["columns"]
    assert columns["numeric"] == ["x", "z"]
    assert columns["count"] == [6, 6]


def test_figures_of_blocks_are_those_of_all_rows() -> None:
    values: NDArray[np.float64] = np.random.default_rng(0).normal(1e4, 1, (1000, 2))
    values[5, 1] = np.nan
    figures = ColumnFigures.of(2)
    for start, stop in ((0, 1), (1, 5), (5, 6), (6, 1000), (1000, 1000)):
        figures.add(values[start:stop])
    np.testing.assert_allclose(figures.mean_C, np.nanmean(values, axis=0), rtol=1e-12)
    np.testing.assert_allclose(figures.deviation_C, np.nanstd(values, axis=0), rtol=1e-9)
    assert (figures.missing_C.tolist(), figures.least_C.tolist()) == ([0, 1], np.nanmin(values, axis=0).tolist())
    again = ColumnFigures.from_json(figures.to_json())
    np.testing.assert_allclose(again.deviation_C, figures.deviation_C, rtol=1e-12)


def test_large_data_sets_are_mapped_and_have_the_same_digest(tmp_path: Path) -> None:
    labels = LABELS.astype(np.int64)
    pieces = {"train": [(FEATURES[:2], labels[:2]), (FEATURES[2:6], labels[2:6])], "test": [(FEATURES[6:], labels[6:])]}
    for name, held_bytes in (("held", 1 << 20), ("mapped", 10)):
        write_dataset(
            tmp_path / name, pieces, {"train": 6, "test": 2}, 3, classes=3, normalize="as_is", source="here",
            held_bytes=held_bytes,
        )  # fmt: skip
    held, mapped = load_dataset(tmp_path / "held"), load_dataset(tmp_path / "mapped")
    assert isinstance(mapped.train.features_NF, np.memmap)
    assert mapped.digest == held.digest
    assert mapped.train.features_NF.tolist() == held.train.features_NF.tolist()
    assert {path.suffix for path in (tmp_path / "mapped").iterdir()} == {".npy", ".json"}
    data = bytearray((tmp_path / "mapped/test.features.npy").read_bytes())
    data[-1] ^= 1
    (tmp_path / "mapped/test.features.npy").write_bytes(data)
    with pytest.raises(InvalidArgument, match="does not match"):
        load_dataset(tmp_path / "mapped")


def test_shuffling_rows_goes_by_the_seed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = _csv(tmp_path / "in")
    rows = {}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        preprocess(data, tmp_path / name, shuffle=True, seed=seed)
        found = load_dataset(tmp_path / name / "dataset")
        rows[name] = [*found.train.features_NF[:, 0].tolist(), *found.test.features_NF[:, 0].tolist()]
    assert rows["a"] == rows["b"] != rows["c"]
    assert sorted(rows["a"]) == sorted(rows["c"]) == FEATURES[:, 0].tolist()


def test_limits_apply_to_each_split(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    done = preprocess(_csv(tmp_path / "in"), tmp_path, limit=1)
    assert (done.figures["train_samples"], done.figures["test_samples"]) == (1, 1)


def test_a_cancelled_attempt_goes_on_and_a_finished_one_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = _csv(tmp_path / "in")
    with pytest.raises(Cancelled):
        preprocess(data, tmp_path / "out", recorder(cancel_at=2))
    context = recorder()
    done = preprocess(data, tmp_path / "out", context)
    assert {progress.stage for progress in context.told} == {"encode"}
    context = recorder()
    assert preprocess(data, tmp_path / "out", context).figures == done.figures
    assert "already complete" in context.lines[0]


def test_arrays_that_cannot_be_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=FEATURES, b=FEATURES, label=LABELS)
    with pytest.raises(InvalidArgument, match=r"has the arrays a, b, label; .*under columns"):
        preprocess(path, tmp_path)
    assert preprocess(path, tmp_path, columns="b").figures["features"] == 3
    np.savez(path, a=np.array([{}, {}], dtype=object), label=LABELS[:2])
    with pytest.raises(InvalidArgument, match=r"'a': its type is object; expected numbers"):
        preprocess(path, tmp_path)
    np.savez(path, a=FEATURES[:5], label=LABELS)
    with pytest.raises(InvalidArgument, match=r"shape \[5, 3\]; expected \[8, …\]"):
        preprocess(path, tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InvalidArgument, match="not readable as NPZ"):
        preprocess(path, tmp_path)
    for name in ("a.hdf5", "a.parquet"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(InvalidArgument, match="not readable as"):
            preprocess(tmp_path / name, tmp_path)
    with pytest.raises(IllegalValue, match="in both label_column and columns"):
        preprocess(path, tmp_path, columns="label")


def test_lines_that_are_no_rows_and_an_empty_folder_are_told_as_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "lists.jsonl").write_text("[1, 2]\n[3]\n")
    with pytest.raises(InvalidArgument, match=r"lists\.jsonl has no row that can be used; lists\.jsonl:1: .*object"):
        preprocess(tmp_path / "lists.jsonl", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=r"no file in .*empty matches"):
        preprocess(tmp_path / "empty", tmp_path / "out")

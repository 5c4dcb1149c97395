"""Preprocess and the data set that it leaves."""

import json
from pathlib import Path

import numpy as np
import pytest

from rdukit.errors import Cancelled, InvalidArgument, NotFound
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.metrics import find_undeclared
from rdukit_modelbox.contract.parts import Verb
from rdukit_modelbox.preprocessing.data_rules import check_sizes
from rdukit_modelbox.preprocessing.datasets import load_dataset
from rdukit_modelbox.tasks.classification import judge
from rdukit_modelbox.verbs.preprocess import prepare, run_preprocess
from support import shows
from support.boxes import RecordingContext

pytestmark = shows("preprocess", "logreg")


def recorder(cancel_at: int = 0) -> RecordingContext:
    return RecordingContext(load_box(find_box_file("logreg")), cancel_at=cancel_at)


def test_the_bundled_digits_become_a_data_set_that_reads_back(tmp_path: Path) -> None:
    context = recorder()
    done = run_preprocess(context, {"normalize": "mnist", "limit": 100}, {}, tmp_path)
    assert done.outputs == {"dataset": tmp_path / "dataset"}
    assert find_undeclared(context.box, Verb.PREPROCESS, done.figures) == []
    assert done.figures["train_samples"] == done.figures["test_samples"] == 100
    assert (context.told[-1].step, context.told[-1].total) == (3, 3)
    dataset = load_dataset(tmp_path / "dataset")
    assert dataset.train.features_NF.shape == (100, 784)
    assert (dataset.features, dataset.classes, dataset.normalize) == (784, 10, "mnist")
    found = {"num_features": dataset.features, "num_classes": dataset.classes}
    check_sizes(found, {"num_features": 784, "num_classes": 10})
    with pytest.raises(InvalidArgument, match="num_features: 784 in the data set, 100 in the PEF"):
        check_sizes(found, {"num_features": 100, "num_classes": 10})


def test_the_same_request_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_preprocess(recorder(), {"normalize": "none", "limit": 20}, {}, tmp_path / name)
    for file in ("train.npz", "test.npz", "manifest.json"):
        assert (tmp_path / "a/dataset" / file).read_bytes() == (tmp_path / "b/dataset" / file).read_bytes()


def test_normalising_scales_and_centres() -> None:
    images = np.array([[[0, 255]]], np.uint8)
    labels = np.zeros(1, np.int64)
    assert prepare(images, labels, "none").features_NF.tolist() == [[0.0, 1.0]]
    centred = prepare(images, labels, "mnist").features_NF
    np.testing.assert_allclose(centred, [[-0.42421296, 2.8214867]], rtol=1e-6)


def test_a_cancelled_preprocess_leaves_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        run_preprocess(recorder(cancel_at=1), {"normalize": "none", "limit": 5}, {}, tmp_path)
    with pytest.raises(NotFound, match="not a data set"):
        load_dataset(tmp_path / "dataset")


def test_a_changed_or_damaged_data_set_is_refused(tmp_path: Path) -> None:
    run_preprocess(recorder(), {"normalize": "none", "limit": 5}, {}, tmp_path)
    folder = tmp_path / "dataset"
    whole = (folder / "train.npz").read_bytes()
    (folder / "train.npz").write_bytes((folder / "test.npz").read_bytes())
    with pytest.raises(InvalidArgument, match="does not match"):
        load_dataset(folder)
    (folder / "train.npz").write_bytes(whole[:100])
    with pytest.raises(InvalidArgument, match="is damaged, or contains arrays other"):
        load_dataset(folder)
    (folder / "train.npz").write_bytes(whole)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({k: v for k, v in manifest.items() if k != "classes"}))
    with pytest.raises(InvalidArgument, match="lacks 'classes'"):
        load_dataset(folder)


def test_judging_counts_each_pair_of_true_and_given_class() -> None:
    logits = np.array([[2, 1, 0], [0, 2, 1], [0, 3, 1], [5, 5, 6]], np.float32)
    found = judge(logits, np.array([0, 1, 2, 2]), 3)
    assert found.predicted_N.tolist() == [0, 1, 1, 2]
    assert found.confusion == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert found.accuracy == 0.75
    assert 0.66 < found.probability_N[0] < 0.67
    assert judge(logits[:0], np.zeros(0, np.int64), 3).accuracy == 0.0

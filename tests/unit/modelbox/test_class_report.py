"""The report of a classifier: by hand, and next to scikit-learn where it is installed."""

import numpy as np
import pytest

from rdukit_modelbox.preprocessing.datasets import Samples
from rdukit_modelbox.tasks.class_report import ClassMeter, area_under_curve, class_report, different_names
from rdukit_modelbox.tasks.row_numbers import simple_number_models
from rdukit_serving.raw_inputs.answers import NumberTarget
from support import shows

pytestmark = shows("tables", "image-folders")


def test_a_report_of_two_classes_is_that_of_the_second() -> None:
    logits = np.log(np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8]], np.float32))
    report = class_report(logits, np.array([0, 0, 1, 1]), ("no", "yes"))
    assert report["confusion"]["counts"] == [[1, 1], [1, 1]]
    assert report["auc"] == 0.75, "three of the four pairs are in order"
    assert report["classes"]["yes"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "auc": 0.75, "samples": 2}
    assert report["f1_macro"] == 0.5


def test_equal_scores_count_half_and_one_class_alone_has_no_area() -> None:
    assert area_under_curve(np.array([0.5, 0.5]), np.array([True, False])) == 0.5
    assert area_under_curve(np.array([0.5, 0.7]), np.array([True, True])) is None
    report = class_report(np.array([[2.0, 1.0, 0.0]]), np.array([0]))
    assert report["auc"] is None
    assert report["classes"]["1"]["samples"] == 0
    assert report["f1_macro"] == 1.0, "classes without samples do not count"


def test_a_meter_reports_all_batches_together() -> None:
    draw = np.random.default_rng(0)
    logits, labels = draw.standard_normal((50, 4)).astype(np.float32), draw.integers(0, 4, 50)
    meter = ClassMeter("label")
    assert meter.report(()) == {}
    for start in range(0, 50, 20):
        meter.add(logits[start : start + 20], {"label": labels[start : start + 20]})
    assert meter.report(("a", "b", "c", "d")) == class_report(logits, labels, ("a", "b", "c", "d"))
    assert meter.figures() == {"accuracy": float((logits.argmax(1) == labels).mean())}


def test_equal_names_of_classes_keep_their_figures_apart() -> None:
    logits = np.log(np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8]], np.float32))
    report = class_report(logits, np.array([0, 0, 1, 1]), ("no", "no"))
    assert report["auc"] == 0.75 and list(report["classes"]) == ["no (0)", "no (1)"]
    assert different_names(("a", "b", "a", "a (0)")) == ["a (0)'", "b", "a (2)", "a (0)"]


def test_a_meter_holds_no_outputs_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    logits, labels = draw.standard_normal((60, 7)).astype(np.float32), draw.integers(0, 7, 60)
    wanted = class_report(logits, labels)
    monkeypatch.setattr("rdukit_modelbox.tasks.class_report._BLOCK", 16)  # blocks of two rows, and of one column
    meter = ClassMeter("label")
    for start in range(0, 60, 20):
        meter.add(logits[start : start + 20], {"label": labels[start : start + 20]})
    assert meter.report(()) == wanted
    held = [value for value in vars(meter).values() if isinstance(value, np.ndarray | list)]
    assert sum(np.asarray(value).size for value in held) <= 60


@pytest.mark.parametrize("classes", [2, 5])
def test_figures_are_those_of_scikit_learn(classes: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the extra `router` is not installed")
    draw = np.random.default_rng(classes)
    labels = draw.integers(0, classes, 300)
    logits = (draw.standard_normal((300, classes)) + 1.5 * np.eye(classes)[labels]).astype(np.float32).round(1)
    powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    report = class_report(logits, labels)
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(labels, logits.argmax(1), average="macro")
    assert (report["precision_macro"], report["recall_macro"], report["f1_macro"]) == pytest.approx(
        (precision, recall, f1)
    )
    wanted = (
        metrics.roc_auc_score(labels, shares[:, 1])
        if classes == 2
        else metrics.roc_auc_score(labels, shares, multi_class="ovr")
    )
    assert report["auc"] == pytest.approx(wanted, abs=1e-12), "ties count half in both"
    assert report["confusion"]["counts"] == metrics.confusion_matrix(labels, logits.argmax(1)).tolist()


def test_of_many_features_only_the_mean_of_numbers_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")  # else joblib starts a program that counts the processors
    rows = Samples(np.eye(4, 3, dtype=np.float32), np.arange(4, dtype=np.float32))
    target = NumberTarget(mean=0.0, deviation=1.0)
    assert list(simple_number_models(rows, rows, target, 10, 2)) == ["baseline_rmse"]
    assert len(simple_number_models(rows, rows, target, 10, 3)) == 3

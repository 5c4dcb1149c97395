"""Figures of simple models on the same rows, which a trained one must exceed: they stand next to its own.

Axes: N samples, F features.
"""

import logging
from importlib.util import find_spec
from typing import Final

import numpy as np

from rdukit_modelbox.contract.box import Box, Verb
from rdukit_modelbox.preprocessing.datasets import Samples
from rdukit_modelbox.tasks.base import TaskData
from rdukit_modelbox.tasks.classification import RowData
from rdukit_modelbox.tasks.row_numbers import simple_number_models

logger = logging.getLogger(__name__)

#: Largest number of rows and features for the simple models: they should take seconds.
MAX_ROWS: Final = 20_000
MAX_FEATURES: Final = 2_000
MAJORITY: Final = "baseline_accuracy"
LOGISTIC: Final = "logistic_regression_accuracy"
BOOSTING: Final = "gradient_boosting_accuracy"


def baselines_of(box: Box, data: TaskData, split: str) -> dict[str, float]:
    """Return the figures of simple models on a split, of a box that reports them; of other boxes nothing."""
    declared = {metric.name for metric in box.metrics if Verb.EVALUATE in metric.verbs}
    if MAJORITY not in declared or not isinstance(data, RowData) or split == "train":
        return {}
    held = data.split(split)
    assert held is not None
    if data.dataset.target is not None:
        return simple_number_models(data.dataset.train, held, data.dataset.target, MAX_ROWS, MAX_FEATURES)
    return measure_baselines(data.dataset.train, held)


def measure_baselines(train: Samples, held: Samples) -> dict[str, float]:
    """Return accuracies on held-out rows: of the most frequent class, and with scikit-learn of a logistic regression
    and of gradient boosting, each with its defaults.
    """
    classes, counts = np.unique(train.labels_N, return_counts=True)
    found = {MAJORITY: float((held.labels_N == classes[counts.argmax()]).mean())}
    if find_spec("sklearn") is None or len(classes) < 2 or train.features_NF.shape[1] > MAX_FEATURES:
        return found
    from sklearn.ensemble import HistGradientBoostingClassifier  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

    chosen = np.random.default_rng(0).permutation(len(train))[:MAX_ROWS]
    features_NF, labels_N = train.features_NF[chosen], train.labels_N[chosen]
    if len(np.unique(labels_N)) < 2:
        return found
    for name, model in (
        (LOGISTIC, LogisticRegression(max_iter=1000)), (BOOSTING, HistGradientBoostingClassifier(random_state=0))
    ):  # fmt: skip
        try:
            model.fit(features_NF, labels_N)
        except ValueError as error:  # such as features that are not finite
            logger.warning("no %s: %s", name, error)
            continue
        found[name] = float((model.predict(held.features_NF) == held.labels_N).mean())
    return found

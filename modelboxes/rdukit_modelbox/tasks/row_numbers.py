"""Numbers that models predict of rows: errors in the label's unit, residuals, and simple models to compare with.

Axes: N samples, F features.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit_modelbox.preprocessing.datasets import Samples
from rdukit_modelbox.tasks.base import measured
from rdukit_modelbox.verbs.context import VerbContext, VerbResult
from rdukit_serving.raw_inputs.answers import NumberTarget

logger = logging.getLogger(__name__)

#: Percentiles of the residuals that a report has.
PERCENTILES: Final = (1, 5, 25, 50, 75, 95, 99)
BASELINE: Final = "baseline_rmse"
LINEAR: Final = "linear_regression_rmse"
BOOSTING: Final = "gradient_boosting_rmse"


@dataclass(frozen=True, slots=True)
class NumberEvaluation:
    """Predicted and true numbers [N] in the label's unit, and their errors."""

    predicted_N: NDArray[np.float64]
    true_N: NDArray[np.float64]
    #: Mean squared error of the scaled numbers, the loss of the training.
    loss: float

    @property
    def residuals_N(self) -> NDArray[np.float64]:
        """Return predictions less truths."""
        return self.predicted_N - self.true_N

    def figures(self) -> dict[str, float]:
        """Return ``rmse`` and ``mae`` in the label's unit, and ``r2``, which is 0 without a spread of truths."""
        error_N, spread_N = self.residuals_N, self.true_N - self.true_N.mean() if len(self.true_N) else self.true_N
        square, spread = float((error_N**2).sum()), float((spread_N**2).sum())
        count = max(len(error_N), 1)
        return {
            "rmse": float(np.sqrt(square / count)), "mae": float(np.abs(error_N).sum() / count),
            "r2": 1 - square / spread if spread else 0.0,
        }  # fmt: skip

    def residuals(self) -> dict[str, float]:
        """Return mean, deviation and percentiles of the residuals."""
        error_N = self.residuals_N
        if not len(error_N):
            return {}
        found = {"mean": float(error_N.mean()), "deviation": float(error_N.std())}
        return found | {f"p{share}": float(np.percentile(error_N, share)) for share in PERCENTILES}


def judge_numbers(outputs_N: NDArray[Any], labels_N: NDArray[Any], target: NumberTarget) -> NumberEvaluation:
    """Compare scaled outputs with scaled labels. Pure."""
    error_N = outputs_N.astype(np.float64) - labels_N
    loss = float((error_N**2).mean()) if len(error_N) else 0.0
    return NumberEvaluation(target.values(outputs_N), target.values(labels_N), loss)


def simple_number_models(
    train: Samples, held: Samples, target: NumberTarget, max_rows: int, max_features: int
) -> dict[str, float]:
    """Return errors (RMSE) on held-out rows, in the label's unit: of the training rows' mean, and of scikit-learn's
    linear regression and gradient boosting with their defaults.

    Args:
        max_rows: largest number of rows to learn from.
        max_features: features above which only the mean's error is returned.
    """
    truth_N = target.values(held.labels_N)

    def error(predicted_N: NDArray[Any]) -> float:
        return float(np.sqrt(((target.values(predicted_N) - truth_N) ** 2).mean()))

    found = {BASELINE: error(np.full(len(held), train.labels_N.mean(dtype=np.float64)))}
    if find_spec("sklearn") is None or len(train) < 2 or train.features_NF.shape[1] > max_features:
        return found
    from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-untyped]
    from sklearn.linear_model import LinearRegression  # type: ignore[import-untyped]

    chosen = np.random.default_rng(0).permutation(len(train))[:max_rows]
    features_NF, labels_N = train.features_NF[chosen], train.labels_N[chosen]
    for name, model in ((LINEAR, LinearRegression()), (BOOSTING, HistGradientBoostingRegressor(random_state=0))):
        try:
            model.fit(features_NF, labels_N)
        except ValueError as cause:  # such as features that are not finite
            logger.warning("no %s: %s", name, cause)
            continue
        found[name] = error(model.predict(held.features_NF))
    return found


def require_target(target: NumberTarget | None, classes: int) -> None:
    """Refuse a data set whose label is of another kind than the PEF's.

    Raises:
        InvalidArgument: names both.
    """
    if (target is None) == (classes == 1):
        has, takes = ("a number", "classes") if target else ("a class", "a number")
        advice = "num_classes=1" if target else "num_classes as in preprocess, or preprocess with predict=number"
        raise InvalidArgument(f"the data set's label is {has}, but the PEF predicts {takes}; compile with {advice}")


def write_numbers(
    context: VerbContext, found: NumberEvaluation, split: str, step: int, figures: Mapping[str, Any], output: Path
) -> VerbResult:  # fmt: skip
    """Write ``<output>/predictions.jsonl`` with residuals, and ``<output>/report.json``."""
    rows = zip(found.true_N.tolist(), found.predicted_N.tolist(), found.residuals_N.tolist(), strict=True)
    lines = [
        json.dumps({"index": index, "label": label, "predicted": value, "residual": residual})
        for index, (label, value, residual) in enumerate(rows)
    ]
    result = {
        **found.figures(), "loss": found.loss, "samples": len(lines), "checkpoint_step": step, **measured(figures)
    }  # fmt: skip
    report = {"box": context.box.name, "split": split, **result, "residuals": found.residuals()}
    write_atomic(output / "predictions.jsonl", "".join(line + "\n" for line in lines).encode())
    write_json_atomic(output / "report.json", report)
    words = ", ".join(f"{name} {value:.6g}" for name, value in found.figures().items())
    context.log(f"{words} on {len(lines)} samples of the {split} split")
    return VerbResult(result, {"predictions": output / "predictions.jsonl", "report": output / "report.json"})

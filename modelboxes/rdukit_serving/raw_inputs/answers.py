"""Answers of classifiers by the names of their classes, and numbers in the label's unit. Pure.

Axes: N samples, C classes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

#: Likeliest classes that an answer for a picture lists.
TOP: Final = 5


@dataclass(frozen=True, slots=True)
class ClassPrediction:
    """The likeliest class by its name, and the probability of each class."""

    label: str
    probabilities: Mapping[str, float]

    @property
    def probability(self) -> float:
        """Return the probability of ``label``."""
        return self.probabilities[self.label]

    def to_json(self) -> dict[str, Any]:
        """Return the label, its probability, and all probabilities."""
        return {"label": self.label, "probability": self.probability, "probabilities": dict(self.probabilities)}

    def to_top_json(self) -> dict[str, Any]:
        """Return the label, its probability, and the ``TOP`` likeliest classes, the likeliest first."""
        ordered = sorted(self.probabilities.items(), key=lambda pair: -pair[1])[:TOP]
        top = [{"label": name, "probability": share} for name, share in ordered]
        return {"label": self.label, "probability": self.probability, "top": top}


@dataclass(frozen=True, slots=True)
class NumberTarget:
    """A label that is a number: its mean and deviation over the training rows, by which models see it."""

    mean: float
    deviation: float

    def scaled(self, values_N: NDArray[Any]) -> NDArray[np.float32]:
        """Return labels as a model is trained on them."""
        found: NDArray[np.float32] = ((values_N - self.mean) / (self.deviation or 1.0)).astype(np.float32)
        return found

    def values(self, outputs_N: NDArray[Any]) -> NDArray[np.float64]:
        """Return a model's outputs in the label's unit."""
        found: NDArray[np.float64] = outputs_N.astype(np.float64) * (self.deviation or 1.0) + self.mean
        return found


@dataclass(frozen=True, slots=True)
class NumberPrediction:
    """A predicted number, in the label's unit."""

    value: float

    def to_json(self) -> dict[str, Any]:
        """Return the value by its name."""
        return {"value": self.value}


Prediction = ClassPrediction | NumberPrediction


def predictions_of(classes: Sequence[str], logits_NC: NDArray[Any]) -> list[ClassPrediction]:
    """Return the answer for each row of a classifier's outputs [N, C], before their softmax.

    A name that several classes have, such as ImageNet's two cranes, gets their numbers.
    """
    if len(set(classes)) < len(classes):
        count = Counter(classes)
        classes = [f"{name} ({number})" if count[name] > 1 else name for number, name in enumerate(classes)]
    wide_NC = logits_NC.astype(np.float64)
    powers_NC = np.exp(wide_NC - wide_NC.max(axis=1, keepdims=True))
    shares_NC = powers_NC / powers_NC.sum(axis=1, keepdims=True)
    return [
        ClassPrediction(classes[best], dict(zip(classes, shares, strict=True)))
        for best, shares in zip(logits_NC.argmax(axis=1).tolist(), shares_NC.tolist(), strict=True)
    ]

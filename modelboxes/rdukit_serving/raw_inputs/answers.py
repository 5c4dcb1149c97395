"""Answers of classifiers by the names of their classes. Pure. Axes: N samples, C classes."""

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


def predictions_of(classes: Sequence[str], logits_NC: NDArray[Any]) -> list[ClassPrediction]:
    """Return the answer for each row of a classifier's outputs [N, C], before their softmax."""
    wide_NC = logits_NC.astype(np.float64)
    powers_NC = np.exp(wide_NC - wide_NC.max(axis=1, keepdims=True))
    shares_NC = powers_NC / powers_NC.sum(axis=1, keepdims=True)
    return [
        ClassPrediction(classes[best], dict(zip(classes, shares, strict=True)))
        for best, shares in zip(logits_NC.argmax(axis=1).tolist(), shares_NC.tolist(), strict=True)
    ]

"""Logits against labels: loss, accuracy and confusion. Pure. Axes: N samples, C classes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Classes [N] that the model gives, each with its probability [N], and the confusion matrix [true][given]."""

    predicted_N: NDArray[np.int64]
    probability_N: NDArray[np.float32]
    confusion: list[list[int]]
    accuracy: float
    #: Mean cross entropy, in nats.
    loss: float


def judge(logits_NC: NDArray[np.float32], labels_N: NDArray[np.int64], classes: int) -> Evaluation:
    """Compare the highest logit with the label. Pure; no samples give accuracy and loss 0."""
    predicted = logits_NC.argmax(axis=1).astype(np.int64)
    shifted_NC = logits_NC - logits_NC.max(axis=1, keepdims=True) if len(logits_NC) else logits_NC
    sums_N = np.exp(shifted_NC).sum(axis=1)
    each = np.arange(len(predicted))
    chosen_N = np.exp(shifted_NC[each, predicted]) / sums_N
    losses_N = np.log(sums_N) - shifted_NC[each, labels_N]
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels_N, predicted), 1)
    count = len(labels_N)
    correct = int((predicted == labels_N).sum())
    return Evaluation(
        predicted, chosen_N.astype(np.float32), confusion.tolist(),
        accuracy=correct / count if count else 0.0, loss=float(losses_N.mean(dtype=np.float64)) if count else 0.0,
    )  # fmt: skip

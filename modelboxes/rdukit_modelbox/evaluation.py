"""Classify samples with a loaded program and count. Axes: N samples, F features, C classes."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rdukit_modelbox.context import Progress, VerbContext
from rdukit_modelbox.datasets import Samples
from rdukit_modelbox.program import Program


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Classes [N] that the model gives, each with its probability [N], and the confusion matrix [true][given]."""

    predicted_N: NDArray[np.int64]
    probability_N: NDArray[np.float32]
    confusion: list[list[int]]
    accuracy: float


def evaluate(program: Program, samples: Samples, context: VerbContext, stage: str = "evaluate") -> Evaluation:
    """Run forward over all samples; the last batch is padded.

    Raises:
        Cancelled: between two batches.
    """
    batch, count = program.shape.batch_size, len(samples)
    total = -(-count // batch)
    started = time.perf_counter()
    parts: list[NDArray[np.float32]] = []
    for step in range(total):
        context.check_cancelled()
        parts.append(program.logits_of(samples.features_NF[step * batch : (step + 1) * batch]))
        elapsed = max(time.perf_counter() - started, 1e-9)
        done = min(count, (step + 1) * batch)
        context.progress(
            Progress(stage, step + 1, total, throughput=done / elapsed, eta_s=elapsed / (step + 1) * (total - step - 1))
        )
    logits_NC = np.concatenate(parts) if parts else np.zeros((0, program.shape.classes), np.float32)
    return judge(logits_NC, samples.labels_N, program.shape.classes)


def judge(logits_NC: NDArray[np.float32], labels_N: NDArray[np.int64], classes: int) -> Evaluation:
    """Compare the highest logit with the label. Pure; no samples give accuracy 0."""
    predicted = logits_NC.argmax(axis=1).astype(np.int64)
    shifted = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True)) if len(logits_NC) else logits_NC
    chosen = shifted[np.arange(len(predicted)), predicted] / shifted.sum(axis=1)
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels_N, predicted), 1)
    correct = int((predicted == labels_N).sum())
    accuracy = correct / len(labels_N) if len(labels_N) else 0.0
    return Evaluation(predicted, chosen.astype(np.float32), confusion.tolist(), accuracy)

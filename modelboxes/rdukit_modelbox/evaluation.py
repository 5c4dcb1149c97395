"""Classify samples with a loaded program and count. Axes: N samples, F features, C classes."""

import time

import numpy as np
from numpy.typing import NDArray

from rdukit_modelbox.context import Progress, VerbContext
from rdukit_modelbox.datasets import Samples
from rdukit_modelbox.evaluation_figures import Evaluation, judge
from rdukit_modelbox.program import ModelProgram


def evaluate(program: ModelProgram, samples: Samples, context: VerbContext, stage: str = "evaluate") -> Evaluation:
    """Run forward over all samples, in evaluation mode; the last batch is padded, which changes no answer.

    Raises:
        InvalidArgument: padding would change answers, because the rows of a batch depend on each other.
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

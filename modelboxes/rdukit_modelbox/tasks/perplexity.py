"""The perplexity of texts, by a program that reads them in batches or by one that reads them token by token."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdukit.files.atomic import write_json_atomic
from rdukit_modelbox.context import Progress, VerbContext, VerbResult
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.models import entry_of
from rdukit_modelbox.program import ModelProgram
from rdukit_modelbox.tasks.base import Scores, measured
from rdukit_modelbox.tasks.texts import TextData
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.shape import IGNORED, TRAIN, Shape
from rdukit_serving.text.program import TextProgram
from rdukit_serving.text.sampling import log_probabilities


def write_perplexity(
    context: VerbContext, shape: Shape, data: TextData, split: str, parameters: Mapping[str, ParameterValue],
    inputs: Mapping[str, Path], output: Path,
) -> VerbResult:  # fmt: skip
    """Write ``<output>/report.json``. Either kind of PEF serves; one compiled to serve reads token by token.

    Raises:
        InvalidArgument: the checkpoint is not of the PEF's model.
        Cancelled: between two texts or batches.
    """
    which, texts = str(parameters.get("use", "newest")), data.limited(int(parameters.get("limit", 0)))
    if shape.purpose == TRAIN:
        scores, step, figures = _judge_batches(context, shape, texts, split, which, inputs)
    else:
        scores, step, figures = _judge_steps(context, texts, split, which, inputs)
    context.log(f"perplexity {scores.perplexity:.4f} on {scores.samples} sequences of the {split} split")
    found = {**scores.to_json(), "samples": scores.samples, "checkpoint_step": step, **measured(figures)}
    write_json_atomic(output / "report.json", {"box": context.box.name, "split": split, **found})
    return VerbResult(found, {"report": output / "report.json"})


def judge_program(program: ModelProgram, data: TextData, split: str, context: VerbContext, stage: str) -> Scores:
    """Mean loss of the predicted tokens of a split, and its exponential, in evaluation mode.

    Raises:
        InvalidArgument: what fills up the last batch changes its loss, because sequences depend on each other.
        Cancelled: between two batches.
    """
    size, count = program.shape.batch_size, data.count(split)
    total, sums, tokens = -(-count // size), 0.0, 0
    for step, batch in enumerate(data.held_out(split, size), 1):
        context.check_cancelled()
        counted = int((batch[1] != IGNORED).sum())
        if counted:
            (loss,) = program.forward_filled(batch, min(size, count - (step - 1) * size))
            sums += float(loss.mean()) * counted
            tokens += counted
        context.progress(Progress(stage, step, total))
    return text_scores(sums, tokens, count)


def text_scores(loss_sum: float, tokens: int, samples: int) -> Scores:
    """Scores from the sum of losses over ``tokens`` predicted tokens."""
    loss = loss_sum / max(tokens, 1)
    return Scores(loss=loss, samples=samples, perplexity=math.exp(min(loss, 700.0)))


def _judge_batches(
    context: VerbContext, shape: Shape, texts: TextData, split: str, which: str, inputs: Mapping[str, Path]
) -> tuple[Scores, int, Mapping[str, Any]]:
    """Perplexity by the training program's forward sections."""
    step, kept = load_parameters(inputs["checkpoint"], which)
    program = ModelProgram(shape, entry=entry_of(context.box))
    program.load(inputs["pef"])
    try:
        program.parameters_to_device(kept)
        scores = judge_program(program, texts, split, context, "infer")
        return scores, step, program.report()
    finally:
        program.close()


def _judge_steps(
    context: VerbContext, texts: TextData, split: str, which: str, inputs: Mapping[str, Path]
) -> tuple[Scores, int, Mapping[str, Any]]:
    """Perplexity by the serving program, a token at a time."""
    with TextProgram(inputs["pef"], inputs["checkpoint"], which, context.box.name, is_raw=True) as program:
        sums, counted, count = 0.0, 0, texts.count(split)
        for number, (tokens, labels) in enumerate(texts.held_out(split, 1), 1):
            context.check_cancelled()
            for position in range(int(np.flatnonzero(labels[0] != IGNORED).max(initial=-1)) + 1):
                token = int(tokens[0, position])
                logits_V = program.step(token, position) if position else program.start([token])
                if labels[0, position] != IGNORED:
                    sums -= float(log_probabilities(logits_V)[labels[0, position]])
                    counted += 1
            context.progress(Progress("infer", number, count))
        return text_scores(sums, counted, count), program.checkpoint_step, program.figures()

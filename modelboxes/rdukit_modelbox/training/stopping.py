"""Which evaluation is the best so far, and whether to stop. Pure; kept in checkpoints, so an attempt can go on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdukit_modelbox.training.options import TrainingOptions


@dataclass(frozen=True, slots=True)
class Judged:
    """What the evaluations of a training said."""

    #: Loss or accuracy of the best one; None before the first.
    best_score: float | None = None
    best_step: int = 0
    #: Evaluations after the best one.
    since_best: int = 0
    last_loss: float | None = None
    last_accuracy: float | None = None


def judge_evaluation(before: Judged, step: int, loss: float, accuracy: float | None, best_by: str) -> Judged:
    """``before`` and one more evaluation, after ``step`` steps; equal scores are not better.

    ``accuracy`` is None for tasks that have none; the best one is by loss then, whatever ``best_by`` says.
    """
    is_higher_better = best_by == "accuracy" and accuracy is not None
    score = accuracy if best_by == "accuracy" and accuracy is not None else loss
    best = before.best_score
    is_better = best is None or (score > best if is_higher_better else score < best)
    return Judged(
        best_score=score if is_better else best, best_step=step if is_better else before.best_step,
        since_best=0 if is_better else before.since_best + 1, last_loss=loss, last_accuracy=accuracy,
    )  # fmt: skip


def reason_to_stop(options: "TrainingOptions", judged: Judged, seconds: float) -> str | None:
    """``time``, ``target`` or ``patience``; None to go on. ``seconds``: of training, over all attempts."""
    if options.max_seconds and seconds >= options.max_seconds:
        return "time"
    if options.target_loss and judged.last_loss is not None and judged.last_loss <= options.target_loss:
        return "target"
    if options.target_accuracy and judged.last_accuracy is not None and judged.last_accuracy >= options.target_accuracy:
        return "target"
    if options.patience and judged.since_best >= options.patience:
        return "patience"
    return None

"""Options of a training, its learning rate, and when it stops. Pure.

A box leaves out parameters that it does not offer; their defaults are here. Checkpoints keep the best evaluation so
far, so that another attempt continues with it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.allowed_values import ParameterValue

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """The options of a training. Steps are optimizer steps; 0 switches a limit off."""

    epochs: int = 1
    max_steps: int = 0
    lr: float = 0.05
    schedule: str = "constant"
    #: Steps in which the learning rate rises from near nothing.
    warmup_steps: int = 0
    #: Share of ``lr`` that the schedule ends at.
    final_lr_share: float = 0.0
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    seed: int = 0
    checkpoint_every: int = 100
    #: Steps between evaluations; 0 evaluates at the end only and keeps no best checkpoint.
    evaluate_every: int = 0
    #: Figure that decides which checkpoint is best: ``loss`` or ``accuracy``.
    best_by: str = "loss"
    #: Seconds of training over all attempts.
    max_seconds: float = 0.0
    target_loss: float = 0.0
    target_accuracy: float = 0.0
    #: Evaluations without a better one.
    patience: int = 0
    continue_as: str = "resume"
    #: Share of the training samples that evaluations take where the data set has no dev split; 0: they take its test
    #: split.
    validation_share: float = 0.1
    #: Share of the former average of the weights in the next one; 0: no average.
    ema_decay: float = 0.0

    @property
    def held_share(self) -> float:
        """Return ``validation_share`` if the training evaluates on its way, else 0."""
        return self.validation_share if self.evaluate_every else 0.0

    def find_fault(self) -> str | None:
        """Return a sentence about options that contradict each other; None: all fit."""
        if self.schedule not in SCHEDULES:
            return f"schedule is {self.schedule!r}; expected {', '.join(SCHEDULES)}"
        if self.best_by not in {"loss", "accuracy"}:
            return f"best_by is {self.best_by!r}; expected loss, accuracy"
        watched = [name for name in ("target_loss", "target_accuracy", "patience") if getattr(self, name)]
        if watched and not self.evaluate_every:
            return f"{', '.join(watched)} needs evaluations; set evaluate_every to a positive number of steps"
        return None

    def scalars(self, rate: float) -> dict[str, float]:
        """Return the run-time scalars of a step with the learning rate ``rate``; an optimizer ignores unknown ones."""
        return {
            "lr": rate, "momentum": self.momentum, "beta1": self.beta1, "beta2": self.beta2,
            "weight_decay": self.weight_decay, "max_grad_norm": self.max_grad_norm,
        }  # fmt: skip


def options_from(parameters: Mapping[str, ParameterValue]) -> TrainingOptions:
    """Return the options that a box's parameters give.

    Raises:
        InvalidArgument: two options contradict each other.
    """
    known = {field.name: field for field in fields(TrainingOptions)}
    given = {
        name: type(known[name].default)(value)  # type: ignore[misc]
        for name, value in parameters.items()
        if name in known
    }
    options = TrainingOptions(**given)
    fault = options.find_fault()
    if fault is not None:
        raise InvalidArgument(fault, parameter="evaluate_every")
    return options


def learning_rate(step: int, total: int, lr: float, schedule: str, warmup_steps: int, final_share: float) -> float:
    """Return the rate of the step with index ``step`` of ``total``.

    It rises in equal parts to ``lr`` at the last warm-up step. Then ``linear`` and ``cosine`` fall to ``final_share *
    lr`` at the last step, and ``constant`` stays.
    """
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    if schedule == "constant":
        return lr
    way = max(1, total - 1 - warmup_steps)
    done = min(1.0, (step - warmup_steps) / way)
    share = 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return lr * (final_share + (1.0 - final_share) * share)


@dataclass(frozen=True, slots=True)
class Judged:
    """The results of a training's evaluations."""

    #: Loss or accuracy of the best evaluation; None before the first.
    best_score: float | None = None
    best_step: int = 0
    #: Evaluations after the best one.
    since_best: int = 0
    last_loss: float | None = None
    last_accuracy: float | None = None


def judge_evaluation(before: Judged, step: int, loss: float, accuracy: float | None, best_by: str) -> Judged:
    """``before`` and one more evaluation, after ``step`` steps; equal scores are not better.

    ``accuracy`` is None for tasks without one; the loss then decides, even with another ``best_by``.
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
    """Return ``time``, ``target`` or ``patience``; None: continue. ``seconds``: of training, over all attempts."""
    if options.max_seconds and seconds >= options.max_seconds:
        return "time"
    if options.target_loss and judged.last_loss is not None and judged.last_loss <= options.target_loss:
        return "target"
    if options.target_accuracy and judged.last_accuracy is not None and judged.last_accuracy >= options.target_accuracy:
        return "target"
    if options.patience and judged.since_best >= options.patience:
        return "patience"
    return None

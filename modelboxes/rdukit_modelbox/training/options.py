"""The train verb's parameters as a value. Pure. A box leaves out what it has no choice in; the defaults are here."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from rdukit.errors import InvalidArgument
from rdukit_modelbox.legal import ParameterValue

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How to train. Steps are optimizer steps; 0 switches a limit off."""

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
    #: ``loss`` or ``accuracy``: what the best checkpoint is best by.
    best_by: str = "loss"
    #: Seconds of training over all attempts.
    max_seconds: float = 0.0
    target_loss: float = 0.0
    target_accuracy: float = 0.0
    #: Evaluations without a better one.
    patience: int = 0
    continue_as: str = "resume"

    def find_fault(self) -> str | None:
        """What does not fit together, in words."""
        if self.schedule not in SCHEDULES:
            return f"schedule is {self.schedule!r}; legal: {', '.join(SCHEDULES)}"
        if self.best_by not in {"loss", "accuracy"}:
            return f"best_by is {self.best_by!r}; legal: loss, accuracy"
        watched = [name for name in ("target_loss", "target_accuracy", "patience") if getattr(self, name)]
        if watched and not self.evaluate_every:
            return f"{', '.join(watched)} needs evaluations; set evaluate_every to a number of steps above 0"
        return None

    def scalars(self, rate: float) -> dict[str, float]:
        """Run-time scalars of a step whose learning rate is ``rate``; an optimizer takes those that it knows."""
        return {
            "lr": rate, "momentum": self.momentum, "beta1": self.beta1, "beta2": self.beta2,
            "weight_decay": self.weight_decay, "max_grad_norm": self.max_grad_norm,
        }  # fmt: skip


def options_from(parameters: Mapping[str, ParameterValue]) -> TrainingOptions:
    """The options that a box's parameters give.

    Raises:
        InvalidArgument: two of them do not fit together.
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

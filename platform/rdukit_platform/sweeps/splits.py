"""Which split of the data a sweep compares its trials on (pure).

A sweep that chooses by the split which its trainings report makes the best one's figures too good. So it compares by
the dev split where the box has such a figure, and lets each training evaluate on it.
"""

from collections.abc import Mapping
from typing import Final

from rdukit.errors import IllegalValue
from rdukit_platform.catalog.model import BoxDescription, BoxVerb
from rdukit_platform.sweeps.model import Range, SweepRequest, SweepSplit

#: Begin of the names of figures on the dev split.
_PREFIX: Final = "validation_"
#: Figure of the reported split → figure on the dev split, where not only its begin differs.
_OTHERS: Final[Mapping[str, str]] = {"held_out_loss": "validation_loss"}
#: Figure of the training samples, whose name is that of a figure on the dev split without its begin.
_OF_STEPS: Final = "loss"
#: Parameters of a training: steps between evaluations, and share of the samples that they take; both 0 for none.
_EVERY: Final = "evaluate_every"
_SHARE: Final = "validation_share"
#: Largest value of ``evaluate_every`` where its schema says none.
_LAST_STEP: Final = 1_000_000


def with_split(request: SweepRequest, box: BoxDescription, verb: BoxVerb) -> SweepRequest:
    """Return a checked request whose objective names its split, and whose trainings evaluate on the dev split.

    ``evaluate_every`` is set where neither job nor space say it: each training evaluates once, after its last step.

    Raises:
        IllegalValue: the objective has no figure on the split that is asked for, or evaluations are switched off.
    """
    metric, asked = request.objective.metric, request.objective.split
    given = request.job.parameters
    if metric == _OF_STEPS:
        return request
    on_dev = metric if metric.startswith(_PREFIX) else _OTHERS.get(metric, f"{_PREFIX}{metric}")
    if on_dev not in {each.name for each in verb.metrics}:
        if asked is not None:
            raise IllegalValue(
                f"objective: {verb.name} of box {box.name!r} reports {metric!r} on only one split; leave out split"
            )
        return request
    if metric == on_dev and asked is SweepSplit.TEST:
        raise IllegalValue(f"objective: {metric!r} is a figure of the dev split; expected split dev, or leave it out")
    if asked is None and metric != on_dev and given.get(_SHARE) == 0:
        asked = SweepSplit.TEST
    if asked is SweepSplit.TEST:
        return _changed(request, metric, SweepSplit.TEST)
    every = {parameter.name: parameter for parameter in verb.parameters}.get(_EVERY)
    if every is None:
        return _changed(request, on_dev, SweepSplit.DEV)
    space = request.space.get(_EVERY)
    lowest = [space.low] if isinstance(space, Range) else space.values if space is not None else [given.get(_EVERY, 1)]
    if 0 in lowest:
        raise IllegalValue(
            f"objective: {on_dev!r} needs evaluations, and {_EVERY} is 0; leave it out or set it above 0, or compare "
            "by the test split with split test",
            metric=metric,
        )
    made = _changed(request, on_dev, SweepSplit.DEV)
    if space is not None or _EVERY in given:
        return made
    last = int(every.schema.get("maximum", _LAST_STEP))
    return made.model_copy(update={"job": request.job.model_copy(update={"parameters": {**given, _EVERY: last}})})


def _changed(request: SweepRequest, metric: str, split: SweepSplit) -> SweepRequest:
    return request.model_copy(
        update={"objective": request.objective.model_copy(update={"metric": metric, "split": split})}
    )

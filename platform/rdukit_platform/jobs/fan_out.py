"""Fan-out: a step of a pipeline becomes a job for each combination, and the best of them is chosen (pure)."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.strict_json import find_number
from rdukit_platform.db.references import StepReference, group_of, read_reference
from rdukit_platform.jobs.schemas import MAX_JOBS, StepRequest

#: Prefix of inputs in ``for_each``; other names are parameters.
INPUT: Final = "inputs."


def choose(reference: StepReference, results: Mapping[str, Mapping[str, object] | None]) -> str | None:
    """Return the succeeded step that a reference selects; ``None`` if none has the slot or the metric.

    Args:
        results: of the succeeded steps, in their order; the first of equal ones is chosen.
    """
    if reference.metric is None:
        return next(iter(results), None)
    values = {name: find_number((result or {}).get(reference.metric)) for name, result in results.items()}
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    if not known:
        return None
    return (min if reference.is_least else max)(known, key=known.__getitem__)


def explain_none(reference: StepReference, results: Mapping[str, Mapping[str, object] | None]) -> str:
    """Explain why ``choose`` returned ``None`` for these results."""
    if reference.metric is None or not results:
        return f"no job of step {reference.step!r} has made {reference.slot!r}"
    legal = sorted({name for result in results.values() for name, value in (result or {}).items()
                    if find_number(value) is not None})  # fmt: skip
    return f"no result of {reference.step} has {reference.metric!r}; expected {', '.join(legal) or 'none has a number'}"


def expand_steps(steps: Sequence[StepRequest]) -> list[StepRequest]:
    """Return one step per job: a step with ``for_each`` or ``[*]`` becomes several, named ``name[0]`` and so on.

    Inputs ``[*]`` that refer to the same step advance together. Different steps, and the lists of ``for_each``, form
    all combinations.

    Raises:
        InvalidArgument: a list has no values, there would be too many jobs, or ``[*]`` names no step before it that
            has fanned out.
    """
    members: dict[str, list[str]] = {}
    found: list[StepRequest] = []
    for step in steps:
        choices = _choices(step, members)
        count = math.prod(len(each) for each in choices)
        if len(found) + count > MAX_JOBS:
            raise InvalidArgument(
                f"step {step.name!r} makes {len(found) + count} jobs of the pipeline; expected at most {MAX_JOBS}; "
                "use fewer values in for_each"
            )
        if not choices:
            found.append(step)
            members.setdefault(group_of(step.name), []).append(step.name)
            continue
        for number, chosen in enumerate(itertools.product(*choices)):
            changes = [change for one in chosen for change in one]
            inputs = {name.removeprefix(INPUT): value for name, value in changes if name.startswith(INPUT)}
            parameters = {name: value for name, value in changes if not name.startswith(INPUT)}
            name = f"{step.name}[{number}]"
            members.setdefault(step.name, []).append(name)
            found.append(
                step.model_copy(
                    update={
                        "name": name, "for_each": None, "inputs": {**step.inputs, **inputs},
                        "parameters": {**step.parameters, **parameters},
                    }
                )
            )  # fmt: skip
    return found


#: Values that one job of a fan-out sets: names, as in ``for_each``, with values.
_Change = tuple[tuple[str, object], ...]


def _choices(step: StepRequest, members: Mapping[str, Sequence[str]]) -> list[list[_Change]]:
    choices: list[list[_Change]] = []
    for name, values in (step.for_each or {}).items():
        texts = [value for value in values if isinstance(value, str)]
        if name.startswith(INPUT) and len(texts) < len(values):
            raise InvalidArgument(f"step {step.name!r}: for_each of {name} must list artifact ids")
        choices.append([((name, value),) for value in values])
    each: dict[str, dict[str, StepReference]] = {}
    for slot, text in step.inputs.items():
        reference = read_reference(text)
        if reference is not None and reference.is_each:
            each.setdefault(reference.step, {})[slot] = reference
    for source, slots in each.items():
        if f"{source}[0]" not in members.get(source, ()):
            raise InvalidArgument(
                f"step {step.name!r} takes each job of {source!r}; expected an earlier step with for_each: "
                f"{', '.join(sorted(name for name, of in members.items() if f'{name}[0]' in of)) or 'none'}"
            )
        choices.append(
            [tuple((INPUT + s, f"@{member}.{one.slot}") for s, one in slots.items()) for member in members[source]]
        )
    return choices

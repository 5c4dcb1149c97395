"""Problems of a box whose parts do not fit together, or that names files outside its folder.

It also reads partly invalid boxes, so that all problems are reported at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.allowed_values import ParameterType, ParameterValue, find_objection, normalise
from rdukit_modelbox.contract.metrics import BoxMetric, find_metric_problems
from rdukit_modelbox.contract.parameter import BoxParameter, When
from rdukit_modelbox.contract.parts import Serving, Verb, VerbArtifacts

Problem = tuple[tuple[str | int, ...], str]


@dataclass(frozen=True, slots=True)
class Draft:
    """The parts of a box that could be read."""

    #: None if unreadable.
    verbs: tuple[Verb, ...] | None
    #: Parameters by position in the file; unreadable ones are missing.
    parameters: Mapping[int, BoxParameter]
    #: All names in the file, also of parameters that could not be read.
    names: frozenset[str]
    artifacts: Mapping[Verb, VerbArtifacts]
    serving: Serving | None = None
    metrics: tuple[BoxMetric, ...] = ()
    uncached: tuple[Verb, ...] = ()
    #: Whether all parameters are readable.
    is_whole: bool = True


def find_problems(draft: Draft) -> list[Problem]:
    """List everything that does not fit together, with its key."""
    found = [*_verbs(draft), *_slots(draft), *find_metric_problems(draft.metrics, draft.verbs)]
    for verb in Verb:
        found += _parameters_of(draft, verb)
    found += _dependences(draft)
    if not found and draft.is_whole:
        for verb in Verb:
            found += _defaults(draft, verb)
    # Equal problems of a parameter in several verbs are reported once.
    return list(dict.fromkeys(found))


def in_order(parameters: Sequence[BoxParameter]) -> tuple[BoxParameter, ...]:
    """Put each parameter after those that it depends on; unknown names are ignored.

    Raises:
        CycleError: they depend on each other in a circle.
    """
    by_name = {p.name: p for p in parameters}
    edges = {p.name: [name for _, name in p.dependences() if name in by_name] for p in parameters}
    return tuple(by_name[name] for name in TopologicalSorter(edges).static_order())


def _verbs(draft: Draft) -> Iterator[Problem]:
    if draft.verbs is None:
        return
    for number, verb in enumerate(draft.verbs):
        if verb in draft.verbs[:number]:
            yield ("verbs", number), f"verb {verb} is listed twice"
    there = ", ".join(draft.verbs)
    for number, parameter in draft.parameters.items():
        for place, verb in enumerate(parameter.verbs):
            if verb not in draft.verbs:
                yield ("parameters", number, "verbs", place), f"{verb} is used but not listed under verbs: {there}"
    for number, verb in enumerate(draft.uncached):
        if verb not in draft.verbs:
            yield ("uncached", number), f"{verb} is used but not listed under verbs: {there}"
    for verb in draft.artifacts:
        if verb not in draft.verbs:
            yield ("artifacts", verb), f"{verb} is used but not listed under verbs: {there}"


def _slots(draft: Draft) -> Iterator[Problem]:
    for verb, slots in draft.artifacts.items():
        for side, these in (("inputs", slots.inputs), ("outputs", slots.outputs)):
            names = [slot.name for slot in these]
            for number, name in enumerate(names):
                if name in names[:number]:
                    yield ("artifacts", verb, side, number, "name"), f"{name!r} is there twice"
        for number, slot in enumerate(slots.outputs):
            illegal = [scheme for scheme in slot.schemes or () if scheme not in {"file", "s3"}]
            if illegal:
                key = ("artifacts", verb, "outputs", number, "schemes")
                yield key, f"an output cannot go to {illegal[0]}; expected file, s3"
    if draft.serving is None:
        return
    for side, tensors in (("inputs", draft.serving.inputs), ("outputs", draft.serving.outputs)):
        for word in ("name", "symbol"):
            given = [str(getattr(tensor, word)) for tensor in tensors]
            for number, value in enumerate(given):
                if value in given[:number]:
                    yield ("serving", side, number, word), f"{value!r} is there twice"
    legal = [slot.name for slot in draft.artifacts.get(Verb.INFER, VerbArtifacts()).inputs]
    for part, slot_name in (draft.serving.text or {}).items():
        if slot_name not in legal:
            words = f"infer has no input {slot_name!r}; expected {', '.join(legal) or 'none'}"
            yield ("serving", "text", part), words


def _parameters_of(draft: Draft, verb: Verb) -> Iterator[Problem]:
    seen: set[str] = set()
    for number, parameter in draft.parameters.items():
        if verb not in parameter.verbs:
            continue
        if parameter.name in seen:
            yield ("parameters", number, "name"), f"verb {verb} has more than one parameter named {parameter.name!r}"
        seen.add(parameter.name)


def _dependences(draft: Draft) -> Iterator[Problem]:
    for number, parameter in draft.parameters.items():
        for key, name in parameter.dependences():
            path = ("parameters", number, *key)
            if name == parameter.name:
                yield path, f"{name!r} cannot depend on itself"
                continue
            if name not in draft.names:
                legal = ", ".join(sorted(draft.names - {parameter.name}))
                yield path, f"there is no parameter {name!r}; expected {legal or 'none'}"
                continue
            for verb in parameter.verbs:
                yield from _dependence(draft, parameter, verb, path, name)
    for verb in Verb:
        taken = [(n, p) for n, p in draft.parameters.items() if verb in p.verbs]
        try:
            in_order([p for _, p in taken])
        except CycleError as cycle:
            circle: list[str] = cycle.args[1]
            if len(set(circle)) > 1:
                first = next(n for n, p in taken if p.name in circle)
                # graphlib reports the cycle in order of need; reversed, it shows the dependences.
                yield ("parameters", first), f"parameters depend on each other in a circle: {' -> '.join(circle[::-1])}"


def _dependence(
    draft: Draft, parameter: BoxParameter, verb: Verb, path: tuple[str | int, ...], name: str
) -> Iterator[Problem]:
    """Check one parameter's reference to another, in one of its verbs."""
    others = [p for p in draft.parameters.values() if p.name == name]
    if not others:
        return
    other = next((p for p in others if verb in p.verbs), None)
    if other is None:
        yield path, f"{verb} has no parameter {name!r}, so {parameter.name!r} of {verb} cannot depend on it"
        return
    if "legal" in path:
        if other.type not in {ParameterType.INT, ParameterType.FLOAT}:
            yield path, f"{name!r} is of type {other.type}; a limit must be of type int or float"
        return
    when: When = parameter.when if path[2] == "when" else parameter.cases[int(path[3])].when
    for place, value in enumerate(when[name]):
        options = [other.legal, *(case.legal for case in other.cases)]
        objections = [find_objection(other.type, legal, value) for legal in options]
        if all(objections):
            yield (*path, place), f"{name}: {objections[0]}"


def _defaults(draft: Draft, verb: Verb) -> Iterator[Problem]:
    """Check that all defaults together are legal."""
    numbers = {p.name: n for n, p in draft.parameters.items() if verb in p.verbs}
    values: dict[str, ParameterValue] = {}
    for parameter in in_order([p for p in draft.parameters.values() if verb in p.verbs]):
        default = parameter.default_for(values)
        objection = find_objection(parameter.type, parameter.legal_for(values), default, values)
        if objection is not None:
            yield ("parameters", numbers[parameter.name], "default"), f"with all defaults: {objection}"
            return
        normal = normalise(parameter.type, default)
        assert normal is not None
        values[parameter.name] = normal


def find_inside(folder: Path, relative: str) -> Path:
    """Return the regular file ``relative`` to ``folder``, links resolved.

    Raises:
        InvalidArgument: it is outside the folder (by ``..`` or by a link), not there, or not a file.
    """
    base = folder.resolve()
    path = (base / relative).resolve()
    if base not in path.parents:
        raise InvalidArgument(f"{relative!r} leads outside the box's folder; expected a file in or below {folder}")
    if not path.is_file():
        raise InvalidArgument(f"there is no file {relative!r} in {folder}")
    return path


P = TypeVar("P", bound=BaseModel)


def read_draft(value: Mapping[str, Any]) -> Draft:
    """Read the valid parts of the file's value."""
    written, artifacts = value.get("parameters"), value.get("artifacts")
    parameters = {n: _find(BoxParameter, p) for n, p in enumerate(written if isinstance(written, list) else [])}
    slots = {
        Verb(verb): _find(VerbArtifacts, these)
        for verb, these in (artifacts.items() if isinstance(artifacts, dict) else ())
        if verb in set(Verb)
    }
    return Draft(
        verbs=_find_verbs(value.get("verbs")),
        parameters={n: p for n, p in parameters.items() if p is not None},
        names=frozenset(
            str(p.get("name")) for p in (written if isinstance(written, list) else []) if isinstance(p, dict)
        ),
        artifacts={verb: these for verb, these in slots.items() if these is not None},
        serving=_find(Serving, value.get("serving", {})),
        metrics=_find_metrics(value.get("metrics")),
        uncached=_find_verbs(value.get("uncached")) or (),
        is_whole=None not in parameters.values(),
    )


def find_file_problems(value: Mapping[str, Any], folder: Path) -> list[Problem]:
    """Return the problems of files that the box names outside of its folder."""
    found: list[Problem] = []
    for key in ("module", "modelCard"):
        name = value.get(key)
        if isinstance(name, str):
            try:
                find_inside(folder, name.rpartition(":")[0] if key == "module" else name)
            except InvalidArgument as error:
                found.append(((key,), error.message))
    return found


def _find_verbs(value: object) -> tuple[Verb, ...] | None:
    try:
        return TypeAdapter(tuple[Verb, ...]).validate_python(value) or None
    except ValidationError:
        return None


def _find_metrics(value: object) -> tuple[BoxMetric, ...]:
    try:
        return TypeAdapter(tuple[BoxMetric, ...]).validate_python(value)
    except ValidationError:
        return ()


def _find(part: type[P], value: object) -> P | None:
    try:
        return part.model_validate(value)
    except ValidationError:
        return None

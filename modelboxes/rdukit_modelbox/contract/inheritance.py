"""The YAML of a box that extends a task: merge the task's part and the box's changes into one document.

A task's file has the parameters and artifacts that its boxes share. A box narrows legal values and never widens them:
a task's code was written for its own legal values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path as FilePath
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationError

from rdukit.strict_yaml import Path, read_yaml
from rdukit_modelbox.contract.allowed_values import (
    AllowedValues,
    Limit,
    ParameterType,
    find_objection,
    format_allowed,
    is_multiple,
)
from rdukit_modelbox.contract.metrics import merge_metrics
from rdukit_modelbox.contract.parameter import When
from rdukit_modelbox.contract.parts import Sentence, Verb
from rdukit_modelbox.contract.validation import Problem
from rdukit_serving.strict_yaml.schema_errors import StrictModel, suggest

TASKS_FOLDER: Final = FilePath(__file__).parents[1] / "tasks"
#: Keys that a box inherits from its task unless it has them.
_INHERITED: Final = ("mode", "target", "verbs")
_EXTENDS: Final[Path] = ("extends",)


class ParameterChange(StrictModel):
    """Another default, fewer legal values or other words for a parameter of the task. A plain value is a default."""

    default: bool | int | float | str | None = Field(default=None, description="The default in this box.")
    legal: AllowedValues | None = Field(
        default=None, description="Narrower legal values: enum, or limits within the task's."
    )
    help: Sentence | None = None
    unit: str | None = Field(default=None, min_length=1, max_length=40, description="Unit, such as s or images.")
    when: When | None = Field(
        default=None, description="Condition: values of other parameters under which this one may be given."
    )


def _as_mapping(value: object) -> object:
    if value is None or value == {}:
        raise ValueError(
            "the entry changes nothing; expected a default, or a mapping with default, legal, help, unit or when"
        )
    return value if isinstance(value, dict) else {"default": value}


Change = Annotated[ParameterChange, BeforeValidator(_as_mapping)]


@dataclass(frozen=True, slots=True)
class EffectiveDocument:
    """A box's document, merged with its task's."""

    value: dict[str, Any]
    #: Places in the file by places in ``value``, if they differ; inherited content has the place of ``extends``.
    origins: Mapping[Path, Path] = field(default_factory=dict)
    #: Forbidden changes of the box, with places in the file.
    faults: tuple[Problem, ...] = ()

    def in_file(self, path: Path, words: str) -> Problem:
        """Convert a fault at ``path`` of the merged document to one of the file."""
        for size in range(len(path), 0, -1):
            origin = self.origins.get(path[:size])
            if origin == _EXTENDS:
                part: Any = self.value
                for key in path[:size]:
                    part = part[key]
                return _EXTENDS, f"{part['name']!r} of task {self.value['extends']}: {words}"
            if origin is not None:
                return (*origin, *path[size:]), words
        return path, words

    def to_yaml_value(self) -> dict[str, Any]:
        """Return the document in a form without ``extends``."""
        return {key: part for key, part in self.value.items() if key not in {"extends", "override", "remove"}}


@cache
def task_names() -> tuple[str, ...]:
    """Return the sorted names of the tasks that a box can extend."""
    return tuple(sorted(path.stem for path in TASKS_FOLDER.glob("*.yaml")))


@cache
def read_task(name: str) -> Mapping[str, Any]:
    """Return the whole document of a task: ``mode``, ``target``, ``verbs``, ``parameters`` and ``artifacts``."""
    marked = read_yaml((TASKS_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(marked.value, dict)
    document = extend_task(marked.value)
    assert not marked.faults and not document.faults, (marked.faults, document.faults)
    return document.to_yaml_value()


def extend_task(written: Mapping[str, Any]) -> EffectiveDocument:
    """Return the merged document of a box's or task's file content ``written``.

    Malformed parts pass through unchanged; the box's own check reports them.
    """
    name = written.get("extends")
    if name is None:
        words = f"only a box with extends can change a task's parameters; expected extends: {', '.join(task_names())}"
        return EffectiveDocument(
            dict(written), faults=tuple(((k,), words) for k in ("override", "remove") if k in written)
        )
    if name not in task_names():
        fault = (_EXTENDS, f"{name!r} is not a task; {suggest(str(name), task_names())}")
        return EffectiveDocument(dict(written), faults=(fault,))
    merge = _Merge(written, read_task(name))
    value = {**written, **{key: merge.task[key] for key in _INHERITED if key in merge.task and key not in written}}
    value["parameters"], value["artifacts"], value["metrics"] = merge.parameters(), merge.artifacts(), merge.metrics()
    return EffectiveDocument(value, merge.origins, tuple(merge.faults))


class _Merge:
    """Merge of a box and its task."""

    def __init__(self, written: Mapping[str, Any], task: Mapping[str, Any]) -> None:
        self.task = task
        self.origins: dict[Path, Path] = {}
        self.faults: list[Problem] = []
        self._written = written
        self._name = str(written["extends"])
        verbs = written.get("verbs", task.get("verbs"))
        self._verbs = [str(verb) for verb in verbs] if isinstance(verbs, list) else []

    def parameters(self) -> object:
        """Return the task's parameters with the box's changes, then those that the box adds."""
        own = self._written.get("parameters", [])
        if not isinstance(own, list):
            return own
        changes = self._by_verb("override", dict)
        removed = self._by_verb("remove", list)
        found: list[Any] = []
        names: set[tuple[str, str]] = set()
        for parameter in self.task["parameters"]:
            (verb,), name = parameter["verbs"], parameter["name"]
            if verb not in self._verbs or name in removed.get(verb, ()):
                if name in changes.get(verb, {}) and verb in self._verbs:
                    self.faults.append((("override", verb, name), f"{name!r} is also under remove; name it once"))
                continue
            names.add((verb, name))
            place: Path = ("parameters", len(found))
            if name in changes.get(verb, {}):
                self.origins[place] = ("override", verb, name)
                parameter = self._changed(parameter, changes[verb][name], ("override", verb, name))
            else:
                self.origins[place] = _EXTENDS
            found.append(parameter)
        for number, parameter in enumerate(own):
            self.origins["parameters", len(found)] = ("parameters", number)
            found.append(parameter)
            if isinstance(parameter, dict) and isinstance(parameter.get("verbs"), list):
                name = str(parameter.get("name"))
                twice = [verb for verb in parameter["verbs"] if (str(verb), name) in names]
                if twice:
                    words = f"task {self._name} already gives {twice[0]} a parameter {name!r}; change it under override"
                    self.faults.append((("parameters", number, "name"), words + ", or name it under remove"))
        return found

    def artifacts(self) -> object:
        """Return the task's artifacts; the box's replace them by name, or are added."""
        own = self._written.get("artifacts", {})
        if not isinstance(own, dict):
            return own
        found: dict[str, Any] = {}
        for verb in dict.fromkeys([*self.task["artifacts"], *own]):
            given, mine = self.task["artifacts"].get(verb, {}), own.get(verb, {})
            if verb in own:
                found[verb] = mine
            if not isinstance(mine, dict) or verb not in self._verbs:
                continue
            found[verb] = {**mine}
            for side in ("inputs", "outputs"):
                if not isinstance(mine.get(side, []), list):
                    continue
                slots = {slot["name"]: (slot, _EXTENDS) for slot in given.get(side, [])}
                for number, slot in enumerate(mine.get(side, [])):
                    key = str(slot.get("name")) if isinstance(slot, dict) else ""
                    is_mine = key in slots and slots[key][1] != _EXTENDS
                    slots[f"{number}." if is_mine or not key else key] = (slot, ("artifacts", verb, side, number))
                found[verb][side] = [slot for slot, _ in slots.values()]
                self.origins |= {("artifacts", verb, side, n): origin for n, (_, origin) in enumerate(slots.values())}
        return found

    def metrics(self) -> object:
        """Return the task's metrics; the box's replace them by verb and name, or are added."""
        own = self._written.get("metrics", [])
        if not isinstance(own, list):
            return own
        merged = merge_metrics(self.task.get("metrics", ()), own, self._verbs)
        for place, (_, number) in enumerate(merged):
            self.origins["metrics", place] = _EXTENDS if number is None else ("metrics", number)
        return [metric for metric, _ in merged]

    def _by_verb(self, key: str, kind: type) -> dict[str, Any]:
        """Return ``override`` or ``remove`` by verb, if readable; names that the task lacks are faults."""
        value = self._written.get(key)
        by_verb = value.items() if isinstance(value, dict) else ()
        found: dict[str, Any] = {verb: names for verb, names in by_verb if isinstance(names, kind)}
        for verb, names in found.items():
            if verb not in set(Verb):
                continue
            legal = [p["name"] for p in self.task["parameters"] if verb in p["verbs"] and verb in self._verbs]
            for number, name in enumerate(names):
                if name not in legal:
                    place: Path = (key, verb, number if kind is list else name)
                    words = f"task {self._name} gives {verb} no parameter {name!r}; {suggest(str(name), legal)}"
                    self.faults.append((place, words))
        return found

    def _changed(self, parameter: Mapping[str, Any], change: object, place: Path) -> Mapping[str, Any]:
        """Return ``parameter`` with the box's change, if that is readable."""
        try:
            asked = _as_mapping(change)
            wanted = ParameterChange.model_validate(asked).legal
        except (ValidationError, ValueError):
            return parameter
        assert isinstance(asked, dict)
        merged = {**parameter, **asked}
        if wanted is not None:
            kind, base = ParameterType(parameter["type"]), AllowedValues.model_validate(parameter.get("legal", {}))
            widenings = list(_widenings(kind, base, wanted))
            merged["legal"] = parameter.get("legal", {}) if widenings else _narrowed(base, wanted)
            for words in widenings:
                allowed = f"task {self._name} allows {format_allowed(kind, base)}"
                hint = f"for other legal values name {parameter['name']} under remove and add it to parameters"
                self.faults.append(((*place, "legal"), f"{words}; {allowed}; {hint}"))
        return merged


#: Keys that limit the same side.
_SIDES: Final = (("minimum", "above"), ("maximum", "below"), ("multipleOf",))


def _narrowed(base: AllowedValues, wanted: AllowedValues) -> dict[str, Any]:
    """Return ``base`` with each side that ``wanted`` limits replaced; listed values replace all but limits by name."""
    limits: Mapping[str, Limit] = base.named_limits() if wanted.enum is not None else base.limits()
    for side in _SIDES:
        if any(key in wanted.limits() for key in side):
            limits = {key: limit for key, limit in limits.items() if key not in side}
    found: dict[str, Any] = {**limits, **wanted.limits()}
    enum = wanted.enum or base.enum
    pattern = wanted.pattern or (base.pattern if wanted.enum is None else None)
    return found | ({"enum": list(enum)} if enum else {}) | ({"pattern": pattern} if pattern else {})


def _widenings(kind: ParameterType, base: AllowedValues, wanted: AllowedValues) -> Iterator[str]:
    """Yield the places where ``wanted`` allows more than ``base``, or cannot be compared with it."""
    for value in wanted.enum or ():
        if find_objection(kind, base, value) is not None:
            yield f"{value!r} is outside the task's limits"
    if base.enum is not None and wanted.enum is None:
        yield "the task lists its legal values; expected a shorter list under enum"
        return
    if base.pattern is not None and wanted.pattern not in {None, base.pattern}:
        yield "a pattern cannot be compared with the task's; list values with enum"
    for side in _SIDES:
        was = next(((key, limit) for key, limit in base.limits().items() if key in side), None)
        now = next(((key, limit) for key, limit in wanted.limits().items() if key in side), None)
        if was is not None and now is not None and was != now and _is_wider(*was, *now):
            shown = int(now[1]) if isinstance(now[1], float) and now[1].is_integer() else now[1]
            yield f"{now[0]} {shown} is outside the task's limits, or cannot be compared with them"


def _is_wider(key: str, limit: Limit, new_key: str, new_limit: Limit) -> bool:
    if isinstance(limit, str) or isinstance(new_limit, str):
        return True
    if key == "multipleOf":
        return not is_multiple(new_limit, limit)
    if limit == new_limit:
        return key in {"above", "below"}
    return new_limit < limit if key in {"minimum", "above"} else new_limit > limit

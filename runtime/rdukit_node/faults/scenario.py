"""A scenario: hardware events over time, written in YAML, made into steps that are the same for the same seed. Pure.

```yaml
seed: 7
steps:
  - {at: 2s, class: tile-hang, component: "/NODE/XRDU_*/RDU_0/TILE_?"}
  - {at: 5s, every: 500ms, for: 10s, class: ddr-correctable, count: 3}
  - {at: 20s, rate: 10000, for: 10s, class: pcie-correctable, component: /NODE/XRDU_0}
  - {at: 40s, clear: /NODE/XRDU_0}
  - {at: 50s, repair: /NODE}
```

Times count from the start: seconds, or a number with ``ms``, ``s``, ``m`` or ``h``. Of a pattern's components, or of
those of the class's kind below a path, one is chosen each time; ``pick: all`` takes all.

Source: ours.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

import yaml

from rdukit.errors import InvalidArgument
from rdukit.hardware import NodeSpec
from rdukit_node.faults.capacity import is_at_or_below
from rdukit_node.faults.catalogue import InjectionChecker, find_class
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import FaultOutcome, FindOwner, Injection, join_outcomes
from rdukit_node.inventory import ComponentKind, components

_MAX_CHARACTERS: Final = 256 * 1024
_DEEPEST: Final = 16
_MAX_STEPS: Final = 100_000
_MAX_EVENTS: Final = 10_000_000
_MAX_S: Final = 30 * 86_400.0
#: Seconds between the bursts that a rate is made of.
_BURST_S: Final = 0.01
_UNITS: Final = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Name of the actor of clears and repairs in the database.
_BY: Final = "scenario"

_VERBS: Final = ("class", "clear", "repair", "reset")
_TIME_KEYS: Final = ("at", "every", "for", "rate")
_CLASS_KEYS: Final = ("component", "pick", "count", "seed", "data")


@dataclass(frozen=True, slots=True)
class ScenarioStep:
    """Events at one time: injections, or one of ``clear``, ``repair`` and ``reset`` of components."""

    at_s: float
    injections: tuple[Injection, ...] = ()
    verb: str = "class"
    components: tuple[str, ...] = ()
    #: Line of the text, for messages.
    line: int = 0

    def run(self, machine: FaultMachine, owner_of: FindOwner, now_ns: int) -> FaultOutcome:
        """Do it.

        Raises:
            RdukitError: the step is impossible now, such as a second reset of an RDU.
        """
        if self.verb == "class":
            return machine.inject(self.injections, owner_of, now_ns)
        outcomes: list[FaultOutcome] = []
        for component in self.components:
            if self.verb == "repair":
                outcomes.append(machine.repair(component, _BY, now_ns))
            elif self.verb == "reset":
                outcomes.append(machine.reset(component, owner_of, now_ns)[1])
            else:
                for fault in machine.active_faults(component):
                    outcomes.append(machine.clear(fault.fault_uuid, _BY, owner_of, now_ns)[2])
        return join_outcomes(outcomes)


def read_scenario(text: str, node: NodeSpec, seed: int | None = None) -> tuple[ScenarioStep, ...]:
    """Return the steps of the scenario ``text`` on ``node``, by time; steps of equal time keep the order of the text.

    Args:
        seed: replaces the text's own seed, which is 0 by default.
    Raises:
        InvalidArgument: the text is not a scenario; the message has line, key and the expected values.
    """
    top = _read_yaml(text)
    _check_keys(top, ("seed", "steps"), "the scenario")
    chosen = top.whole("seed", 0, 2**31) if "seed" in top.values else 0
    if seed is not None:
        if type(seed) is not int or not 0 <= seed <= 2**31:
            raise InvalidArgument(f"seed is {seed!r}; expected 0 to {2**31}")
        chosen = seed
    entries = top.values.get("steps")
    if not isinstance(entries, list) or not all(isinstance(entry, _Mapping) for entry in entries):
        raise InvalidArgument(f"line {top.line('steps')}: steps is missing or not a list; expected a list of mappings")
    checker = InjectionChecker(node)
    found: list[ScenarioStep] = []
    for number, entry in enumerate(entries):
        found += _steps(entry, node, checker, random.Random(f"{chosen}:{number}"))
        if len(found) > _MAX_STEPS:
            raise InvalidArgument(f"line {entry.first_line}: more than {_MAX_STEPS} steps; expected longer gaps")
    if sum(injection.count for step in found for injection in step.injections) > _MAX_EVENTS:
        raise InvalidArgument(f"the scenario has more than {_MAX_EVENTS} events; expected at most that many")
    return tuple(sorted(found, key=lambda step: step.at_s))


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A mapping of the text, with the line of each key."""

    values: Mapping[str, object]
    lines: Mapping[str, int]
    first_line: int = field(default=1)

    def line(self, key: str) -> int:
        return self.lines.get(key, self.first_line)

    def wrong(self, key: str, legal: str) -> InvalidArgument:
        shown = repr(self.values.get(key))[:80]
        return InvalidArgument(f"line {self.line(key)}: {key} is {shown}; expected {legal}")

    def whole(self, key: str, least: int, most: int) -> int:
        value = self.values.get(key)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def seconds(self, key: str) -> float:
        value = self.values.get(key)
        match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(ms|s|m|h|)", str(value)) if type(value) in (int, float, str) else None
        seconds = float(match[1]) * _UNITS[match[2]] if match is not None else -1.0
        if not 0.0 <= seconds <= _MAX_S:
            raise self.wrong(key, "seconds, or a number with ms, s, m or h, up to 30 days")
        return seconds


def _read_yaml(text: str) -> _Mapping:
    if len(text) > _MAX_CHARACTERS:
        raise InvalidArgument(f"the scenario has {len(text)} characters; expected {_MAX_CHARACTERS} at most")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _DEEPEST:
                raise InvalidArgument(f"line {_line(event)}: nested too deeply; expected {_DEEPEST} levels at most")
            if isinstance(event, yaml.AliasEvent):
                raise InvalidArgument(f"line {_line(event)}: an alias; expected values written out")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        value = None if tree is None else _plain(tree, yaml.SafeLoader(""))
    except yaml.YAMLError as cause:
        raise InvalidArgument(f"the scenario is not YAML: {cause}") from cause
    except (RecursionError, ValueError) as cause:
        raise InvalidArgument(f"the scenario cannot be read: {cause}") from cause
    if not isinstance(value, _Mapping):
        raise InvalidArgument("the scenario is not a mapping; expected keys seed and steps")
    return value


def _line(event: yaml.Event) -> int:
    return 1 if event.start_mark is None else event.start_mark.line + 1


def _plain(tree: yaml.Node, loader: yaml.SafeLoader) -> object:
    if isinstance(tree, yaml.MappingNode):
        values: dict[str, object] = {}
        lines: dict[str, int] = {}
        for key_tree, value_tree in tree.value:
            key, line = str(key_tree.value), key_tree.start_mark.line + 1
            if key in values:
                raise InvalidArgument(f"line {line}: {key} is repeated; give it once")
            values[key], lines[key] = _plain(value_tree, loader), line
        return _Mapping(values, lines, tree.start_mark.line + 1)
    if isinstance(tree, yaml.SequenceNode):
        return [_plain(item, loader) for item in tree.value]
    value: object = loader.construct_object(tree, deep=True)
    return value


def _check_keys(mapping: _Mapping, legal: Sequence[str], what: str) -> None:
    for key in mapping.values:
        if key not in legal:
            raise InvalidArgument(f"line {mapping.line(key)}: {what} has no key {key!r}; expected {', '.join(legal)}")


def _steps(
    entry: _Mapping, node: NodeSpec, checker: InjectionChecker, generator: random.Random
) -> Iterable[ScenarioStep]:
    verbs = [verb for verb in _VERBS if verb in entry.values]
    if len(verbs) != 1:
        found = " and ".join(verbs) or "nothing to do"
        raise InvalidArgument(f"line {entry.first_line}: a step has {found}; expected one of {', '.join(_VERBS)}")
    verb = verbs[0]
    _check_keys(entry, (verb, *_TIME_KEYS, *(_CLASS_KEYS if verb == "class" else ())), f"a step with {verb}")
    times = _times(entry)
    if verb != "class":
        if "rate" in entry.values:
            raise entry.wrong("rate", "only with class")
        matched = _matching(entry, verb, node, None)
        return [ScenarioStep(at, (), verb, matched, entry.first_line) for at, _ in times]
    make = _injection_maker(entry, node, checker, generator)
    return [ScenarioStep(at, make(number), line=entry.first_line) for at, number in times]


def _times(entry: _Mapping) -> list[tuple[float, int]]:
    """Return the times of events, and their number."""
    start = entry.seconds("at") if "at" in entry.values else 0.0
    count = entry.whole("count", 1, 1_000_000) if "count" in entry.values else 1
    has_rate, has_every = "rate" in entry.values, "every" in entry.values
    if has_rate and (has_every or "count" in entry.values):
        raise entry.wrong("rate", "rate together with for, and without every and count")
    if not (has_rate or has_every):
        if "for" in entry.values:
            raise entry.wrong("for", "only with every or rate")
        return [(start, count)]
    if "for" not in entry.values:
        raise InvalidArgument(f"line {entry.first_line}: every and rate need for; expected for: 10s")
    length = entry.seconds("for")
    if has_every:
        gap = entry.seconds("every")
        if gap < 1e-3 or length / gap > _MAX_STEPS:
            raise entry.wrong("every", f"1ms or more, and {_MAX_STEPS} times at most")
        return [(start + number * gap, count) for number in range(max(1, round(length / gap)))]
    rate = entry.whole("rate", 1, 1_000_000)
    total = round(rate * length)
    if total > _MAX_EVENTS or length / _BURST_S > _MAX_STEPS:
        raise entry.wrong("rate", f"{_MAX_EVENTS} events and {_MAX_STEPS * _BURST_S:g} seconds at most")
    bursts = max(1, min(total, round(length / _BURST_S)))
    return [
        (start + length * number / bursts, total * (number + 1) // bursts - total * number // bursts)
        for number in range(bursts)
    ]


def _injection_maker(
    entry: _Mapping, node: NodeSpec, checker: InjectionChecker, generator: random.Random
) -> Callable[[int], tuple[Injection, ...]]:
    name = entry.values["class"]
    try:
        kind = find_class(str(name)).kind
    except InvalidArgument as error:
        raise InvalidArgument(f"line {entry.line('class')}: {error.message}") from error
    data = entry.values.get("data", _Mapping({}, {}))
    if not isinstance(data, _Mapping):
        raise entry.wrong("data", "a mapping")
    pick = entry.values.get("pick", "one")
    if pick not in ("one", "all"):
        raise entry.wrong("pick", "one, all")
    own_seed = entry.whole("seed", 0, 2**31) if "seed" in entry.values else None
    if own_seed is not None:
        generator = random.Random(own_seed)
    plain_data = {key: _unwrapped(value) for key, value in data.values.items()}
    matched = _matching(entry, "component", node, kind)
    try:
        for path in matched:
            checker.check(Injection(str(name), path, data=plain_data), 0)
    except InvalidArgument as error:
        raise InvalidArgument(f"line {entry.first_line}: {error.message}") from error

    def make(number: int) -> tuple[Injection, ...]:
        seed = generator.getrandbits(31)
        if pick == "all":
            return tuple(Injection(str(name), path, number, seed, plain_data) for path in matched)
        if "rate" not in entry.values:
            return (Injection(str(name), generator.choice(matched), number, seed, plain_data),)
        counts = Counter(generator.choices(matched, k=number))
        return tuple(Injection(str(name), path, count, seed, plain_data) for path, count in counts.items())

    return make


def _matching(entry: _Mapping, key: str, node: NodeSpec, kind: ComponentKind | None) -> tuple[str, ...]:
    """Return components that a path or pattern names; with a kind, those of it at or below them."""
    pattern = entry.values.get(key, "/NODE" if kind is not None else None)
    if not isinstance(pattern, str) or not pattern.startswith("/") or len(pattern) > 256:
        raise entry.wrong(key, "the path of a component, or a pattern such as /NODE/XRDU_*/RDU_0/TILE_?")
    full = pattern if is_at_or_below(pattern, "/NODE") else "/NODE" + pattern
    parts = full.rstrip("/").split("/")
    found: list[str] = []
    for component in components(node):
        own = component.path.split("/")
        is_hit = len(own) >= len(parts) if kind is not None else len(own) == len(parts)
        if not is_hit or (kind is not None and component.kind is not kind) or component.is_empty_slot:
            continue
        if all(fnmatchcase(name, part) for name, part in zip(own, parts, strict=False)):
            found.append(component.path)
    if not found:
        example = next(c.path for c in components(node) if kind is None or c.kind is kind)
        what = "component" if kind is None else str(kind)
        raise entry.wrong(key, f"a path or pattern that some {what} of this {node.platform} has, such as {example}")
    return tuple(found)


def _unwrapped(value: object) -> object:
    if isinstance(value, _Mapping):
        return {key: _unwrapped(inner) for key, inner in value.values.items()}
    return [_unwrapped(inner) for inner in value] if isinstance(value, list) else value

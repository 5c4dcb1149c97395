"""Human decisions: a JSON file in which a user cuts sections instead of the compiler.

The vendor's schema is not public. Any JSON object is accepted; of its keys only ours count, the others are named in
one warning and change nothing::

    {"sections": [["*attention*"], ["*mlp__up*", "*mlp__down*"]],
     "heuristics": {"*attention*": "MHA"}}

``sections``: lists of name patterns. The operators that one list matches are one section, if they fit and no path
leaves and re-enters the section; the mode cuts the rest. ``heuristics``: section pattern → heuristic of its section.

Source: compiler reference 4.7 (files exist, schema unknown); the keys are ours.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from rdukit.errors import InvalidArgument
from rdukit_compiler.capture.evaluation import name_in_training
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.patterns.match import Match
from rdukit_compiler.patterns.topology import OperatorGroups, Topology

KEYS = ("sections", "heuristics")


@dataclass(frozen=True, slots=True)
class HumanDecision:
    """Decisions of one file. ``ignored``: its unknown keys."""

    sections: tuple[tuple[str, ...], ...] = ()
    heuristics: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def load_human_decision(path: Path) -> HumanDecision:
    """Read a human decision file.

    Raises:
        InvalidArgument: the file is missing, is not a JSON object, or one of our keys has another form than above.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise InvalidArgument(f"no human decision file at {str(path)!r}") from cause
    except (OSError, ValueError) as cause:
        raise InvalidArgument(f"human decision file {path} is not JSON: {cause}") from cause
    if not isinstance(value, dict):
        raise InvalidArgument(f"human decision file {path} holds a {type(value).__name__}; expected a JSON object")
    sections, heuristics = value.get("sections", []), value.get("heuristics", {})
    if not isinstance(sections, list) or not all(_are_patterns(item) for item in sections):
        raise InvalidArgument(f"{path}: 'sections' must be a list of lists of operator name patterns")
    if not isinstance(heuristics, dict) or not all(isinstance(name, str) for name in heuristics.values()):
        raise InvalidArgument(f"{path}: 'heuristics' must map patterns to names of heuristics")
    return HumanDecision(
        tuple(tuple(item) for item in sections), dict(heuristics), tuple(k for k in value if k not in KEYS)
    )


def decided_matches(graph: ModelGraph, decision: HumanDecision) -> tuple[tuple[Match, ...], tuple[str, ...]]:
    """Return the sections that a human decided, as matches in the file's order, and warnings about patterns without a
    match.

    An operator belongs to the first list that names it.

    Raises:
        InvalidArgument: a path leaves a section and re-enters it.
    """
    topology = Topology(graph)
    groups = OperatorGroups(topology)
    matches: list[Match] = []
    warnings: list[str] = []
    taken: set[str] = set()
    for number, patterns in enumerate(decision.sections):
        warnings += [
            f"human decision: pattern {pattern!r} of section {number} matches no operator of graph {graph.name}"
            for pattern in patterns
            if not any(_named(o.name, [pattern]) for o in graph.operators)
        ]
        names = tuple(o.name for o in graph.operators if o.name not in taken and _named(o.name, patterns))
        if not names:
            continue
        positions = [topology.position[name] for name in names]
        if not groups.may_join(positions):
            raise InvalidArgument(
                f"human decision: section {number} ({', '.join(patterns)}) cannot be one section of graph "
                f"{graph.name}: a path leaves its {len(names)} operators and comes back; also name the operators "
                "between"
            )
        groups.join(positions)
        taken.update(names)
        heuristic = next((h for p, h in decision.heuristics.items() if any(_named(n, [p]) for n in names)), None)
        matches.append(Match(f"human_decision_{number}", names, {}, heuristic, {}, {}))
    return tuple(matches), tuple(warnings)


def _named(name: str, patterns: Sequence[str]) -> bool:
    """Match a name; a decision for an operator of a training graph also applies to its evaluation graph."""
    called = {name, name_in_training(name)}
    return any(fnmatchcase(each, pattern) for each in called for pattern in patterns)


def _are_patterns(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)

"""Find where fusion rules match a traced graph.

Source: compiler reference 5.4, items 1 to 10 and 13. Where the public material has no rule, the choice is ours:
matching starts at a pattern's sinks and walks up, so that the nearest producer is tried first.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.operators.vocabulary import words_of
from rdukit_compiler.patterns.syntax import Rule, RuleEntry, Scalar
from rdukit_compiler.patterns.topology import OperatorGroups, Topology
from rdukit_compiler.patterns.variants import RuleVariant, variants_of

logger = logging.getLogger(__name__)

#: Maximum bindings that are tried at one starting operator; only patterns without a join approach it.
MAX_STEPS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Match:
    """Match of a rule at one place. ``operators`` are those to fuse, in graph order."""

    rule: str
    operators: tuple[str, ...]
    #: Entry name -> operator name; context entries included, absent ones not.
    bindings: Mapping[str, str]
    heuristic: str | None
    parameters: Mapping[str, Scalar]
    #: Operator name -> parameters of its entry's ``set`` keys.
    settings: Mapping[str, Mapping[str, Scalar]]


def match_rules(
    graph: ModelGraph,
    rules: Iterable[Rule],
    taken: frozenset[str] = frozenset(),
    groups: Sequence[Sequence[str]] = (),
) -> tuple[Match, ...]:
    """Find the matches of ``rules`` in ``graph``: disjoint, and such that an executable order remains after fusion.

    Rules apply by descending priority, equal ones in the given order. Operators in ``taken`` and in ``groups`` are not
    fused but may be context; ``groups`` also count as fused in the check for cycles.

    Returns:
        Matches by rule in the order of application, and within a rule by first operator. Equal arguments give equal
        results.
    Raises:
        ValueError: ``groups`` overlap, or no order of them can be executed.
    """
    search = _Search(graph, taken | {name for group in groups for name in group})
    for group in groups:
        positions = [search.topology.position[name] for name in group]
        if any(len(search.groups.members[search.groups.group_of[p]]) > 1 for p in positions):
            raise ValueError(f"the groups given overlap at one of {list(group)}")
        if not search.groups.may_join(positions):
            raise ValueError(f"the group {list(group)} cannot be one section: a path leaves it and comes back")
        search.groups.join(positions)
    matches: list[Match] = []
    for rule in sorted(rules, key=lambda r: -r.priority):
        found = sorted(search.apply(rule), key=lambda m: search.topology.position[m.operators[0]])
        logger.info("rule=%s priority=%d matches=%d", rule.name, rule.priority, len(found))
        matches.extend(found)
    return tuple(matches)


class _Search:
    """A graph and the operators fused so far."""

    def __init__(self, graph: ModelGraph, taken: frozenset[str]) -> None:
        self.graph = graph
        self.topology = Topology(graph)
        self.groups = OperatorGroups(self.topology)
        #: Positions that no further match may fuse.
        self.fused = {self.topology.position[name] for name in taken}
        self.words = [words_of(operator) for operator in graph.operators]
        self.by_word: dict[str, list[int]] = {}
        for position, words in enumerate(self.words):
            for word in words:
                self.by_word.setdefault(word, []).append(position)

    def apply(self, rule: Rule) -> Iterator[Match]:
        """Fuse all matches of ``rule``, the variants with more entries first."""
        for variant in variants_of(rule):
            if not all(any(word in self.by_word for word in entry.op_types) for entry in variant.entries):
                continue
            steps = _plan(variant)
            for start in self._candidates(steps[0].entry):
                while (bound := self._bind(rule, steps, start)) is not None:
                    yield self._take(rule, variant, bound)

    def _take(self, rule: Rule, variant: RuleVariant, bound: Mapping[str, int]) -> Match:
        positions = sorted(bound[e.name] for e in variant.entries if e.included)
        self.groups.join(positions)
        self.fused.update(positions)
        name = {e.name: self.graph.operators[bound[e.name]].name for e in variant.entries}
        return Match(
            rule=rule.name,
            operators=tuple(self.graph.operators[p].name for p in positions),
            bindings=name,
            heuristic=rule.heuristic,
            parameters=rule.parameters,
            settings={name[e.name]: e.settings for e in variant.entries if e.settings},
        )

    def _candidates(self, entry: RuleEntry) -> list[int]:
        return sorted({p for word in entry.op_types for p in self.by_word.get(word, ())})

    def _bind(self, rule: Rule, steps: "Sequence[_Step]", start: int) -> dict[str, int] | None:
        """Bind all entries, the first to ``start``; None if no binding is valid."""
        bound: dict[str, int] = {}
        budget = MAX_STEPS

        def legal(step: _Step, position: int) -> bool:
            if position in bound.values() or (step.entry.included and position in self.fused):
                return False
            if self.words[position].isdisjoint(step.entry.op_types):
                return False
            return all(bound[p] in self.topology.producers[position] for p in step.bound_parents) and all(
                position in self.topology.producers[bound[c]] for c in step.bound_children
            )

        def extend(depth: int) -> bool:
            nonlocal budget
            if depth == len(steps):
                return self.groups.may_join(bound[s.entry.name] for s in steps if s.entry.included)
            step = steps[depth]
            for position in (start,) if depth == 0 else self._nearby(step, bound, start):
                budget -= 1
                if budget < 0:
                    return False
                if legal(step, position):
                    bound[step.entry.name] = position
                    if extend(depth + 1):
                        return True
                    del bound[step.entry.name]
            return False

        found = extend(0)
        if budget < 0:
            logger.warning(
                "rule was abandoned because its pattern is too loose: rule=%s operator=%s",
                rule.name,
                self.graph.operators[start].name,
            )
        return bound if found else None

    def _nearby(self, step: "_Step", bound: Mapping[str, int], start: int) -> Sequence[int]:
        """Return candidates: producers, the nearest first; otherwise readers, the earliest first; otherwise all
        operators, the nearest to the start first.
        """
        if step.bound_children:
            return self.topology.producers[bound[step.bound_children[0]]]
        if step.bound_parents:
            return self.topology.readers[bound[step.bound_parents[0]]]
        return sorted(self._candidates(step.entry), key=lambda p: (abs(p - start), p))


@dataclass(frozen=True, slots=True)
class _Step:
    """Entry to bind, with the already bound entries that it must be connected to."""

    entry: RuleEntry
    bound_parents: tuple[str, ...]
    bound_children: tuple[str, ...]


def _plan(variant: RuleVariant) -> tuple[_Step, ...]:
    """Return the order of binding: first a sink, then entries that feed a bound one, then entries that it feeds, then
    sinks.
    """
    waiting = {entry.name: entry for entry in variant.entries}
    steps: list[_Step] = []
    done: list[str] = []
    while waiting:
        name = _next_name(variant, waiting, done)
        steps.append(
            _Step(
                waiting.pop(name),
                tuple(p for p in variant.parents[name] if p in done),
                tuple(c for c in variant.children[name] if c in done),
            )
        )
        done.append(name)
    return tuple(steps)


def _next_name(variant: RuleVariant, waiting: Mapping[str, RuleEntry], done: Sequence[str]) -> str:
    for above in (True, False):
        for bound in done:
            for name in variant.parents[bound] if above else variant.children[bound]:
                if name in waiting:
                    return name
    return next(name for name in waiting if not variant.children[name])

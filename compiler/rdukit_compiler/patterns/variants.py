"""Expand a rule into its variants: one plain pattern for each choice of alternatives and each set of optional entries.

Source: compiler reference 5.4 items 5 and 6. Ours: a variant lacks the entries that feed only
rejected alternatives.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product

from rdukit_compiler.patterns.syntax import Rule, RuleEntry

#: Entry name -> names of its children, in file order.
Edges = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class RuleVariant:
    """Entries that must all be bound, in file order, and the edges between them."""

    entries: tuple[RuleEntry, ...]
    children: Mapping[str, tuple[str, ...]]
    parents: Mapping[str, tuple[str, ...]]


def variants_of(rule: Rule) -> Iterator[RuleVariant]:
    """Yield the variants of ``rule``, without duplicates, in the order in which they are tried.

    Earlier alternatives come first; under one choice of alternatives, more optional entries come first. A variant
    without operators to fuse is left out.
    """
    entries = {entry.name: entry for entry in rule.entries}
    seen: set[tuple[tuple[str, tuple[str, ...]], ...]] = set()
    alternations = [entry for entry in rule.entries if entry.options]
    for choice in product(*(entry.options for entry in alternations)):
        chosen = dict(zip((entry.name for entry in alternations), choice, strict=True))
        edges = _without_rejected(entries, chosen)
        optional = [name for name in edges if not entries[name].required]
        for count in range(len(optional), -1, -1):
            for present in combinations(optional, count):
                bridged = _bridge(edges, [name for name in optional if name not in present])
                shape = tuple(bridged.items())
                if shape in seen or not any(entries[name].included for name in bridged):
                    continue
                seen.add(shape)
                yield RuleVariant(tuple(entries[name] for name in bridged), bridged, _reversed(bridged))


def _without_rejected(entries: Mapping[str, RuleEntry], chosen: Mapping[str, str]) -> Edges:
    """Return the edges among the operator entries that this choice keeps; alternations are replaced by their chosen
    entries.
    """

    def resolve(name: str) -> str:
        while name in chosen:
            name = chosen[name]
        return name

    edges = {
        name: tuple(dict.fromkeys(resolve(child) for child in entry.children))
        for name, entry in entries.items()
        if not entry.options
    }
    rejected = {option for entry in entries.values() for option in entry.options} - set(chosen.values())
    named = {child for entry in entries.values() for child in (*entry.children, *entry.options)}
    pending = [resolve(name) for name in entries if name not in named]
    kept: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in kept and name not in rejected:
            kept.add(name)
            pending.extend(edges[name])
    # Entries that feed only rejected alternatives are removed with them.
    while True:
        useless = {
            name
            for name in kept
            if entries[name].children and not any(resolve(c) in kept for c in entries[name].children)
        }
        if not useless:
            break
        kept -= useless
    return {name: tuple(c for c in children if c in kept) for name, children in edges.items() if name in kept}


def _bridge(edges: Edges, absent: list[str]) -> Edges:
    """Remove the absent entries: their parents get edges to their children."""
    result = dict(edges)
    for name in absent:
        below = result.pop(name)
        for parent, children in result.items():
            if name in children:
                spliced = [c for child in children for c in (below if child == name else (child,))]
                result[parent] = tuple(dict.fromkeys(spliced))
    return result


def _reversed(edges: Edges) -> Edges:
    parents: dict[str, list[str]] = {name: [] for name in edges}
    for name, children in edges.items():
        for child in children:
            parents[child].append(name)
    return {name: tuple(found) for name, found in parents.items()}

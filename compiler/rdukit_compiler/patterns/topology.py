"""Edges among a graph's operators, by position, and among groups of them.

Sections can run one after the other only if the graph of groups has no cycle. A buffer's new value is written directly
after the last reader of the old one. At the end of forward, far from the operator that computed it, another section
would have to read the whole buffer.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence

from rdukit_compiler.cost.work import VIEW_OPS
from rdukit_compiler.ir import ModelGraph, Operator


class Topology:
    """Positions of a graph's operators and the edges between them."""

    def __init__(self, graph: ModelGraph) -> None:
        self.position = {operator.name: index for index, operator in enumerate(graph.operators)}
        made_by = {output: index for index, o in enumerate(graph.operators) for output in o.outputs}
        earlier = _readers_of_old_values(graph, made_by)
        #: Positions of the operators that feed each one, or that read a buffer before it overwrites the buffer;
        #: distinct, the nearest (latest) first.
        self.producers: list[tuple[int, ...]] = [
            tuple(sorted({made_by[n] for n in o.inputs if n in made_by} | earlier.get(index, set()), reverse=True))
            for index, o in enumerate(graph.operators)
        ]
        readers: list[list[int]] = [[] for _ in graph.operators]
        for index, producers in enumerate(self.producers):
            for producer in producers:
                readers[producer].append(index)
        #: Positions of the operators that each one feeds; distinct, the earliest first.
        self.readers: list[tuple[int, ...]] = [tuple(found) for found in readers]

    def __len__(self) -> int:
        return len(self.producers)


def _readers_of_old_values(graph: ModelGraph, made_by: Mapping[str, int]) -> dict[int, set[int]]:
    """Map operators that write a buffer's new value to the operators before them that read the old one."""
    found: dict[int, set[int]] = {}
    for buffer, value in graph.updates.items():
        maker = made_by[value]
        earlier = graph.operators[:maker]
        old = views_of(buffer, earlier)
        found.setdefault(maker, set()).update(i for i, o in enumerate(earlier) if not old.isdisjoint(o.inputs))
    return found


class OperatorGroups:
    """Operators in disjoint groups, so that the graph of groups never has a cycle. At first each operator is a
    group.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        #: Group of each operator; a group's number has no meaning.
        self.group_of: list[int] = list(range(len(topology)))
        self.members: dict[int, list[int]] = {index: [index] for index in range(len(topology))}
        #: Group -> its place in an executable order; places are distinct, and may have gaps.
        self._place: dict[int, int] = {index: index for index in range(len(topology))}
        #: The inverse of ``_place``.
        self._at: dict[int, int] = dict(self._place)
        #: Group -> its place in ``in_order``; None after a join, until the next query.
        self._rank: dict[int, int] | None = dict(self._place)

    def may_join(self, positions: Iterable[int]) -> bool:
        """Return whether these operators' groups can be joined: no path leaves the new group and re-enters it."""
        wanted = {self.group_of[p] for p in positions}
        if len(wanted) == 1:
            return True
        last = max(self._place[g] for g in wanted)
        pending = [n for g in wanted for n in self.after(g) if n not in wanted]
        seen: set[int] = set()
        while pending:
            group = pending.pop()
            if group in wanted:
                return False
            if group not in seen and self._place[group] < last:
                seen.add(group)
                pending.extend(self.after(group))
        return True

    def join(self, positions: Iterable[int]) -> int:
        """Join these operators' groups, which ``may_join`` allowed."""
        first, *others = sorted({self.group_of[p] for p in positions})
        if not others:
            return first
        self._bring_together(first, others)
        for other in others:
            for member in self.members[other]:
                self.group_of[member] = first
            self.members[first] += self.members.pop(other)
        self.members[first].sort()
        self._rank = None
        return first

    def in_order(self) -> Sequence[int]:
        """Return the groups, each after the groups that feed it; ties in graph order."""
        waiting = {group: len(self._previous(group)) for group in self.members}
        ready = [(members[0], group) for group, members in self.members.items() if not waiting[group]]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, group = heapq.heappop(ready)
            order.append(group)
            for reader in self.after(group):
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, (self.members[reader][0], reader))
        return order

    def rank(self, group: int) -> int:
        """Return the place of the group in ``in_order``; valid until the next ``join``."""
        if self._rank is None:
            self._rank = {group: rank for rank, group in enumerate(self.in_order())}
        return self._rank[group]

    def after(self, group: int) -> set[int]:
        """Return the groups that read results of this one."""
        return {self.group_of[r] for m in self.members[group] for r in self.topology.readers[m]} - {group}

    def _previous(self, group: int) -> set[int]:
        return {self.group_of[p] for m in self.members[group] for p in self.topology.producers[m]} - {group}

    def _bring_together(self, first: int, others: Sequence[int]) -> None:
        """Place the joined group, which keeps the number ``first``, and remove ``others`` from the order.

        Groups between them move: those that feed one of them go before the joined group, the rest after it.
        """
        wanted = {first, *others}
        places = sorted(self._place[group] for group in wanted)
        window = range(places[0], places[-1] + 1)
        between = [self._at.pop(place) for place in window if place in self._at]
        feeding = self._feeding(wanted, places[0])
        before = [group for group in between if group in feeding]
        after = [group for group in between if group not in feeding and group not in wanted]
        for place, group in enumerate((*before, first, *after), places[0]):
            self._place[group] = place
            self._at[place] = group
        for other in others:
            del self._place[other]

    def _feeding(self, wanted: set[int], first_place: int) -> set[int]:
        """Return the groups after ``first_place`` that feed one of ``wanted``, directly or through others."""
        found: set[int] = set()
        pending = list(wanted)
        while pending:
            for group in self._previous(pending.pop()):
                if group not in wanted and group not in found and self._place[group] > first_place:
                    found.add(group)
                    pending.append(group)
        return found


def move_copies(operators: Sequence[Operator], updates: Mapping[str, str]) -> tuple[Operator, ...]:
    """Move copies that only write buffers' new values to just after the operator that computed the value.

    A copy does not move if an operator in between reads the buffer's old value, or a view of it.

    Args:
        updates: buffer → the value that forward leaves in it.
    """
    makers = {output: operator for operator in operators for output in operator.outputs}
    position = {operator.name: number for number, operator in enumerate(operators)}
    behind: dict[str, list[Operator]] = {}
    moved: set[str] = set()
    for buffer, value in updates.items():
        copy = makers.get(value)
        maker = makers.get(copy.inputs[0]) if copy is not None and copy.op == "aten.clone.default" else None
        if copy is None or maker is None or reads_after(operators[position[maker.name] + 1 :], operators, buffer):
            continue
        behind.setdefault(maker.name, []).append(copy)
        moved.add(copy.name)
    made: list[Operator] = []
    for operator in operators:
        if operator.name not in moved:
            made.extend([operator, *behind.get(operator.name, ())])
    return tuple(made)


def reads_after(later: Sequence[Operator], operators: Sequence[Operator], buffer: str) -> bool:
    """Return whether one of ``later`` reads the buffer's old value, directly or through a view."""
    old = views_of(buffer, operators)
    return any(old.intersection(operator.inputs) for operator in later)


def views_of(value: str, operators: Sequence[Operator]) -> set[str]:
    """Return ``value`` and the results of ``operators``, in graph order, that may show the same memory."""
    found = {value}
    for operator in operators:
        if operator.op_type in VIEW_OPS and operator.inputs and operator.inputs[0] in found:
            found.update(operator.outputs)
    return found

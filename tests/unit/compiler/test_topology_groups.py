"""Joining groups, checked against a search of the whole graph, and cheap however deep the model is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.patterns.topology import OperatorGroups, Topology
from support import shows
from support.graphs import GraphBuilder, graph_of

pytestmark = shows("o1", "o3")


@st.composite
def graphs_and_joins(draw: st.DrawFn) -> tuple[ModelGraph, list[list[int]]]:
    build = GraphBuilder()
    names = [build.input("x")]
    count = draw(st.integers(2, 16))
    for index in range(count):
        near = st.sampled_from(names[-6:])
        names.append(build.op("add", draw(near), draw(near), name=f"o{index}"))
    positions = st.lists(st.integers(0, count - 1), min_size=1, max_size=4)
    return build.build(), draw(st.lists(positions, min_size=1, max_size=12))


def has_circle(topology: Topology, groups: OperatorGroups, wanted: set[int]) -> bool:
    """Whether one group of ``wanted`` would feed itself through another group."""
    pending = [reader for group in wanted for reader in groups.after(group) - wanted]
    seen: set[int] = set()
    while pending:
        group = pending.pop()
        if group in wanted:
            return True
        if group not in seen:
            seen.add(group)
            pending.extend(groups.after(group))
    return False


@settings(max_examples=100, deadline=None)
@given(graphs_and_joins())
def test_groups_may_join_exactly_if_no_path_goes_out_and_comes_back(case: tuple[ModelGraph, list[list[int]]]) -> None:
    graph, joins = case
    topology = Topology(graph)
    groups = OperatorGroups(topology)
    for positions in joins:
        may = groups.may_join(positions)
        assert may is not has_circle(topology, groups, {groups.group_of[p] for p in positions})
        if may:
            groups.join(positions)
        order = list(groups.in_order())
        assert sorted(order) == sorted(groups.members)
        assert sorted(order, key=groups.rank) == order


def test_joining_layer_after_layer_never_orders_the_whole_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = Topology(graph_of("x" + " -> relu" * 400))
    groups = OperatorGroups(topology)
    with monkeypatch.context() as patch:
        patch.setattr(OperatorGroups, "in_order", lambda _: pytest.fail("the whole graph was ordered"))
        for first in range(0, 400, 10):
            positions = range(first, first + 10)
            assert groups.may_join(positions)
            groups.join(positions)
    assert list(groups.in_order()) == list(range(0, 400, 10))

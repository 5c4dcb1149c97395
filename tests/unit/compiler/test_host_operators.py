"""Operators that the device does not have: how they are found, what is offered instead, and where sections are cut."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit.errors import UnsupportedOperator
from rdukit.hardware import find_chip
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.operators.supported import is_supported, nearest_supported, runs_on_host
from rdukit_compiler.passes.cut_sections import CutOptions, cut_sections
from rdukit_compiler.passes.host_operators import choose_host_operators, split_around_host
from rdukit_compiler.patterns.syntax import parse_rules
from support import shows
from support.graphs import GraphBuilder, graph_of

pytestmark = shows("operators", "pytorch", "o0", "o1", "o3")


def named(op: str) -> ModelGraph:
    graph = graph_of("x -> relu")
    return replace(graph, operators=(replace(graph.operators[0], op=op, op_type=op.split(".")[1]),))


@pytest.mark.parametrize(
    ("op", "nearest"),
    [
        ("aten.linalg_inv.default", "matmul"), ("aten.linalg_svd.default", "factors"), ("aten.logdet.default", "sum"),
        ("mine.fused_softmax.default", "softmax"), ("mine.rotary.default", ""), ("xformers.geglu.default", "gelu"),
    ],
)  # fmt: skip
def test_an_unsupported_operator_is_refused_with_the_nearest_that_is_supported(op: str, nearest: str) -> None:
    graph = named(op)
    assert not is_supported(graph.operators[0])
    assert nearest in nearest_supported(graph.operators[0])
    with pytest.raises(UnsupportedOperator, match=r"in module 'forward' is not supported.*--host-fallback") as refused:
        choose_host_operators(graph, host_fallback=False)
    assert refused.value.detail["operators"] == [graph.operators[0].name]
    assert runs_on_host(choose_host_operators(graph, host_fallback=True).operators[0])


@pytest.mark.parametrize("op", ["aten.linear.default", "aten.sort.default", "prims.convert_element_type.default"])
def test_operators_that_the_device_has_pass_as_they_are(op: str) -> None:
    graph = named(op)
    assert choose_host_operators(graph, host_fallback=False) is graph


def test_all_unsupported_operators_are_named_at_once() -> None:
    graph = graph_of("x -> linalg_inv -> relu -> linalg_qr")
    with pytest.raises(UnsupportedOperator, match=r"'linalg_inv'.*1 more: 'linalg_qr'"):
        choose_host_operators(graph, host_fallback=False)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_groups_around_host_operators_partition_the_graph_in_an_order_that_can_be_run(data: st.DataObject) -> None:
    b = GraphBuilder()
    known = [b.input("x")]
    for _ in range(data.draw(st.integers(1, 14))):
        op_type = data.draw(st.sampled_from(["relu", "add", "linalg_inv"]))
        reads = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=2))
        known.append(b.op(op_type, *reads, shape=(4, 8)))
    graph = choose_host_operators(b.build(), host_fallback=True)
    groups = split_around_host(graph)
    assert sorted(o.name for group in groups for o in group) == sorted(o.name for o in graph.operators)
    made: set[str] = {"x"}
    for group in groups:
        assert len(group) == 1 or not any(runs_on_host(operator) for operator in group)
        inside = {name for operator in group for name in operator.outputs}
        assert all(name in made or name in inside for operator in group for name in operator.inputs)
        made |= inside


RULE = """
pair:
  priority: 1
  pattern:
    first: {op_type: linear, child: second}
    second: {op_type: linalg_inv}
"""


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_a_host_operator_has_a_section_of_its_own_whatever_a_rule_says(mode: str) -> None:
    b = GraphBuilder()
    graph = choose_host_operators(
        b.build(b.op("relu", b.op("linalg_inv", b.linear(b.input("x", 8, 8), 8)))), host_fallback=True
    )
    options = CutOptions(mode, find_chip("sn30"), 8, parse_rules(RULE, "pair.yaml"))
    plans = cut_sections(graph, options)
    assert [plan.operators for plan in plans] == [("linear_0",), ("linalg_inv_0",), ("relu_0",)]
    assert [plan.heuristic == "host" for plan in plans] == [False, True, False]
    assert plans[1].name == "host_linalg_inv_0"

"""Matching of fusion rules: the points of compiler reference 5.4 and the edge cases of 5.5."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit.pef.kernel import Ref
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.operators.vocabulary import words_of
from rdukit_compiler.patterns.match import Match, match_rules
from rdukit_compiler.patterns.syntax import Rule, parse_rules
from rdukit_compiler.patterns.topology import OperatorGroups, Topology
from support import shows
from support.graphs import GraphBuilder, graph_of

pytestmark = shows("o1")


def rules_of(pattern: str, priority: int = 1, name: str = "r") -> tuple[Rule, ...]:
    """A rule from entries separated by line ends: ``name: {…}``."""
    entries = "".join(f"    {line.strip()}\n" for line in pattern.strip().splitlines())
    return parse_rules(f"{name}:\n  priority: {priority}\n  pattern:\n{entries}", "test.yaml")


def fused(graph: ModelGraph, *rules: Rule, taken: Sequence[str] = ()) -> list[set[str]]:
    return [set(match.operators) for match in match_rules(graph, rules, frozenset(taken))]


PAIR = "a: {op_type: linear, child: b}\nb: {op_type: relu}"


def test_a_chain_matches_with_its_bindings_in_graph_order() -> None:
    (match,) = match_rules(graph_of("x -> linear -> relu"), rules_of(PAIR))
    assert match == Match("r", ("linear_0", "relu_0"), {"a": "linear_0", "b": "relu_0"}, None, {}, {})


def test_set_parameters_reach_the_operator_they_were_set_for() -> None:
    rule = rules_of("a: {op_type: linear, set m_shard_degree: 4, child: b}\nb: {op_type: relu}")
    (match,) = match_rules(graph_of("x -> linear -> relu"), rule)
    assert match.settings == {"linear_0": {"m_shard_degree": 4}}


def test_operators_may_have_readers_and_producers_outside_the_match() -> None:
    graph = graph_of("l = linear x; a = add l y; m = mul a a; t = tanh l")
    assert fused(graph, *rules_of("p: {op_type: linear, child: q}\nq: {op_type: add}")) == [{"l", "a"}]


def test_a_join_with_one_parent_outside_the_pattern_matches() -> None:
    graph = graph_of("u = tanh x; l = linear x; a = add u l")
    assert fused(graph, *rules_of("p: {op_type: linear, child: q}\nq: {op_type: add}")) == [{"l", "a"}]


def test_different_entries_bind_different_operators() -> None:
    pattern = "n: {op_type: layer_norm, children: [p, q]}\np: {op_type: linear}\nq: {op_type: linear}"
    assert fused(graph_of("n = layer_norm x; l = linear n"), *rules_of(pattern)) == []
    assert fused(graph_of("n = layer_norm x; l = linear n; k = linear n"), *rules_of(pattern)) == [{"n", "l", "k"}]


def test_an_operator_that_feeds_twice_into_one_reader_is_one_edge() -> None:
    graph = graph_of("t = tanh x; m = mul t t")
    assert fused(graph, *rules_of("a: {op_type: tanh, child: b}\nb: {op_type: mul}")) == [{"t", "m"}]


def test_any_name_of_an_op_type_list_matches() -> None:
    rule = rules_of("a: {op_type: linear, child: b}\nb: {op_type: [relu, gelu, silu]}")
    graph = graph_of("x -> linear -> gelu -> linear -> relu -> linear -> tanh")
    assert fused(graph, *rule) == [{"linear_0", "gelu_0"}, {"linear_1", "relu_0"}]


OPTIONAL = "a: {op_type: linear, child: c}\nc: {op_type: to, required: false, child: b}\nb: {op_type: relu}"


def test_an_absent_optional_entry_connects_its_parents_to_its_children() -> None:
    assert fused(graph_of("x -> linear -> relu"), *rules_of(OPTIONAL)) == [{"linear_0", "relu_0"}]
    assert fused(graph_of("x -> linear -> to -> relu"), *rules_of(OPTIONAL)) == [{"linear_0", "to_0", "relu_0"}]


def test_a_cast_between_two_pattern_operators_needs_an_optional_entry() -> None:
    assert fused(graph_of("x -> linear -> to -> relu"), *rules_of(PAIR)) == []


def test_an_absent_optional_entry_with_two_children_feeds_both_from_each_parent() -> None:
    pattern = """a: {op_type: linear, child: c}
        c: {op_type: to, required: false, children: [b, d]}
        b: {op_type: relu}
        d: {op_type: tanh}"""
    graph = graph_of("l = linear x; r = relu l; t = tanh l")
    assert fused(graph, *rules_of(pattern)) == [{"l", "r", "t"}]
    apart = graph_of("l = linear x; r = relu l; t = tanh x")
    assert fused(apart, *rules_of(pattern)) == []


def test_children_of_an_absent_optional_root_need_not_share_a_producer() -> None:
    pattern = "c: {op_type: to, required: false, children: [b, d]}\nb: {op_type: relu}\nd: {op_type: tanh}"
    assert fused(graph_of("r = relu x; t = tanh y"), *rules_of(pattern)) == [{"r", "t"}]


def test_of_two_optional_entries_in_a_row_either_may_be_alone() -> None:
    pattern = """a: {op_type: linear, child: c}
        c: {op_type: to, required: false, child: d}
        d: {op_type: dropout, required: false, child: b}
        b: {op_type: relu}"""
    for middle in ("", "to -> ", "dropout -> ", "to -> dropout -> "):
        graph = graph_of(f"x -> linear -> {middle}relu")
        assert fused(graph, *rules_of(pattern)) == [{o.name for o in graph.operators}]
    assert fused(graph_of("x -> linear -> dropout -> to -> relu"), *rules_of(pattern)) == []


def test_an_absent_optional_leaf_disappears_with_its_edges() -> None:
    rule = rules_of("a: {op_type: linear, child: b}\nb: {op_type: add, required: false}")
    assert fused(graph_of("x -> linear -> tanh"), *rule) == [{"linear_0"}]
    assert fused(graph_of("x -> linear -> add"), *rule) == [{"linear_0", "add_0"}]


ALTERNATION = """a: {op_type: matmul, child: m}
    m: {match_first_option: [p, q]}
    p: {op_type: reshape, child: s}
    s: {op_type: relu}
    q: {op_type: view}"""


def test_the_first_alternative_that_matches_is_chosen_and_the_rest_dropped() -> None:
    assert fused(graph_of("x -> matmul -> view"), *rules_of(ALTERNATION)) == [{"matmul_0", "view_0"}]
    assert fused(graph_of("x -> matmul -> reshape -> relu"), *rules_of(ALTERNATION)) == [
        {"matmul_0", "reshape_0", "relu_0"}
    ]
    both = graph_of("m = matmul x; v = view m; r = reshape m; s = relu r")
    assert fused(both, *rules_of(ALTERNATION)) == [{"m", "r", "s"}]
    assert fused(graph_of("x -> matmul -> reshape -> tanh"), *rules_of(ALTERNATION)) == []


def test_an_alternative_matches_under_the_bridging_of_an_optional_chain() -> None:
    pattern = """a: {op_type: matmul, child: c}
        c: {op_type: to, required: false, child: m}
        m: {match_first_option: [p, q]}
        p: {op_type: reshape, child: z}
        q: {op_type: view, required: false, child: z}
        z: {op_type: relu}"""
    for middle in ("reshape", "to -> reshape", "view", "to -> view", "to"):
        graph = graph_of(f"x -> matmul -> {middle} -> relu")
        assert fused(graph, *rules_of(pattern)) == [{o.name for o in graph.operators}], middle


def test_an_entry_that_only_feeds_a_rejected_alternative_goes_with_it() -> None:
    pattern = ALTERNATION + "\n    side: {op_type: tanh, child: p}"
    assert fused(graph_of("x -> matmul -> view"), *rules_of(pattern)) == [{"matmul_0", "view_0"}]


CONTEXT = "n: {op_type: mul, included: false, child: a}\na: {op_type: linear}"


def test_a_context_entry_must_be_there_is_not_fused_and_may_be_matched_again() -> None:
    assert fused(graph_of("x -> tanh -> linear"), *rules_of(CONTEXT)) == []
    graph = graph_of("m = mul x; l = linear m; k = linear m")
    assert fused(graph, *rules_of(CONTEXT)) == [{"l"}, {"k"}]


def test_a_context_entry_may_belong_to_another_rules_match() -> None:
    first = rules_of("a: {op_type: mul}", priority=5, name="first")
    graph = graph_of("m = mul x; l = linear m")
    assert fused(graph, *rules_of(CONTEXT), *first) == [{"m"}, {"l"}]


def test_a_context_sink_serves_each_of_its_producers() -> None:
    rule = rules_of("a: {op_type: linear, child: s}\ns: {op_type: add, included: false}")
    assert fused(graph_of("l = linear x; k = linear y; s = add l k"), *rule) == [{"l"}, {"k"}]


def test_higher_priority_wins_and_equal_priority_goes_by_order() -> None:
    graph = graph_of("x -> linear -> relu")
    pair, lone = rules_of(PAIR, 2, "pair"), rules_of("a: {op_type: linear}", 1, "lone")
    assert [m.rule for m in match_rules(graph, (*lone, *pair))] == ["pair"]
    even = rules_of("a: {op_type: linear}", 2, "even")
    assert [m.rule for m in match_rules(graph, (*even, *pair))] == ["even"]
    assert [m.rule for m in match_rules(graph, (*pair, *even))] == ["pair"]


def test_what_a_failed_rule_leaves_goes_to_one_of_lower_priority() -> None:
    graph = graph_of("x -> linear -> add -> layer_norm -> linear -> add")
    full = rules_of("a: {op_type: linear, child: b}\nb: {op_type: add, child: c}\nc: {op_type: layer_norm}", 4, "full")
    lone = rules_of("a: {op_type: linear}", 0, "lone")
    found = match_rules(graph, (*full, *lone))
    assert [(m.rule, m.operators) for m in found] == [
        ("full", ("linear_0", "add_0", "layer_norm_0")),
        ("lone", ("linear_1",)),
    ]


def test_taken_operators_are_not_fused() -> None:
    graph = graph_of("x -> linear -> relu -> linear -> relu")
    assert fused(graph, *rules_of(PAIR), taken=["relu_0"]) == [{"linear_1", "relu_1"}]


def test_the_nearest_producer_is_tried_first() -> None:
    graph = graph_of("q = transpose x; k = transpose y; s = matmul q k")
    assert fused(graph, *rules_of("t: {op_type: transpose, child: s}\ns: {op_type: matmul}")) == [{"k", "s"}]


def test_symmetric_branches_match_as_a_set() -> None:
    entries = "\n".join(f"{p}: {{op_type: linear}}" for p in "qkv")
    graph = graph_of("n = layer_norm x; c = linear n; a = linear n; b = linear n")
    assert fused(graph, *rules_of(f"n: {{op_type: layer_norm, children: [q, k, v]}}\n{entries}")) == [set("ncab")]


def test_a_group_that_a_path_leaves_and_re_enters_is_not_fused() -> None:
    graph = graph_of("l = linear x; t = tanh l; a = add l t")
    assert fused(graph, *rules_of("p: {op_type: linear, child: q}\nq: {op_type: add}")) == []


def test_after_a_candidate_that_is_not_convex_the_next_one_is_tried() -> None:
    graph = graph_of("l = linear x; t = tanh l; k = linear y; a = add k t l")
    assert fused(graph, *rules_of("p: {op_type: linear, child: q}\nq: {op_type: add}")) == [{"k", "a"}]


def test_two_convex_groups_that_would_wait_for_each_other_are_not_both_fused() -> None:
    graph = graph_of("a = relu x; b = tanh y; c = mul a; d = mul b; e = add c b; f = sub d a")
    rule = rules_of("p: {op_type: relu, child: r}\nr: {op_type: sub}", 2, "one")
    other = rules_of("p: {op_type: tanh, child: r}\nr: {op_type: add}", 1, "two")
    assert [m.rule for m in match_rules(graph, (*rule, *other))] == ["one"]


def test_given_groups_count_when_circles_are_looked_for() -> None:
    graph = graph_of("a = relu x; b = tanh y; e = add a b; f = sub b a")
    other = rules_of("p: {op_type: tanh, child: r}\nr: {op_type: add}")
    assert match_rules(graph, other) != ()
    assert match_rules(graph, other, groups=[("a", "f")]) == ()


def test_given_groups_that_cannot_be_one_section_are_refused() -> None:
    graph = graph_of("a = relu x; b = tanh a; c = add a b")
    with pytest.raises(ValueError, match="cannot be one section"):
        match_rules(graph, (), groups=[("a", "c")])
    with pytest.raises(ValueError, match="overlap"):
        match_rules(graph, (), groups=[("a", "b"), ("b", "c")])


def test_a_rule_matches_once_per_identical_layer() -> None:
    graph = graph_of("x" + " -> linear -> relu" * 32)
    assert len(match_rules(graph, rules_of(PAIR))) == 32


def test_a_rule_without_a_match_is_no_error() -> None:
    assert match_rules(graph_of("x -> tanh"), rules_of(PAIR)) == ()


def test_a_pattern_without_joins_gives_up_rather_than_hang() -> None:
    graph = graph_of(";".join(f"r{i} = relu x; t{i} = tanh r{i}; u{i} = sub r{i} t{i}" for i in range(14)))
    loose = "\n".join(f"e{i}: {{op_type: sub}}\nf{i}: {{op_type: relu}}" for i in range(6))
    match_rules(graph, rules_of(loose))


@pytest.mark.parametrize(
    ("op_type", "args", "word"),
    [
        ("slice", (0, 1), "getitem"),
        ("select", (0, 1), "getitem"),
        ("_to_copy", (), "to"),
        ("permute", ([0, 2, 1],), "transpose"),
        ("add_", (), "add"),
        ("true_divide", (), "div"),
        ("type_", (), "type_"),
        ("native_layer_norm", (), "layer_norm"),
    ],
)
def test_an_operator_answers_to_its_aliases(op_type: str, args: tuple[object, ...], word: str) -> None:
    build = GraphBuilder()
    build.op(op_type, build.input("x"), *args)  # type: ignore[arg-type]
    assert word in words_of(build.build().operators[0])


def test_a_permute_of_three_dimensions_is_no_transpose() -> None:
    build = GraphBuilder()
    build.op("permute", build.input("x"), [1, 2, 0])
    assert words_of(build.build().operators[0]) == {"permute"}


def test_one_minus_x_is_also_rsub() -> None:
    build = GraphBuilder()
    x = build.input("x")
    build.op("sub", 1, x)
    build.op("sub", x, 1)
    first, second = build.build().operators
    assert "rsub" in words_of(first)
    assert "rsub" not in words_of(second)


RANDOM_RULES = (
    *rules_of("a: {op_type: add, child: b}\nb: {op_type: mul}", 3, "pair"),
    *rules_of("a: {op_type: mul, children: [b, c]}\nb: {op_type: add}\nc: {op_type: add}", 4, "fork"),
    *rules_of("a: {op_type: relu, child: c}\nb: {op_type: relu, child: c}\nc: {op_type: add}", 5, "join"),
    *rules_of(OPTIONAL.replace("linear", "mul"), 2, "optional"),
    *rules_of("o: {op_type: to, required: false, children: [a, b]}\na: {op_type: relu}\nb: {op_type: mul}", 1, "loose"),
    *rules_of("a: {op_type: add, included: false, child: b}\nb: {op_type: relu}", 1, "context"),
)


@st.composite
def random_graphs(draw: st.DrawFn) -> ModelGraph:
    build = GraphBuilder()
    names = [build.input("x"), build.input("y")]
    for index in range(draw(st.integers(1, 14))):
        op_type = draw(st.sampled_from(["add", "mul", "relu", "to"]))
        count = 2 if op_type in {"add", "mul"} else 1
        near = st.sampled_from(names[-5:])
        names.append(build.op(op_type, *(Ref(draw(near)) for _ in range(count)), name=f"o{index}"))
    return build.build()


@settings(max_examples=150, deadline=None)
@given(random_graphs())
def test_matches_never_overlap_are_convex_together_and_come_out_the_same_again(graph: ModelGraph) -> None:
    matches = match_rules(graph, RANDOM_RULES)
    assert matches == match_rules(graph, RANDOM_RULES)
    fused_names = [name for match in matches for name in match.operators]
    assert len(fused_names) == len(set(fused_names))
    topology = Topology(graph)
    groups = OperatorGroups(topology)
    for match in matches:
        positions = [topology.position[name] for name in match.operators]
        assert positions == sorted(positions)
        assert groups.may_join(positions)
        groups.join(positions)
    assert len(groups.in_order()) == len(groups.members)

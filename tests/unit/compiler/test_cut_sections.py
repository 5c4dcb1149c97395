"""Section cutting in the three modes."""

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit.errors import CompileError, DoesNotFit
from rdukit.hardware import CHIPS, ChipSpec
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.operators.vocabulary import is_trivial
from rdukit_compiler.passes.cut_sections import CutOptions, SectionPlan, cut_sections
from rdukit_compiler.patterns.syntax import Rule, parse_rules
from rdukit_compiler.rules import load_default_rules
from support import shows
from support.graphs import GraphBuilder, gpt_graph, graph_of, llama_graph

pytestmark = shows("o0", "o1", "o3")

SN30 = CHIPS["sn30"]


def cut(
    graph: ModelGraph,
    mode: str,
    rules: tuple[Rule, ...] | None = None,
    *,
    chip: ChipSpec = SN30,
    tiles: int = 4,
    inference: bool = False,
) -> tuple[SectionPlan, ...]:
    chosen = load_default_rules() if rules is None else rules
    plans = cut_sections(graph, CutOptions(mode, chip, tiles, chosen, inference))
    check_plans(graph, plans)
    return plans


def check_plans(graph: ModelGraph, plans: Sequence[SectionPlan]) -> None:
    """A partition, each plan in graph order, and every value made by a plan that runs no later than its readers."""
    order = [operator.name for operator in graph.operators]
    assert sorted(name for plan in plans for name in plan.operators) == sorted(order)
    assert len({plan.name for plan in plans}) == len(plans)
    section = {name: index for index, plan in enumerate(plans) for name in plan.operators}
    for plan in plans:
        assert list(plan.operators) == sorted(plan.operators, key=order.index)
        assert plan.why
    producers = graph.producers()
    for operator in graph.operators:
        for name in operator.inputs:
            if name in producers:
                assert section[producers[name].name] <= section[operator.name]


def members(plans: Sequence[SectionPlan]) -> list[set[str]]:
    return [set(plan.operators) for plan in plans]


def residual_network() -> ModelGraph:
    """The feed-forward classifier of the vendor's slides: three linears, two norms, tanh, sigmoid, cross entropy."""
    build = GraphBuilder()
    x, labels = build.input("image", 32, 784), build.input("label", 32, dtype="int64")
    first = build.op("tanh", build.op("layer_norm", build.linear(x, 256, "fc1"), name="norm1"), name="tanh")
    second = build.op("sigmoid", build.op("layer_norm", build.linear(first, 256, "fc2"), name="norm2"), name="sigmoid")
    out = build.linear(build.op("add", first, second, name="residual"), 10, "fc3")
    loss = build.op("cross_entropy_loss", out, labels, shape=(), name="loss")
    return build.build(loss, out)


def test_o0_gives_each_operator_a_section() -> None:
    plans = cut(graph_of("x -> linear -> relu -> linear"), "o0")
    assert [plan.operators for plan in plans] == [("linear_0",), ("relu_0",), ("linear_1",)]
    assert {plan.heuristic for plan in plans} == {"default"}
    assert {plan.rule for plan in plans} == {None}


def test_views_casts_and_constants_ride_with_the_operator_that_reads_them() -> None:
    graph = graph_of("l = linear x; v = view l; t = to v; c = full; a = add t c")
    assert members(cut(graph, "o0")) == [{"l"}, {"v", "t", "c", "a"}]


def test_a_view_that_several_sections_read_goes_with_its_producer() -> None:
    graph = graph_of("l = linear x; v = view l; t = transpose v; a = relu t; b = tanh v")
    assert members(cut(graph, "o0")) == [{"l", "v"}, {"t", "a"}, {"b"}]


def test_a_constant_that_several_sections_read_goes_with_the_first() -> None:
    graph = graph_of("c = full; r = relu x; a = add r c; b = mul a c")
    assert members(cut(graph, "o0")) == [{"r"}, {"c", "a"}, {"b"}]


def test_what_is_computed_from_constants_alone_rides_too() -> None:
    graph = graph_of("o = ones; t = tril o; m = eq t; r = relu x; a = add r m")
    assert members(cut(graph, "o0")) == [{"r"}, {"o", "t", "m", "a"}]


def test_a_view_of_an_input_that_several_sections_read_goes_with_the_first() -> None:
    graph = graph_of("v = view x; w = view v; b = tanh w; a = relu w; s = add a b")
    assert members(cut(graph, "o0")) == [{"v", "w", "b"}, {"a"}, {"s"}]


def test_a_view_that_only_leaves_the_graph_goes_with_its_producer() -> None:
    assert members(cut(graph_of("x -> linear -> view"), "o0")) == [{"linear_0", "view_0"}]


def test_a_graph_of_views_alone_is_cut() -> None:
    assert members(cut(graph_of("x -> view -> transpose"), "o0")) == [{"view_0", "transpose_0"}]


def test_o1_makes_a_section_of_each_match_and_says_why() -> None:
    plans = cut(gpt_graph(2), "o1")
    assert [plan.rule for plan in plans] == [
        None,
        *["gpt_qkv_split", "mha_explicit", "gpt_proj_norm", "gpt_ffn"] * 2,
        "lone_gemm",
    ]
    by_name = {plan.name: plan for plan in plans}
    assert by_name["gpt_ffn"].heuristic == "SAFE_GEMM"
    assert by_name["gpt_ffn"].why == "rule gpt_ffn matched 4 operators"
    assert by_name["gpt_ffn_1"].operators[0] == "h1.fc1"


def test_equal_layers_get_plans_of_equal_shape() -> None:
    for graph in (gpt_graph(3), llama_graph(3)):
        for mode in ("o0", "o1"):
            shapes: dict[str, list[object]] = {}
            types = {operator.name: operator.op_type for operator in graph.operators}
            for plan in cut(graph, mode):
                layer = next((n.split(".")[0] for n in plan.operators if n[0] in "hl" and n[1].isdigit()), "")
                shape = (plan.rule, plan.heuristic, tuple(types[name] for name in plan.operators))
                shapes.setdefault(layer, []).append(shape)
            layers = [shape for layer, shape in shapes.items() if layer]
            assert len(layers) == 3
            assert all(shape == layers[0] for shape in layers)


def test_the_slides_network_is_one_section_in_o3() -> None:
    (plan,) = cut(residual_network(), "o3")
    assert plan.why == "the whole graph fits 4 tiles of sn30"
    assert plan.decisions["weights"] == "resident"


def test_the_slides_network_is_fused_by_the_default_rules_in_o1() -> None:
    plans = cut(residual_network(), "o1")
    assert [(plan.rule, plan.operators) for plan in plans] == [
        ("dense_layer", ("fc1", "norm1", "tanh")),
        ("dense_layer", ("fc2", "norm2", "sigmoid", "residual")),
        ("lone_gemm", ("fc3",)),
        (None, ("loss",)),
    ]
    assert "backward starts" in plans[-1].why


def test_rules_count_in_o1_only() -> None:
    assert {plan.rule for plan in cut(gpt_graph(1), "o0")} == {None}
    assert {plan.rule for plan in cut(gpt_graph(1), "o3")} == {None}


def test_o1_without_rules_is_cut_like_o0() -> None:
    assert members(cut(gpt_graph(1), "o1", ())) == members(cut(gpt_graph(1), "o0", ()))


def test_o3_cuts_a_large_model_about_as_often_as_real_compiles_do() -> None:
    # Published: 3.8 to 5 sections a layer, forward and backward together, GPT-2 on half an SN30.
    for width, heads, low, high in ((480, 8, 1.0, 2.5), (1280, 20, 2.5, 5.5), (1600, 25, 3.0, 6.0)):
        plans = cut(gpt_graph(12, width, heads, 16, 1024, 50257), "o3")
        assert low <= 2 * len(plans) / 12 <= high, width


def test_fewer_tiles_and_training_mean_more_sections() -> None:
    graph = gpt_graph(4, 1024, 16, 4, 1024, 50257)
    assert len(cut(graph, "o3", tiles=1)) > len(cut(graph, "o3", tiles=8))
    assert len(cut(graph, "o3", inference=True)) < len(cut(graph, "o3"))


def test_a_group_that_is_too_large_is_cut_and_says_so() -> None:
    graph = gpt_graph(1, 4096, 32, 1, 128, 1000)
    ffn = [plan for plan in cut(graph, "o1", tiles=1) if plan.rule == "gpt_ffn"]
    assert len(ffn) == 2
    assert "SAFE_GEMM cut it into 2 sections, of which this is number 1" in ffn[0].why


@pytest.mark.parametrize(
    ("heuristic", "reason"), [("NOT_THERE", "unknown heuristic 'NOT_THERE'; expected "), ("MHA", "in a chain")]
)
def test_a_heuristic_that_does_not_apply_falls_back_to_default_with_a_warning(
    heuristic: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = (
        f"pair: {{priority: 1, heuristic: {heuristic}, pattern: "
        "{a: {op_type: linear, child: b}, b: {op_type: relu}}}"
    )
    with caplog.at_level(logging.WARNING):
        (plan,) = cut(graph_of("x -> linear -> relu"), "o1", parse_rules(text, "mine.yaml"))
    assert (plan.rule, plan.heuristic, len(plan.operators)) == ("pair", "default", 2)
    assert reason in plan.why
    assert "falls back to default" in caplog.text


def test_set_parameters_reach_the_decisions() -> None:
    text = "p: {priority: 1, heuristic: SAFE_GEMM, pattern: {a: {op_type: linear, set m_shard_degree: 4}}}"
    build = GraphBuilder()
    build.linear(build.input("x", 64, 256), 512, "fc")
    (plan,) = cut(build.build(), "o1", parse_rules(text, "mine.yaml"))
    assert plan.decisions["gemms"]["fc"]["m_shard_degree"] == 4  # type: ignore[index]


def test_an_unknown_heuristic_parameter_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    text = "p: {priority: 1, heuristic: {name: SAFE_GEMM, speed: 9}, pattern: {a: {op_type: linear}}}"
    with caplog.at_level(logging.WARNING):
        (plan,) = cut(graph_of("x -> linear"), "o1", parse_rules(text, "mine.yaml"))
    assert plan.heuristic == "SAFE_GEMM"
    assert "parameter=speed" in caplog.text


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_an_operator_that_exceeds_the_chip_is_refused_with_the_numbers(mode: str) -> None:
    build = GraphBuilder()
    build.op("softmax", build.input("x", 1, 10**9), name="huge")
    with pytest.raises(DoesNotFit, match=r"'huge' \(softmax\) needs .* SRAM bytes of") as caught:
        cut(build.build(), mode, tiles=1)
    assert caught.value.detail["operator"] == "huge"


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(CompileError, match="expected o0, o1, o3"):
        cut(graph_of("x -> relu"), "o2")


def test_an_empty_graph_has_no_sections() -> None:
    graph = GraphBuilder().build()
    assert [cut(graph, mode) for mode in ("o0", "o1", "o3")] == [(), (), ()]


def test_the_same_graph_is_cut_the_same_way_again() -> None:
    for mode in ("o0", "o1", "o3"):
        assert cut(llama_graph(2), mode) == cut(llama_graph(2), mode)


@st.composite
def random_graphs(draw: st.DrawFn) -> ModelGraph:
    build = GraphBuilder()
    names = [build.input("x", 4, 8), build.input("y", 4, 8)]
    for index in range(draw(st.integers(1, 16))):
        op_type = draw(st.sampled_from(["linear", "add", "relu", "view", "to", "full", "transpose", "layer_norm"]))
        count = {"add": 2, "full": 0}.get(op_type, 1)
        args = [draw(st.sampled_from(names[-6:])) for _ in range(count)]
        names.append(build.op(op_type, *args, shape=(4, 8), name=f"o{index}"))
    return build.build()


@settings(max_examples=120, deadline=None)
@given(random_graphs(), st.sampled_from(["o0", "o1", "o3"]))
def test_plans_of_random_graphs_are_a_partition_that_can_be_run(graph: ModelGraph, mode: str) -> None:
    plans = cut(graph, mode)
    if mode == "o0":
        riders = {name for name, value in constants_of(graph).items() if value}
        riders |= {operator.name for operator in graph.operators if is_trivial(operator)}
        for plan in plans:
            assert sum(name not in riders for name in plan.operators) <= 1


def constants_of(graph: ModelGraph) -> dict[str, bool]:
    """Operator name, which is its value's name here, -> whether it depends on no input."""
    found: dict[str, bool] = {}
    for operator in graph.operators:
        found[operator.name] = all(found.get(name, False) for name in operator.inputs)
    return found

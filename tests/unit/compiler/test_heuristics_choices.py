"""What heuristics take, refuse and decide."""

import json
from dataclasses import replace

import pytest

from rdukit.hardware import CHIPS
from rdukit_compiler.heuristics import DEFAULT, HeuristicRequest, find_heuristic, heuristic, heuristic_names
from rdukit_compiler.heuristics.capacity import pack, section_limits
from rdukit_compiler.heuristics.registry import Heuristic
from rdukit_compiler.heuristics.sharding import Gemm, choose_sharding, gemm_of, utilisation
from rdukit_compiler.ir import ModelGraph
from support import shows
from support.graphs import GraphBuilder, gpt_graph, graph_of, llama_graph

pytestmark = shows("o1", "o3")

SN30 = CHIPS["sn30"]


def found(name: str) -> Heuristic:
    strategy = find_heuristic(name)
    assert strategy is not None
    return strategy


def request(graph: ModelGraph, **kwargs: object) -> HeuristicRequest:
    return HeuristicRequest(graph, graph.operators, SN30, 4, **kwargs)  # type: ignore[arg-type]


def dense(width: int, rows: int = 32, layers: int = 1) -> ModelGraph:
    build = GraphBuilder()
    value = build.input("x", rows, width)
    for _ in range(layers):
        value = build.linear(value, width)
    return build.build()


def test_all_heuristics_are_registered_once() -> None:
    assert set(heuristic_names()) == {DEFAULT, "GPT2_QKV", "MHA", "SAFE_GEMM", "SAFE_INFERENCE_GEMM", "SDPA"}
    with pytest.raises(ValueError, match="two heuristics"):
        heuristic("SAFE_GEMM")(object)


@pytest.mark.parametrize(
    ("name", "text", "inference", "reason"),
    [
        ("SAFE_GEMM", "x -> relu -> tanh", False, "no linear"),
        ("SAFE_INFERENCE_GEMM", "x -> relu", True, "no linear"),
        ("SAFE_INFERENCE_GEMM", "x -> matmul", False, "for inference"),
        ("GPT2_QKV", "x -> relu -> matmul", False, "norm first"),
        ("GPT2_QKV", "x -> layer_norm -> relu", False, "has 0"),
        ("MHA", "x -> matmul -> softmax", False, "in a chain"),
        ("MHA", "x -> softmax -> matmul -> matmul", False, "in a chain"),
        ("SDPA", "x -> matmul", False, "no scaled_dot_product_attention"),
    ],
)
def test_a_heuristic_refuses_with_its_reason(name: str, text: str, inference: bool, reason: str) -> None:
    refused = found(name).refuse(request(graph_of(text), inference=inference))
    assert refused is not None
    assert reason in refused


@pytest.mark.parametrize(
    ("name", "text", "inference"),
    [
        (DEFAULT, "x -> relu", False),
        ("SAFE_GEMM", "x -> matmul -> relu", False),
        ("SAFE_INFERENCE_GEMM", "x -> matmul", True),
        ("GPT2_QKV", "x -> layer_norm -> matmul", False),
        ("MHA", "x -> matmul -> softmax -> matmul", False),
        ("SDPA", "x -> scaled_dot_product_attention", False),
    ],
)
def test_a_heuristic_takes_what_meets_its_requirements(name: str, text: str, inference: bool) -> None:
    assert found(name).refuse(request(graph_of(text), inference=inference)) is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"m_shard_degree": 0}, "from 1 up"),
        ({"k_shard_degree": "big"}, "from 1 up"),
        ({"n_shard_degree": True}, "from 1 up"),
        ({"m_shard_degree": 32, "k_shard_degree": 32}, "1024 PCUs, but the section has 512"),
    ],
)
def test_an_illegal_set_value_is_refused(values: dict[str, object], reason: str) -> None:
    refused = found("SAFE_GEMM").refuse(request(dense(64), settings={"linear_0": values}))
    assert refused is not None
    assert reason in refused


def test_set_degrees_are_kept_and_the_rest_is_chosen() -> None:
    strategy = found("SAFE_GEMM")
    asked = request(dense(1024, 4096), settings={"linear_0": {"m_shard_degree": 4, "k_shard_degree": 2}})
    decisions = strategy.decide(asked)
    gemm = decisions["gemms"]["linear_0"]  # type: ignore[index]
    assert (gemm["m_shard_degree"], gemm["k_shard_degree"]) == (4, 2)
    assert gemm["n_shard_degree"] > 1


def test_safe_gemm_leaves_a_fifth_of_the_units_unused() -> None:
    assert found("SAFE_GEMM").decide(request(dense(64)))["pcu_limit"] == 512
    assert found(DEFAULT).decide(request(dense(64)))["pcu_limit"] == 640


def test_safe_gemm_cuts_after_three_gemms() -> None:
    parts = found("SAFE_GEMM").split(request(dense(64, layers=7)))
    assert [len(part) for part in parts] == [3, 3, 1]


def test_weights_above_half_of_the_sram_are_streamed() -> None:
    small = found("SAFE_GEMM").decide(request(dense(512)))
    large = found("SAFE_GEMM").decide(request(dense(8192)))
    assert (small["weights"], large["weights"]) == ("resident", "streamed")
    assert found("SAFE_INFERENCE_GEMM").decide(request(dense(64), inference=True))["weights"] == "streamed"


def test_degrees_keep_utilisation_at_seventy_percent_and_fit_the_units() -> None:
    for gemm in (Gemm(32, 784, 512), Gemm(16384, 1600, 6400), Gemm(1, 4096, 11008), Gemm(7, 13, 33)):
        choice = choose_sharding(gemm, 100, {})
        degrees = [int(choice[f"{d}_shard_degree"]) for d in "mnk"]
        assert degrees[0] * degrees[1] * degrees[2] <= 100
        m, n, k = degrees
        assert utilisation(gemm, m, n, k) >= min(0.70, utilisation(gemm, 1, 1, 1))


def test_a_narrow_gemm_is_not_sharded_over_its_columns() -> None:
    assert choose_sharding(Gemm(32, 784, 10), 512, {})["n_shard_degree"] == 1


def test_gemm_sizes_come_from_the_operators_shapes() -> None:
    build = GraphBuilder()
    x = build.input("x", 2, 3, 8)
    build.linear(x, 16)
    build.op("addmm", build.parameter("b", 16), build.input("y", 6, 8), build.parameter("w", 8, 16), shape=(6, 16))
    build.op("conv2d", build.input("i", 2, 3, 8, 8), build.parameter("k", 6, 3, 5, 5), shape=(2, 6, 4, 4))
    heads = build.input("h", 2, 4, 16, 8)
    build.op("scaled_dot_product_attention", heads, heads, heads)
    graph = build.build()
    assert [gemm_of(graph, operator) for operator in graph.operators] == [
        Gemm(6, 8, 16),
        Gemm(6, 8, 16),
        Gemm(32, 75, 6),
        Gemm(128, 8, 16),
    ]


def test_mha_cuts_at_the_softmax_when_two_sections_are_asked_for() -> None:
    graph = graph_of("x -> matmul -> div -> softmax -> matmul")
    one = found("MHA").split(request(graph))
    two = found("MHA").split(request(graph, parameters={"fwd_num_sections": 2}))
    assert [[o.op_type for o in part] for part in two] == [["matmul", "div"], ["softmax", "matmul"]]
    assert len(one) == 1


def test_attention_shards_over_heads() -> None:
    graph = llama_graph(1, heads=4)
    attention = tuple(o for o in graph.operators if o.name == "l0.sdpa")
    decisions = found("SDPA").decide(HeuristicRequest(graph, attention, SN30, 4, parameters={"fwd_num_sections": 1}))
    assert (decisions["head_shard_degree"], decisions["fwd_num_sections"]) == (4, 1)


@pytest.mark.parametrize("name", sorted(heuristic_names()))
def test_decisions_are_ready_for_json(name: str) -> None:
    decisions = found(name).decide(request(gpt_graph(1)))
    assert json.loads(json.dumps(decisions))["stream_iterations"] >= 1


def test_packing_cuts_where_the_least_crosses() -> None:
    build = GraphBuilder()
    value = build.input("x", 64, 4096)
    for index in range(8):
        value = build.op("relu", value, name=f"wide_{index}")
        if index == 6:
            value = build.op("mean", value, shape=(64, 1), name="narrow")
            value = build.op("expand", value, shape=(64, 4096), name="again")
    graph = build.build()
    limits = replace(section_limits(CHIPS["sn10"], 1, 1.0, inference=True), pcus=8)
    first, second = pack(graph, graph.operators, limits)
    assert first[-1].name == "narrow"
    assert second[0].name == "again"

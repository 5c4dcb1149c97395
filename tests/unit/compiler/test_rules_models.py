"""The documented example rules and our default ones on whole decoders."""

from collections import Counter

import pytest

from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.patterns.match import Match, match_rules
from rdukit_compiler.patterns.syntax import parse_rules
from rdukit_compiler.rules import load_default_rules
from support import shows
from support.graphs import gpt_graph, graph_of, llama_graph

pytestmark = shows("o1")

SELF_ATTENTION_PROJECTION = """
llama2_self_attn_proj:
  priority: 4
  heuristic: SAFE_GEMM
  pattern:
    linear_48: {op_type: linear, child: add_49, set m_shard_degree: 4, set k_shard_degree: 2}
    add_49: {op_type: add, children: [rms_pow_50, rms_mul_54]}
    rms_pow_50: {op_type: pow, child: rms_mean_51}
    rms_mean_51: {op_type: mean, child: rms_add_52}
    rms_add_52: {op_type: add, child: rms_rsqr_53}
    rms_rsqr_53: {op_type: rsqrt, child: rms_mul_54}
    rms_mul_54: {op_type: mul, child: rms_mul_56}
    rms_mul_56: {op_type: mul}
"""

EXAMPLES = """
mlp_block:
  priority: 2
  heuristic: SAFE_GEMM
  pattern:
    in_cast: {op_type: to, required: false, child: fc1}
    fc1:     {op_type: linear, child: act}
    act:     {op_type: [relu, gelu, silu], child: drop}
    drop:    {op_type: dropout, required: false, child: fc2}
    fc2:     {op_type: linear}
lone_gemm:
  priority: 0
  heuristic: {name: SAFE_GEMM, tp_dim: Auto}
  pattern:
    only: {op_type: linear}
gpt_qkv_split:
  priority: 6
  heuristic: GPT2_QKV
  pattern:
    norm: {op_type: layer_norm, children: [to_q, to_k, to_v]}
    to_q: {op_type: linear}
    to_k: {op_type: linear}
    to_v: {op_type: linear}
gpt_qkv_packed:
  priority: 5
  heuristic: GPT2_QKV
  pattern:
    norm:   {op_type: layer_norm, child: packed}
    packed: {op_type: [addmm, linear], child: cut}
    cut:    {op_type: split}
mha_explicit:
  priority: 3
  heuristic: {name: MHA, fwd_num_sections: 1}
  pattern:
    k_turn:     {op_type: transpose, child: scores}
    scores:     {op_type: matmul, child: scale}
    scale:      {op_type: [div, mul], child: mask}
    mask:       {op_type: [masked_fill, triufill, add], required: false, child: prob}
    prob:       {op_type: softmax, child: prob_cast}
    prob_cast:  {op_type: [to, type_], required: false, child: prob_drop}
    prob_drop:  {op_type: dropout, required: false, child: mix}
    mix:        {op_type: matmul, child: heads_back}
    heads_back: {op_type: transpose, child: merge}
    merge:      {match_first_option: [merge_reshape, merge_view]}
    merge_reshape: {op_type: reshape}
    merge_view:    {op_type: view}
sdpa_any:
  priority: 90
  heuristic: SDPA
  pattern:
    attn: {op_type: scaled_dot_product_attention}
swiglu:
  priority: 7
  heuristic: {name: SAFE_GEMM, tp_dim: Auto}
  pattern:
    norm_out: {op_type: mul, included: false, children: [gate, up]}
    gate:     {op_type: linear, child: gate_act}
    gate_act: {op_type: [silu, gelu], child: prod}
    up:       {op_type: linear, child: prod}
    prod:     {op_type: mul, child: down}
    down:     {op_type: linear, child: resid2}
    resid2:   {op_type: add}
"""


def sizes(matches: tuple[Match, ...]) -> Counter[tuple[str, int]]:
    return Counter((match.rule, len(match.operators)) for match in matches)


def examples(graph: ModelGraph) -> Counter[tuple[str, int]]:
    return sizes(match_rules(graph, parse_rules(EXAMPLES + SELF_ATTENTION_PROJECTION, "examples.yaml")))


def test_the_published_projection_rule_matches_once_per_layer_with_its_shard_degrees() -> None:
    graph = llama_graph(3)
    matches = match_rules(graph, parse_rules(SELF_ATTENTION_PROJECTION, "published.yaml"))
    # A layer's down projection and residual add are followed by a norm too: the next layer's, or the last one.
    assert [match.bindings["linear_48"] for match in matches] == [
        name for i in range(3) for name in (f"l{i}.o", f"l{i}.down")
    ]
    assert matches[0].operators == (
        "l0.o", "l0.resid1", "l0.n2.pow", "l0.n2.mean", "l0.n2.eps", "l0.n2.rsqrt", "l0.n2.scaled", "l0.n2.gamma",
    )  # fmt: skip
    assert matches[0].settings == {"l0.o": {"m_shard_degree": 4, "k_shard_degree": 2}}
    assert matches[0].heuristic == "SAFE_GEMM"


def test_the_example_rules_group_a_gpt_as_documented() -> None:
    assert examples(gpt_graph(2)) == {
        ("gpt_qkv_split", 4): 2,
        ("mha_explicit", 7): 2,
        ("mlp_block", 3): 2,
        ("lone_gemm", 1): 3,
    }
    assert examples(gpt_graph(2, packed=True))["gpt_qkv_packed", 3] == 2


def test_the_example_rules_group_a_llama_as_documented() -> None:
    expected = {("swiglu", 6): 2, ("llama2_self_attn_proj", 8): 2, ("sdpa_any", 1): 2, ("lone_gemm", 1): 7}
    assert examples(llama_graph(2)) == expected
    written_out = examples(llama_graph(2, sdpa=False))
    assert written_out["mha_explicit", 7] == 2
    assert written_out["swiglu", 6] == 2


def test_the_default_rules_group_a_gpt() -> None:
    assert sizes(match_rules(gpt_graph(2), load_default_rules())) == {
        ("gpt_ffn", 4): 2,
        ("gpt_qkv_split", 4): 2,
        ("gpt_proj_norm", 3): 2,
        ("mha_explicit", 7): 2,
        ("lone_gemm", 1): 1,
    }


def test_the_default_rules_group_a_llama() -> None:
    assert sizes(match_rules(llama_graph(2), load_default_rules())) == {
        ("sdpa", 1): 2,
        ("llama_swiglu", 6): 2,
        ("llama_norm_qkv", 9): 2,
        ("llama_proj_norm", 8): 2,
        ("llama_rotary", 7): 4,
        ("lone_gemm", 1): 1,
    }


@pytest.mark.parametrize(
    ("rule", "hit", "near_miss"),
    [
        ("mlp_block", "x -> linear -> relu -> dropout -> linear", "x -> linear -> relu -> mul -> linear"),
        ("mlp_block", "x -> to -> linear -> tanh -> linear", "x -> linear -> exp -> linear"),
        ("dense_layer", "x -> linear -> layer_norm -> tanh", "x -> matmul -> layer_norm -> tanh"),
        ("lone_gemm", "x -> bmm", "x -> conv2d"),
        ("gpt_qkv_packed", "x -> layer_norm -> view -> addmm -> view -> split", "x -> layer_norm -> addmm -> cat"),
        ("gpt_proj_norm", "x -> linear -> dropout -> add -> layer_norm", "x -> linear -> mul -> layer_norm"),
        ("gpt_ffn", "x -> linear -> gelu -> linear -> dropout -> add", "x -> linear -> gelu -> linear -> mul"),
        ("sdpa", "x -> scaled_dot_product_attention", "x -> softmax"),
        (
            "mha_explicit",
            "x -> transpose -> matmul -> div -> add -> softmax -> to -> dropout -> matmul -> transpose -> view",
            "x -> transpose -> matmul -> div -> softmax -> exp -> matmul -> transpose -> view",
        ),
    ],
)
def test_a_default_rule_matches_once_and_not_its_near_miss(rule: str, hit: str, near_miss: str) -> None:
    rules = tuple(r for r in load_default_rules() if r.name == rule)
    assert len(match_rules(graph_of(hit), rules)) == 1
    assert match_rules(graph_of(near_miss), rules) == ()


@pytest.mark.parametrize("missing", ["l0.n2.rsqrt", "l0.silu", "l0.q", "l0.k_neg"])
def test_a_llama_rule_does_not_match_when_one_of_its_operators_is_taken(missing: str) -> None:
    graph = llama_graph(1)
    whole = match_rules(graph, load_default_rules())
    rule = next(m.rule for m in whole if missing in m.operators)
    again = match_rules(graph, load_default_rules(), frozenset({missing}))
    assert sum(m.rule == rule for m in again) == sum(m.rule == rule for m in whole) - 1

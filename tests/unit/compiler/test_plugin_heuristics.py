"""Heuristics from files and packages, human decisions, and that nothing exceeds the tiles."""

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import DoesNotFit, InvalidArgument
from rdukit.hardware import CHIPS, ChipSpec
from rdukit_compiler.heuristics import HeuristicRequest, find_heuristic, heuristic_names
from rdukit_compiler.heuristics.capacity import footprint
from rdukit_compiler.heuristics.default import DefaultO3, default_limits
from rdukit_compiler.heuristics.human_decision import HumanDecision, decided_matches, load_human_decision
from rdukit_compiler.heuristics.plugins import find_misplacement, load_heuristics
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.passes.cut_sections import CutOptions, SectionPlan, cut_sections
from rdukit_compiler.rules import load_rules
from support import shows
from support.graphs import GraphBuilder, gpt_graph, graph_of

pytestmark = shows("o1", "o3")

SN30 = CHIPS["sn30"]

ONE_EACH = '''
from rdukit_compiler.heuristics import heuristic
from rdukit_compiler.heuristics.default import DefaultO3

@heuristic("ONE_EACH")
class OneEach(DefaultO3):
    """A section for every operator."""
    def split(self, request):
        return [(operator,) for operator in request.operators]
'''
RULE = """
fused:
  priority: 1
  heuristic: ONE_EACH
  pattern:
    a: {op_type: relu, child: b}
    b: {op_type: tanh}
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def cut(graph: ModelGraph, mode: str = "o3", **options: object) -> tuple[SectionPlan, ...]:
    return cut_sections(graph, CutOptions(mode, SN30, 4, **options))  # type: ignore[arg-type]


def test_a_file_adds_a_heuristic_that_rules_can_name(tmp_path: Path) -> None:
    plugins = load_heuristics([write(tmp_path / "one_each.py", ONE_EACH)])
    rules = load_rules(write(tmp_path / "rules.yaml", RULE))
    plans = cut(graph_of("x -> relu -> tanh"), "o1", rules=rules, plugins=plugins)
    assert [(plan.rule, plan.heuristic, len(plan.operators)) for plan in plans] == [("fused", "ONE_EACH", 1)] * 2
    assert "ONE_EACH" not in heuristic_names()


def test_an_installed_package_adds_a_heuristic_under_its_entry_points_name() -> None:
    point = EntryPoint("MINE", "rdukit_compiler.heuristics.default:DefaultO3", "rdukit.heuristics")
    assert isinstance(load_heuristics(installed=[point])["MINE"], DefaultO3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "registers nothing"),
        ("1 / 0", "ZeroDivisionError"),
        (ONE_EACH.replace("ONE_EACH", "SAFE_GEMM"), "is taken"),
        ("from rdukit_compiler.heuristics import heuristic\n@heuristic('A')\nclass A: pass\n", "lacks parameters"),
    ],
)
def test_a_heuristic_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        load_heuristics([write(tmp_path / "plugin.py", text)])


def test_a_heuristic_file_or_package_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no heuristic file"):
        load_heuristics([tmp_path / "none.py"])
    with pytest.raises(InvalidArgument, match="cannot be loaded"):
        load_heuristics(installed=[EntryPoint("A", "no_such_package:A", "rdukit.heuristics")])


class Greedy(DefaultO3):
    """Takes more than there is."""

    def decide(self, request: HeuristicRequest) -> dict[str, object]:
        return {"pcu_limit": 10_000}


class Forgetful(DefaultO3):
    """Loses the last operator."""

    def split(self, request: HeuristicRequest) -> list[tuple]:  # type: ignore[type-arg]
        return [request.operators[:-1]]


@pytest.mark.parametrize(
    ("made", "reason"), [(Greedy(), "10000 pcu_limit decided of 640"), (Forgetful(), "once and in")]
)
def test_a_plug_in_that_misplaces_falls_back_to_the_default_with_the_numbers(
    tmp_path: Path, made: DefaultO3, reason: str
) -> None:
    rules = load_rules(write(tmp_path / "rules.yaml", RULE))
    (plan,) = cut(graph_of("x -> relu -> tanh"), "o1", rules=rules, plugins={"ONE_EACH": made})
    assert plan.heuristic == "default"
    assert reason in plan.why


# -- human decisions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["o1", "o3"])
def test_a_human_cuts_sections(mode: str) -> None:
    graph = gpt_graph(2)
    decision = HumanDecision((("h0.*",), ("h1.fc1*", "h1.gelu*")))
    plans = cut(graph, mode, decision=decision)
    decided = {plan.name: plan.operators for plan in plans if plan.name.startswith("human_decision")}
    assert set(decided) == {"human_decision_0", "human_decision_1"}
    assert all(name.startswith("h0.") for name in decided["human_decision_0"])
    assert sorted(name for plan in plans for name in plan.operators) == sorted(o.name for o in graph.operators)
    assert "a human decision joins" in next(plan.why for plan in plans if plan.name == "human_decision_1")


def test_a_human_may_name_the_heuristic_of_a_section() -> None:
    decision = HumanDecision((("h0.scores", "h0.scale", "h0.probs", "h0.mix"),), {"h0.probs": "MHA"})
    assert "MHA" in {plan.heuristic for plan in cut(gpt_graph(1), decision=decision)}


def test_a_decision_that_a_path_leaves_and_enters_again_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="a path leaves its 2 operators"):
        decided_matches(graph_of("a = relu x; b = tanh a; c = exp b"), HumanDecision((("a", "c"),)))


def test_a_pattern_that_matches_nothing_is_warned_of() -> None:
    _, warnings = decided_matches(graph_of("x -> relu"), HumanDecision((("relu*", "nothing*"),)))
    assert len(warnings) == 1
    assert "'nothing*'" in warnings[0]


def test_a_human_decision_file_may_be_any_json_object(tmp_path: Path) -> None:
    path = write(tmp_path / "hd.json", json.dumps({"num_encoders": 24, "sections": [["a*"]], "recompute": True}))
    assert load_human_decision(path) == HumanDecision((("a*",),), {}, ("num_encoders", "recompute"))


@pytest.mark.parametrize("text", ["[1]", "{", '{"sections": ["a"]}', '{"sections": [[]]}', '{"heuristics": []}'])
def test_a_human_decision_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidArgument):
        load_human_decision(write(tmp_path / "hd.json", text))


# -- placement ---------------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> ModelGraph:
    build = GraphBuilder("random", dtype=draw(st.sampled_from(["bfloat16", "float32"])))
    rows = draw(st.sampled_from([1, 32, 4096, 65536]))
    values = [build.input("x", rows, draw(st.sampled_from([8, 1024, 16384])))]
    for _ in range(draw(st.integers(1, 14))):
        value = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["linear", "relu", "softmax", "add", "matmul"]))
        if kind == "linear":
            values.append(build.linear(value, draw(st.sampled_from([8, 512, 32768]))))
        elif kind == "matmul":
            width = build.values[value].shape[-1]
            other = build.parameter(f"w{len(values)}", width, 256)
            values.append(build.op("matmul", value, other, shape=(rows, 256)))
        else:
            values.append(build.op(kind, value, *((value,) if kind == "add" else ())))
    return build.build()


@given(graph=graphs(), chip=st.sampled_from(list(CHIPS.values())), tiles=st.sampled_from([1, 2, 4]),
       name=st.sampled_from(sorted(heuristic_names())), inference=st.booleans())  # fmt: skip
def test_no_section_exceeds_its_tiles_on_any_chip(
    graph: ModelGraph, chip: ChipSpec, tiles: int, name: str, inference: bool
) -> None:
    strategy = find_heuristic(name)
    assert strategy is not None
    request = HeuristicRequest(graph, graph.operators, chip, tiles, inference)
    limits = default_limits(request)
    try:
        parts = strategy.split(request)
    except DoesNotFit as refusal:
        needed, available = refusal.detail["needed"], refusal.detail["available"]
        assert any(needed[what] > available[what] for what in needed)
        return
    decisions = [strategy.decide(HeuristicRequest(graph, tuple(part), chip, tiles, inference)) for part in parts]
    assert find_misplacement(request, parts, decisions) == ""
    for part, decided in zip(parts, decisions, strict=True):
        taken = footprint(graph, part, limits, streamed=decided["weights"] == "streamed")
        assert taken.pcus <= tiles * chip.pcus_per_tile
        assert taken.pmus <= tiles * chip.pmus_per_tile
        assert taken.sram_bytes <= tiles * chip.pmus_per_tile * chip.pmu_bytes

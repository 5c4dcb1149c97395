"""``op_fusion`` blocks in a program become sections."""

from rdukit.hardware import CHIPS
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.passes.cut_sections import CutOptions, SectionPlan, cut_sections
from rdukit_compiler.passes.group_labelled import labelled_groups
from rdukit_compiler.patterns.syntax import parse_rules
from support import shows
from support.graphs import GraphBuilder

pytestmark = shows("surface", "o1")

RULES = parse_rules("pair: {priority: 1, pattern: {fc: {op_type: linear, child: act}, act: {op_type: gelu}}}", "test")


def labelled(layers: int = 1, **labels: str) -> ModelGraph:
    """Per layer relu, then linear, gelu and tanh inside a block; without labels in between."""
    b = GraphBuilder()
    x = b.op("relu", b.input("x"))
    for layer in range(layers):
        module = f"layers.{layer}.mlp"
        weight = b.parameter(f"w{layer}", 8, 8)
        x = b.op("linear", x, weight, name=f"fc{layer}", module=module, labels=labels)
        x = b.op("gelu", x, name=f"act{layer}", module=module, labels=labels)
        x = b.op("tanh", x, name=f"tanh{layer}", module=module, labels=labels)
    return b.build()


def cut(graph: ModelGraph, mode: str = "o1") -> dict[str, SectionPlan]:
    plans = cut_sections(graph, CutOptions(mode, CHIPS["sn30"], 4, RULES))
    return {plan.name: plan for plan in plans}


def test_an_annotated_block_is_one_section_before_the_rules() -> None:
    plan = cut(labelled(op_fusion="mlp", heuristic="SAFE_GEMM", user_annotated="true"))["mlp"]
    assert plan.operators == ("fc0", "act0", "tanh0")
    assert plan.heuristic == "SAFE_GEMM"
    assert "op_fusion block mlp" in plan.why


def test_rules_apply_inside_a_block_that_is_not_annotated_and_leave_it_the_rest() -> None:
    plans = cut(labelled(op_fusion="mlp"))
    assert plans["pair"].operators == ("fc0", "act0")
    assert plans["mlp"].operators == ("tanh0",)


def test_blocks_of_layers_under_one_name_stay_apart() -> None:
    plans = cut(labelled(3, op_fusion="mlp", user_annotated="true"))
    assert [plans[name].operators[0] for name in ("mlp", "mlp_1", "mlp_2")] == ["fc0", "fc1", "fc2"]


def test_labels_count_in_o1_only() -> None:
    graph = labelled(op_fusion="mlp", user_annotated="true")
    assert "mlp" not in cut(graph, "o0")
    assert "mlp" not in cut(graph, "o3")


def test_a_mapping_of_choices_goes_to_the_default_heuristic() -> None:
    label = "{'tiling': 'row', 'distribution': 2, 'deep': {'a': 1}}"
    (block,) = labelled_groups(labelled(op_fusion="mlp", heuristic=label), annotated=False)
    assert block.heuristic is None
    assert block.parameters == {"tiling": "row", "distribution": 2}


def test_a_graph_without_labels_has_no_blocks() -> None:
    assert labelled_groups(labelled(), annotated=True) == labelled_groups(labelled(), annotated=False) == ()


def continued(*, around: bool) -> ModelGraph:
    """A block of id 7 in two parts: apart, or with an operator between them that both touch."""
    b = GraphBuilder()
    labels = {"op_fusion": "mlp", "op_fusion_id": "7", "user_annotated": "true"}
    x = b.input("x")
    first = b.op("relu", x, name="first", labels=labels)
    between = b.op("exp", first if around else x, name="between")
    second = b.op("tanh", between if around else first, name="second", labels=labels)
    b.op("add", second, between, name="last")
    return b.build()


def test_parts_of_one_block_join_unless_a_path_leaves_it_and_comes_back() -> None:
    assert cut(continued(around=False))["mlp"].operators == ("first", "second")
    plans = cut(continued(around=True))
    assert (plans["mlp"].operators, plans["mlp_1"].operators) == (("first",), ("second",))

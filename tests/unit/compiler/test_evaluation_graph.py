"""Whether two traces compute the same, and the evaluation graph that a training PEF gets where they do not."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from rdukit.errors import CompileError
from rdukit.pef.kernel import Argument, Ref
from rdukit_compiler.capture.evaluation import (
    computes_the_same,
    evaluation_graph,
    evaluation_name,
    name_in_training,
    with_shared_names,
)
from rdukit_compiler.heuristics.human_decision import HumanDecision, decided_matches
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.passes.assign_precision import Precision
from rdukit_compiler.passes.join_regions import join_regions
from support import shows

pytestmark = shows("training", "inference")

FLOAT = "float32"


def trace(
    name: str,
    dropout: tuple[Argument, ...] = (0.5, True),
    op: str = "aten.relu.default",
    shape: tuple[int, ...] = (2, 3),
    rates: Mapping[str, float] | None = None,
    constant: str = "",
) -> ModelGraph:
    """x → ``op`` → dropout, traced under ``name``; ``constant`` is added to x if there is one."""
    made = [f"{name}__act__outputs__0", f"{name}__drop__outputs__0"]
    values = {
        "x": Value("x", ValueKind.INPUT, FLOAT, shape),
        "w": Value("w", ValueKind.PARAMETER, FLOAT, shape, requires_grad=True),
        **{n: Value(n, ValueKind.BUFFER, FLOAT, ()) for n in (*(rates or {}), *([constant] if constant else []))},
        **{n: Value(n, ValueKind.OPERATOR, FLOAT, shape) for n in made},
    }
    read: tuple[Argument, ...] = (Ref("x"), Ref(constant or "w"))
    operators = (
        Operator(f"{name}__act", op, "act", read, {}, (made[0],)),
        Operator(f"{name}__drop", "aten.dropout.default", "dropout", (Ref(made[0]), *dropout), {}, (made[1],)),
    )
    return ModelGraph(name, values, operators, (made[1],), {}, rates or {})


def test_dropouts_that_drop_nothing_are_equal_and_one_that_drops_differs() -> None:
    trained = trace("m", (0.0, True))
    assert computes_the_same(trained, trace("m__evaluation", (0.5, False)))
    assert evaluation_graph(trained, trace("m__evaluation", (0.5, False))) is None
    assert not computes_the_same(trace("m", (0.5, True)), trace("m__evaluation", (0.5, False)))


@pytest.mark.parametrize(
    "other", [trace("e", op="aten.tanh.default"), trace("e", shape=(3, 2)), trace("e", (0.25, True))]
)
def test_another_operator_shape_or_argument_differs(other: ModelGraph) -> None:
    assert computes_the_same(trace("m"), trace("e"))
    assert not computes_the_same(trace("m"), other)


def test_an_update_of_a_buffer_differs() -> None:
    one = trace("m", constant="buffer")
    updated = replace(one, updates={"buffer": "m__act__outputs__0"})
    assert computes_the_same(one, one)
    assert not computes_the_same(updated, one)


def test_rates_of_the_same_call_and_equal_constants_get_the_training_graphs_names() -> None:
    trained = trace("m", (Ref("m__drop__p"), True), rates={"m__drop__p": 0.5}, constant="m__constant__0")
    again = trace("e", (Ref("e__drop__p"), True), rates={"e__drop__p": 0.5}, constant="e__constant__0")
    assert not computes_the_same(trained, again)
    shared = with_shared_names(trained, again, {"e__constant__0": "m__constant__0"})
    assert computes_the_same(trained, shared)
    assert shared.rates == trained.rates
    assert shared.values.keys() >= {"m__drop__p", "m__constant__0"}
    other = trace("e", (Ref("e__drop__p"), True), rates={"e__drop__p": 0.25}, constant="e__constant__0")
    assert with_shared_names(trained, other, {}).rates == {"e__drop__p": 0.25}, "another rate is another scalar"


def test_no_gradient_flows_in_an_evaluation_graph() -> None:
    found = evaluation_graph(trace("m"), trace("m__evaluation", (0.5, False)))
    assert found is not None
    assert not any(value.requires_grad for value in found.values.values())


def test_other_outputs_and_shapes_cannot_stand_for_the_training_graph() -> None:
    trained, evaluated = trace("m"), trace("e", (0.5, False))
    with pytest.raises(CompileError, match=r"returns nothing in evaluation mode, but float32\[2, 3\] in training"):
        evaluation_graph(trained, replace(evaluated, outputs=()))
    x = replace(evaluated.values["x"], dtype="float64")
    with pytest.raises(CompileError, match="'x' has another shape or dtype in evaluation mode"):
        evaluation_graph(trained, replace(evaluated, values={**evaluated.values, "x": x}))


def test_what_a_human_decides_for_a_training_graph_counts_in_its_evaluation_graph() -> None:
    assert name_in_training(f"{evaluation_name('m')}__act") == "m__act"
    for name in ("m", evaluation_name("m")):
        matches, warnings = decided_matches(trace(name), HumanDecision((("m__act*",),)))
        assert [match.operators for match in matches] == [(f"{name}__act",)]
        assert not warnings


def test_an_input_that_graphs_hold_in_two_dtypes_is_held_in_the_wider_by_both() -> None:
    one, other, precision = trace("m"), trace("e"), Precision("bf16", True)
    narrow = {**other.values, "x": replace(other.values["x"], dtype="bfloat16")}
    for graphs in ([one, replace(other, values=narrow)], [replace(other, values=narrow), one]):
        assert [graph.values["x"].dtype for graph in join_regions(graphs, {}, precision)] == [FLOAT, FLOAT]

"""Which weights are stored in fewer bits, and what the graph says then."""

from dataclasses import replace
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.pef.kernel import Ref
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind, check_graph
from rdukit_compiler.operators.own_operators import INT4_LINEAR, INT8_EMBEDDING, INT8_LINEAR
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.checks import check_stage
from rdukit_compiler.passes.quantize_weights import quantize_weights
from support import shows

pytestmark = shows("inference", "engine")


def _value(name: str, kind: ValueKind, shape: tuple[int, ...], dtype: str = "float32") -> Value:
    return Value(name, kind, dtype, shape)


def _graph(width: int = 4) -> ModelGraph:
    values = [
        _value("ids", ValueKind.INPUT, (2,), "int64"), _value("table", ValueKind.PARAMETER, (10, width)),
        _value("w", ValueKind.PARAMETER, (3, width)), _value("b", ValueKind.PARAMETER, (3,)),
        _value("x", ValueKind.OPERATOR, (2, width)), _value("y", ValueKind.OPERATOR, (2, 3)),
        _value("z", ValueKind.OPERATOR, (2, 10)),
    ]  # fmt: skip
    operators = (
        Operator("e", "aten.embedding.default", "embedding", (Ref("table"), Ref("ids")), {}, ("x",)),
        Operator("l", "aten.linear.default", "linear", (Ref("x"), Ref("w"), Ref("b")), {}, ("y",)),
        Operator("h", "aten.linear.default", "linear", (Ref("x"), Ref("table")), {}, ("z",)),
    )
    return ModelGraph("g", {v.name: v for v in values}, operators, ("y", "z"))


def test_weights_of_linear_layers_and_tied_tables_become_int8_with_their_scales() -> None:
    (graph,) = quantize_weights([_graph()], "int8")
    check_graph(graph, "quantize_weights")
    assert [graph.values[name].dtype for name in ("table", "w", "b")] == ["int8", "int8", "float32"]
    assert graph.values["table__scale"].shape == (10,) and graph.values["w__scale"].shape == (3,)
    embedding, linear, head = graph.operators
    assert embedding.op == INT8_EMBEDDING and embedding.args[2] == Ref("table__scale")
    assert linear.op == INT8_LINEAR and linear.args == (Ref("x"), Ref("w"), Ref("w__scale"), Ref("b"))
    assert head.args == (Ref("x"), Ref("table"), Ref("table__scale"), None)
    assert [operator.op_type for operator in graph.operators] == ["embedding", "linear", "linear"]


def test_weights_of_four_bits_have_half_a_byte_an_element_and_a_scale_a_group_and_tables_are_int8() -> None:
    before = _graph(width=160)
    (graph,) = quantize_weights([before], "int4")
    check_stage(graph, "quantize_weights", before)
    assert [graph.values[name].dtype for name in ("table", "w", "b")] == ["int8", "uint8", "float32"]
    weight, scale = graph.values["w"], graph.values["w__scale"]
    assert (weight.shape, scale.shape, scale.dtype) == ((3, 5, 16), (3, 5), "bfloat16")
    assert [operator.op for operator in graph.operators] == [INT8_EMBEDDING, INT4_LINEAR, INT8_LINEAR]
    for width in (36, 0):  # no multiple of 32, or empty
        (odd,) = quantize_weights([_graph(width)], "int4")
        assert odd.values["w"].dtype == "int8"


def test_a_weight_that_any_graph_reads_otherwise_keeps_its_dtype_in_all() -> None:
    graph = _graph()
    other = Operator("a", "aten.add.Tensor", "add", (Ref("w"), 1), {}, ("s",))
    reading = replace(
        graph, name="other", values={**graph.values, "s": _value("s", ValueKind.OPERATOR, (3, 4))},
        operators=(*graph.operators, other),
    )  # fmt: skip
    for quantized in quantize_weights([graph, reading], "int8"):
        assert quantized.values["w"].dtype == "float32" and "w__scale" not in quantized.values
        assert quantized.values["table"].dtype == "int8"


def test_a_graph_that_reads_only_the_table_of_a_tied_head_reads_the_same_int8_weight() -> None:
    graph = _graph()
    reading = replace(graph, name="vectors", operators=graph.operators[:1], outputs=("x",))
    whole, vectors = quantize_weights([graph, reading], "int8")
    assert whole.values["table"] == vectors.values["table"] and vectors.values["table"].dtype == "int8"
    assert vectors.operators[0] == whole.operators[0]


def test_a_table_that_no_linear_layer_reads_stays_as_it_is() -> None:
    graph = _graph()
    (quantized,) = quantize_weights([replace(graph, operators=graph.operators[:2], outputs=("y",))], "int8")
    assert quantized.values["table"].dtype == "float32"


def test_int8_weights_are_refused_for_training() -> None:
    options = CompileOptions("m", pef_path=Path("m.pef"), weight_dtype="int8")
    with pytest.raises(InvalidArgument, match="inference"):
        options.check()
    with pytest.raises(InvalidArgument, match="expected int8, int4"):
        replace(options, inference=True, weight_dtype="int2").check()

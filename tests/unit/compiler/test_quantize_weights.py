"""Which weights become int8, and what the graph says then."""

from dataclasses import replace
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.pef.kernel import Ref
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind, check_graph
from rdukit_compiler.operators.own_operators import INT8_EMBEDDING, INT8_LINEAR
from rdukit_compiler.options import CompileOptions
from rdukit_compiler.passes.quantize_weights import quantize_weights


def _value(name: str, kind: ValueKind, shape: tuple[int, ...], dtype: str = "float32") -> Value:
    return Value(name, kind, dtype, shape)


def _graph() -> ModelGraph:
    values = [
        _value("ids", ValueKind.INPUT, (2,), "int64"), _value("table", ValueKind.PARAMETER, (10, 4)),
        _value("w", ValueKind.PARAMETER, (3, 4)), _value("b", ValueKind.PARAMETER, (3,)),
        _value("x", ValueKind.OPERATOR, (2, 4)), _value("y", ValueKind.OPERATOR, (2, 3)),
        _value("z", ValueKind.OPERATOR, (2, 10)),
    ]  # fmt: skip
    operators = (
        Operator("e", "aten.embedding.default", "embedding", (Ref("table"), Ref("ids")), {}, ("x",)),
        Operator("l", "aten.linear.default", "linear", (Ref("x"), Ref("w"), Ref("b")), {}, ("y",)),
        Operator("h", "aten.linear.default", "linear", (Ref("x"), Ref("table")), {}, ("z",)),
    )
    return ModelGraph("g", {v.name: v for v in values}, operators, ("y", "z"))


def test_weights_of_linear_layers_and_tied_tables_become_int8_with_their_scales() -> None:
    (graph,) = quantize_weights([_graph()])
    check_graph(graph, "quantize_weights")
    assert [graph.values[name].dtype for name in ("table", "w", "b")] == ["int8", "int8", "float32"]
    assert graph.values["table__scale"].shape == (10,) and graph.values["w__scale"].shape == (3,)
    embedding, linear, head = graph.operators
    assert embedding.op == INT8_EMBEDDING and embedding.args[2] == Ref("table__scale")
    assert linear.op == INT8_LINEAR and linear.args == (Ref("x"), Ref("w"), Ref("w__scale"), Ref("b"))
    assert head.args == (Ref("x"), Ref("table"), Ref("table__scale"), None)
    assert [operator.op_type for operator in graph.operators] == ["embedding", "linear", "linear"]


def test_a_weight_that_any_graph_reads_otherwise_keeps_its_dtype_in_all() -> None:
    graph = _graph()
    other = Operator("a", "aten.add.Tensor", "add", (Ref("w"), 1), {}, ("s",))
    reading = replace(
        graph, name="other", values={**graph.values, "s": _value("s", ValueKind.OPERATOR, (3, 4))},
        operators=(*graph.operators, other),
    )  # fmt: skip
    for quantized in quantize_weights([graph, reading]):
        assert quantized.values["w"].dtype == "float32" and "w__scale" not in quantized.values
        assert quantized.values["table"].dtype == "int8"


def test_a_graph_that_reads_only_the_table_of_a_tied_head_reads_the_same_int8_weight() -> None:
    graph = _graph()
    reading = replace(graph, name="vectors", operators=graph.operators[:1], outputs=("x",))
    whole, vectors = quantize_weights([graph, reading])
    assert whole.values["table"] == vectors.values["table"] and vectors.values["table"].dtype == "int8"
    assert vectors.operators[0] == whole.operators[0]


def test_a_table_that_no_linear_layer_reads_stays_as_it_is() -> None:
    graph = _graph()
    (quantized,) = quantize_weights([replace(graph, operators=graph.operators[:2], outputs=("y",))])
    assert quantized.values["table"].dtype == "float32"


def test_int8_weights_are_refused_for_training() -> None:
    options = CompileOptions("m", pef_path=Path("m.pef"), weight_dtype="int8")
    with pytest.raises(InvalidArgument, match="inference"):
        options.check()
    with pytest.raises(InvalidArgument, match="legal: int8"):
        replace(options, inference=True, weight_dtype="int4").check()

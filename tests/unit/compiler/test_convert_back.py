"""Conversions back to a tensor's dtype, where the device computes in bf16."""

from dataclasses import replace

from rdukit.pef.kernel import Special
from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.passes.assign_precision import Precision, assign_precision
from support import shows
from support.graphs import GraphBuilder

pytestmark = shows("precision")

F32 = Special("dtype", "float32")


def dtypes(graph: ModelGraph, precision: str = "bf16") -> list[str]:
    """Of the operators' outputs, in order."""
    typed = assign_precision(graph, Precision(precision, False))
    return [typed.values[operator.outputs[0]].dtype for operator in typed.operators]


def chain(*words: str, modules: str = "") -> ModelGraph:
    """Operators one after the other, each in the module of one letter; ``to`` converts to f32."""
    build = GraphBuilder()
    name = build.input("x", 3, 3)
    for position, word in enumerate(words):
        arguments = (F32,) if word == "to" else ()
        name = build.op(word, name, *arguments, name=f"v{position}", module=modules[position : position + 1])
        if word == "to":
            build.operators[-1] = replace(build.operators[-1], op="aten.to.dtype")
    return build.build(name)


def test_a_conversion_after_computing_in_f32_goes_back() -> None:
    assert dtypes(chain("to", "exp", "to", "exp")) == ["float32", "float32", "bfloat16", "bfloat16"]


def test_in_f32_nothing_changes() -> None:
    assert set(dtypes(chain("to", "exp", "to", "exp"), "f32")) == {"float32"}


def test_a_repeated_conversion_stays_wide() -> None:
    assert dtypes(chain("to", "to", "t", "to", "exp")) == ["float32"] * 5


def test_a_conversion_widens_again_after_one_went_back() -> None:
    assert dtypes(chain("to", "exp", "to", "to")) == ["float32", "float32", "bfloat16", "float32"]


def test_what_another_module_widened_stays_wide() -> None:
    assert dtypes(chain("to", "exp", "to", "exp", "to", modules="aabba")) == ["float32"] * 4 + ["bfloat16"]

"""Which operators depart from the device's usual dtype."""

import logging

import pytest

from rdukit_compiler.ir import ModelGraph
from rdukit_compiler.passes.choose_compute import choose_compute
from rdukit_compiler.testing import GraphBuilder


def graph(disabled: bool = False) -> ModelGraph:
    """linear, softmax (perhaps outside of GraphAMP), linear."""
    b = GraphBuilder()
    hidden = b.op("linear", b.input("x"), b.parameter("w", 8, 8), name="first")
    chances = b.op("softmax", hidden, name="chances", labels={"graphamp": "disabled"} if disabled else {})
    b.op("linear", chances, b.parameter("v", 8, 8), name="second")
    return b.build()


def chosen(made: ModelGraph) -> list[str]:
    return [operator.compute for operator in made.operators]


@pytest.mark.parametrize(
    ("preset", "families", "expected"),
    [
        (None, [], ["", "", ""]),
        ("default", [], ["", "", ""]),
        ("mp0", ["softmax"], ["", "", ""]),
        ("mp1", [], ["bfloat16+float32", "", "bfloat16+float32"]),
        ("mp4", [], ["", "float32>bfloat16", ""]),
        (None, ["gemm", "softmax"], ["", "float32>bfloat16", ""]),
    ],
)
def test_presets_and_families_mark_operators(preset: str | None, families: list[str], expected: list[str]) -> None:
    assert chosen(choose_compute(graph(), "bf16", preset, families)) == expected


def test_a_scope_keeps_declared_precision_and_what_reads_it_is_rounded() -> None:
    assert chosen(choose_compute(graph(disabled=True), "bf16", None, [])) == ["", "float32", "bfloat16"]


def test_the_f32_switch_leaves_nothing_to_decide() -> None:
    assert chosen(choose_compute(graph(disabled=True), "f32", "mp1", ["softmax"])) == ["", "", ""]


def test_an_unknown_family_is_logged_with_the_legal_ones(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        choose_compute(graph(), "bf16", None, ["soft"])
    assert "family=soft" in caplog.text and "softmax" in caplog.text

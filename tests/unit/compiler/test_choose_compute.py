"""Which operators depart from the device's usual dtype."""

import logging

import pytest

from rdukit_compiler.ir import ComputeDtypes, ModelGraph
from rdukit_compiler.passes.choose_compute import DECLARED, NARROW, ROUNDED, WIDE, choose_compute
from support import shows
from support.graphs import GraphBuilder

pytestmark = shows("precision")


def graph(disabled: bool = False) -> ModelGraph:
    """linear, softmax (perhaps outside of GraphAMP), linear."""
    b = GraphBuilder()
    hidden = b.op("linear", b.input("x"), b.parameter("w", 8, 8), name="first")
    chances = b.op("softmax", hidden, name="chances", labels={"graphamp": "disabled"} if disabled else {})
    b.op("linear", chances, b.parameter("v", 8, 8), name="second")
    return b.build()


def chosen(made: ModelGraph) -> list[ComputeDtypes | None]:
    return [operator.compute for operator in made.operators]


@pytest.mark.parametrize(
    ("preset", "families", "expected"),
    [
        (None, [], [None, None, None]),
        ("default", [], [None, None, None]),
        ("mp0", ["softmax"], [None, None, None]),
        ("mp1", [], [NARROW, None, NARROW]),
        ("mp4", [], [None, WIDE, None]),
        (None, ["gemm", "softmax"], [None, WIDE, None]),
    ],
)
def test_presets_and_families_mark_operators(
    preset: str | None, families: list[str], expected: list[ComputeDtypes | None]
) -> None:
    assert chosen(choose_compute(graph(), "bf16", preset, families)) == expected


def test_a_scope_keeps_declared_precision_and_what_reads_it_is_rounded() -> None:
    assert chosen(choose_compute(graph(disabled=True), "bf16", None, [])) == [None, DECLARED, ROUNDED]


def test_the_f32_switch_leaves_nothing_to_decide() -> None:
    assert chosen(choose_compute(graph(disabled=True), "f32", "mp1", ["softmax"])) == [None, None, None]


def test_an_unknown_family_is_logged_with_the_legal_ones(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        choose_compute(graph(), "bf16", None, ["soft"])
    assert "family=soft" in caplog.text and "softmax" in caplog.text

"""``rdukit pef diff``: what differs between two compiles."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rdukit.cli.tables import format_table
from rdukit.pef.diff import describe_diff, diff_pefs, diff_tables
from rdukit.pef.file import LoadedPef
from rdukit.pef.model import ChipPlan, Pef, Section
from support import shows
from support.pefs.examples import example_kernels, example_pef

pytestmark = shows("pef")


def loaded(pef: Pef, natives: bool = False) -> LoadedPef:
    kernels = example_kernels()
    return LoadedPef(Path("a.pef"), pef, kernels, {next(iter(kernels)): b"x"} if natives else {})


def with_section(pef: Pef, index: int, **changes: Any) -> Pef:
    sections = list(pef.sections)
    sections[index] = replace(sections[index], **changes)
    return replace(pef, sections=tuple(sections))


def split_first(pef: Pef) -> Pef:
    """The first section without its last operator, which gets a section of its own at the end."""
    first, *others = pef.sections
    short: Section = replace(first, operators=first.operators[:-1])
    extra = replace(first, id=len(pef.sections), name="mean", operators=first.operators[-1:], rule=None)
    return replace(pef, sections=(short, *others, extra))


def test_equal_pefs_have_no_difference() -> None:
    assert diff_pefs(loaded(example_pef()), loaded(example_pef())) == ()


CHANGED: dict[str, Any] = {
    "name": "other", "mode": "O3", "arch": "sn30", "num_tiles": 2, "precision": "bf16", "inference": True,
    "compiler_version": "9", "torch_version": "9", "cpu_capability": "avx2", "graphs": {}, "symbols": {},
    "sections": split_first(example_pef()).sections,
    "hyperparameters": {"lr": 0.5}, "signature": {"inputs": {"x": [8, 3]}},
    "metadata": {"program": "other.py"}, "chips": ChipPlan(2, "batch", ((0,), (0, 1)), {}, (), {}),
}  # fmt: skip


@pytest.mark.parametrize("field", Pef.__dataclass_fields__)
def test_a_change_of_any_field_is_found(field: str) -> None:
    after = replace(example_pef(), **{field: CHANGED[field]})
    changes = diff_pefs(loaded(example_pef()), loaded(after))
    assert changes
    assert len(diff_tables(changes)) >= 1


def test_a_changed_mapping_of_a_graph_is_shown() -> None:
    pef = example_pef()
    graph = replace(pef.graphs["main"], seeds={}, gradients={"weight": ("g",)})
    changes = diff_pefs(loaded(pef), loaded(replace(pef, graphs={"main": graph})))
    assert "loss.seed" in "\n".join(format_table(t) for t in diff_tables(changes))


@pytest.mark.parametrize("field", Section.__dataclass_fields__)
def test_a_change_of_any_field_of_a_section_is_found(field: str) -> None:
    section = example_pef().sections[0]
    other = {
        "id": 5, "type": example_pef().sections[1].type, "operators": ("fc",), "inputs": ("x",), "outputs": ("y",),
        "resources": replace(section.resources, pcus=99), "cost": replace(section.cost, cycles=1),
    }.get(field, "other")  # fmt: skip
    assert diff_pefs(loaded(example_pef()), loaded(with_section(example_pef(), 0, **{field: other})))


def test_an_input_of_another_shape_is_named_with_both_shapes() -> None:
    pef = example_pef()
    symbols = {**pef.symbols, "x": replace(pef.symbols["x"], shape=(8, 3))}
    changes = diff_pefs(loaded(pef), loaded(replace(pef, symbols=symbols)))
    shape = next(c for c in changes if c.area == "symbols")
    assert (shape.subject, shape.field, shape.before, shape.after) == ("x", "shape", (4, 3), (8, 3))


def test_a_fusion_that_was_cut_is_one_changed_and_one_added_section() -> None:
    changes = [c for c in diff_pefs(loaded(example_pef()), loaded(split_first(example_pef()))) if c.area == "sections"]
    operators = next(c for c in changes if c.field == "operators")
    assert operators.before == ("fc", "to", "mean")
    assert operators.after == ("fc", "to")
    assert [c.subject for c in changes if c.kind == "added"] == ["mean (fwd)"]


def test_the_other_way_round_added_is_removed() -> None:
    changes = diff_pefs(loaded(split_first(example_pef())), loaded(example_pef()))
    assert [c.subject for c in changes if c.kind == "removed" and c.area == "sections"] == ["mean (fwd)"]


def test_cost_totals_are_compared_and_called_projected() -> None:
    pef = example_pef()
    cheaper = with_section(pef, 0, cost=replace(pef.sections[0].cost, cycles=1000))
    changes = diff_pefs(loaded(pef), loaded(cheaper))
    (total,) = [c for c in changes if c.area == "cost"]
    assert (total.before, total.after) == (263_000, 132_000)
    assert "cost (projected)" in "\n".join(format_table(t) for t in diff_tables(changes))


def test_a_missing_native_library_is_a_difference() -> None:
    (change,) = diff_pefs(loaded(example_pef(), natives=True), loaded(example_pef()))
    assert (change.area, change.field, change.before, change.after) == ("kernels", "native", True, False)


def test_the_description_is_ready_for_json() -> None:
    value = json.loads(json.dumps(describe_diff(loaded(example_pef()), loaded(split_first(example_pef())))))
    assert value["equal"] is False
    assert {c["kind"] for c in value["changes"]} == {"added", "changed"}

"""``rdukit pef profile``, its pure parts: shares, limits, groups, documents, tables, trace, picture."""

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from rdukit.cli.tables import format_table
from rdukit.pef import KernelGraph, KernelNode, Ref, Section, SectionType, TensorSpec
from rdukit.pef.kernel import Argument, Special
from rdukit.pef.model import Cost, SectionResources
from rdukit_runtime.engine.machine_limits import MachineLimits
from rdukit_runtime.engine.portable import build_portable
from rdukit_runtime.profile.operators import OperatorClock
from rdukit_runtime.profile.pef import (
    Bound,
    Measured,
    Profile,
    SectionWork,
    exceeds_gemm_limit,
    group_rows,
    limit_dtype,
    profile_to_dict,
    section_rows,
)
from rdukit_runtime.profile.reports import operators_table, profile_tables, trace_profile
from rdukit_runtime.profile.roofline import Dot, Rectangle, draw_roofline, place_labels
from rdukit_runtime.profile.run import index_bounds
from support import shows
from support.pefs.examples import example_kernels, example_pef

pytestmark = shows("pef-profile")

#: 100 GFLOP/s and 10 GB/s: the ridge is at 10 FLOPs per byte.
LIMITS = MachineLimits("processor", 1, 10.0, 8.0, {"f32": 100.0, "bf16": 400.0, "int8": 0.0}, 1e-6)


def make_section(
    number: int, flops: int, moved: int, kernel: str = "k", kind: SectionType = SectionType.FWD, name: str = ""
) -> Section:  # fmt: skip
    return Section(
        number, name or f"section_{number}", kind, "g", kernel, (), (), ("operator",), None, "default", "test",
        SectionResources(1, 1, 1, 8), Cost(10, flops, moved, 0, 0, 2e-6),
    )  # fmt: skip


def make_profile(sections: list[Section], *runs: Mapping[int, float], form: str = "native", **changed: Any) -> Profile:
    """Runs are host seconds by section id; nothing is spent outside."""
    measured = Measured(tuple(tuple(run.items()) for run in runs), tuple(sum(run.values()) for run in runs))
    work = [SectionWork(section, form, "f32", 3) for section in sections]
    values: dict[str, Any] = {
        "path": "a.pef", "pef": "model", "mode": "o1", "arch": "sn30", "precision": "f32", "graphs": ("g",),
        "sections": tuple(sections), "runs": len(runs), "limits": LIMITS, "outside_s": 0.0,
        "rows": section_rows(work, measured, LIMITS), "last_run": measured.sections[-1],
    }  # fmt: skip
    return Profile(**{**values, **changed})


def test_a_section_above_the_ridge_is_held_against_the_gemm_and_one_below_against_memory() -> None:
    sections = [make_section(0, 10**9, 10**6), make_section(1, 10**6, 10**8)]
    product, move = make_profile(sections, {0: 0.02, 1: 0.04}).rows
    assert (product.bound, move.bound) == (Bound.COMPUTE, Bound.MEMORY)
    assert product.gflop_s == pytest.approx(50)
    assert product.limit_share == pytest.approx(0.5)
    assert move.gb_s == pytest.approx(2.5)
    assert move.limit_share == pytest.approx(0.25)
    assert move.limit_gflop_s == pytest.approx(10 * move.intensity)


def test_a_section_too_small_for_its_operator_calls_is_bound_by_them() -> None:
    section = make_section(0, 1000, 100)
    (portable,) = make_profile([section], {0: 1e-5}, form="portable").rows
    assert portable.bound is Bound.CALLS
    assert portable.limit_share == pytest.approx(1e-8 / 1e-5)


def test_a_section_without_work_has_no_share_of_a_limit() -> None:
    (row,) = make_profile([make_section(0, 0, 0)], {0: 1e-5}).rows
    assert (row.limit_share, row.gflop_s, row.intensity, row.bound) == (0, 0, 0, Bound.CALLS)


def test_times_are_medians_and_all_shares_add_up_to_one() -> None:
    sections = [make_section(0, 10, 10), make_section(1, 10, 10)]
    profile = make_profile(sections, {0: 1.0, 1: 2.0}, {0: 9.0, 1: 3.0}, {0: 2.0, 1: 2.5}, outside_s=0.5)
    assert [row.measured_s for row in profile.rows] == [2.0, 2.5]
    assert profile.measured_s == 5.0
    assert sum(map(profile.share, profile.rows)) + profile.outside_s / profile.measured_s == pytest.approx(1)


def test_a_run_that_was_interrupted_changes_neither_a_section_nor_the_rest() -> None:
    runs = (((0, 1.0), (1, 1.0)), ((0, 9.0), (1, 1.0)), ((0, 1.0), (1, 9.0)))
    measured = Measured(runs, tuple(sum(seconds for _, seconds in run) + 0.5 for run in runs))
    assert measured.outside_s == pytest.approx(0.5)
    work = [SectionWork(make_section(n, 10, 10), "native", "f32", 1) for n in range(2)]
    assert [row.measured_s for row in section_rows(work, measured, LIMITS)] == [1.0, 1.0]


def test_sections_that_share_a_kernel_share_a_row_and_their_figures_are_added() -> None:
    sections = [make_section(n, 100, 50, kernel="a" if n != 1 else "b", name=f"layer_{n}") for n in range(4)]
    profile = make_profile(sections, {0: 1.0, 1: 1.0, 2: 2.0, 3: 3.0})
    layers, other = group_rows(profile.rows)
    assert (layers.name, layers.sections, layers.measured_s, layers.flops) == ("layer_0 ×3", 3, 6.0, 300)
    assert layers.limit_share == pytest.approx(sum(row.limit_s for row in profile.rows if row.first.kernel == "a") / 6)
    assert other.name == "layer_1"
    assert sum(row.measured_s for row in (layers, other)) == profile.measured_s


def test_a_backward_section_never_shares_a_row_with_a_forward_one() -> None:
    sections = [make_section(0, 1, 1), make_section(1, 1, 1, kind=SectionType.BCKWD)]
    assert len(group_rows(make_profile(sections, {0: 1.0, 1: 1.0}).rows)) == 2


def test_a_gemm_faster_than_its_limit_says_that_the_limit_was_measured_too_low() -> None:
    fast = make_profile([make_section(0, 10**9, 1000)], {0: 0.005})
    assert exceeds_gemm_limit(fast.rows)
    assert "--measure-limits" in "".join(map(format_table, profile_tables(fast, False)))
    cached = make_profile([make_section(0, 1000, 10**8)], {0: 0.005})
    assert not exceeds_gemm_limit(cached.rows)
    assert "caches" in "".join(map(format_table, profile_tables(cached, False)))


def test_the_document_has_these_fields() -> None:
    value = profile_to_dict(make_profile([make_section(0, 10, 10)], {0: 1.0}), [])
    assert json.loads(json.dumps(value)) == value
    assert {key: shape_of(part) for key, part in value.items()} == {
        "schema": "int", "path": "str", "pef": "str", "mode": "str", "arch": "str", "precision": "str",
        "graphs": ["str"], "runs": "int", "operators": [],
        "machine": {
            "processor": "str", "threads": "int", "read_gb_s": "float", "copy_gb_s": "float", "operator_s": "float",
            "others_share": "float",
            "gemm_gflop_s": {"f32": "float", "bf16": "float", "int8": "float"},
        },
        "sections": [
            {
                "id": "int", "name": "str", "graph": "str", "type": "str", "kernel": "str", "form": "str",
                "dtype": "str",
                "measured": {"host_s": "float", "share": "float", "gflop_s": "float", "gb_s": "float"},
                "projected": {"emulated_s": "float", "cycles": "int", "flops": "int", "bytes": "int"},
                "limit": {"gflop_s": "float", "host_s": "float", "share": "float", "bound": "str"},
            }
        ],
        "totals": {
            "measured": {"host_s": "float", "outside_sections_s": "float"},
            "projected": {"emulated_s": "float", "flops": "int", "bytes": "int"},
        },
    }  # fmt: skip


def shape_of(value: object) -> object:
    if isinstance(value, dict):
        return {key: shape_of(part) for key, part in value.items()}
    return [shape_of(part) for part in value] if isinstance(value, list) else type(value).__name__


def test_tables_say_what_is_measured_and_what_is_projected() -> None:
    sections = [make_section(n, 10**6, 10**4, kernel="a") for n in range(3)]
    profile = make_profile(sections, {0: 1e-3, 1: 1e-3, 2: 1e-3})
    machine, grouped, totals = map(format_table, profile_tables(profile, shows_all=False))
    assert "(measured)" in machine
    assert "measured here" in grouped
    assert "the cost model for sn30" in grouped
    assert "section_0 ×3" in grouped
    assert "emulated time (projected)" in totals
    every = format_table(profile_tables(profile, shows_all=True)[1])
    assert all(f"section_{number} " in every for number in range(3))


def test_the_trace_has_a_track_for_each_clock_and_no_two_events_of_a_track_overlap() -> None:
    sections = [make_section(n, 10, 10) for n in range(5)]
    profile = make_profile(sections, {n: 1.2345e-5 * (n + 1) / 7 for n in range(5)})
    trace = json.loads(json.dumps(trace_profile(profile)))
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert [len(events) for events in tracks.values()] == [5, 5]
    for events in tracks.values():
        assert all(later[0] >= earlier[1] - 1e-9 for earlier, later in itertools.pairwise(events))
    host, rdu = tracks.values()
    assert host[-1][1] == pytest.approx(1e6 * sum(seconds for _, seconds in profile.last_run), abs=0.01)
    assert rdu[-1][1] == pytest.approx(5 * 2.0)
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert any("measured" in name for name in names)
    assert any("projected" in name for name in names)


# -- the picture -----------------------------------------------------------------------------------------------------


def crowded_profile() -> Profile:
    sections = [make_section(n, 10**6 * (20 + n % 7), 10**6, kernel=str(n), name=f"layer_{n}_gemm") for n in range(24)]
    sections += [make_section(24, 0, 10**6, kernel="m", name="look_up"), make_section(25, 10**5, 10**6, kernel="n")]
    return make_profile(sections, {n: 1e-4 * (10 + n % 5) for n in range(26)})


def test_the_picture_is_well_formed_and_has_a_dot_for_each_kernel_with_flops() -> None:
    picture = draw_roofline(crowded_profile())
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    dots = [c for c in root.iter(f"{space}circle") if c.find(f"{space}title") is not None]
    assert len(dots) == 25
    assert "prefers-color-scheme: dark" in picture
    assert "without FLOPs: look_up" in picture
    assert "GEMM f32 100 GFLOP/s" in picture
    assert "memory 10 GB/s" in picture


def test_a_picture_without_any_flops_can_be_drawn() -> None:
    ElementTree.fromstring(draw_roofline(make_profile([make_section(0, 0, 10**6)], {0: 1e-3})))


def test_names_with_markup_are_escaped_in_the_picture() -> None:
    profile = make_profile([make_section(0, 10**6, 10**5, name="<b>&")], {0: 1e-3})
    ElementTree.fromstring(draw_roofline(profile))


def test_no_label_lies_on_another_or_on_a_dot() -> None:
    generator = torch.Generator().manual_seed(3)
    places = (torch.rand(40, 2, generator=generator) * 300 + 200).tolist()
    dots = [Dot(f"section number {n}", x, y, 4.0 + n % 9) for n, (x, y) in enumerate(places)]
    frame = Rectangle(0, 0, 900, 700)
    labels = place_labels(dots, dots, [], frame)
    assert len(labels) > 25
    for label, other in itertools.combinations(labels, 2):
        assert not label.box.overlaps(other.box)
    assert not any(label.box.overlaps(dot.box) for label in labels for dot in dots)
    assert all(label.box.is_inside(frame) for label in labels)


# -- kernels ---------------------------------------------------------------------------------------------------------


def spec(name: str, dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, dtype, shape, tuple(1 for _ in shape))


def node(name: str, op: str, *args: Argument) -> KernelNode:
    return KernelNode(name, op, args)


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (KernelGraph((spec("x", "float32", 2, 2), spec("w", "float32", 2, 2)),
                     (node("y", "aten.mm.default", Ref("x"), Ref("w")),), ("y",)), "f32"),
        (KernelGraph((spec("x", "float32", 2, 2), spec("w", "float32", 2, 2)),
                     (node("a", "aten.to.dtype", Ref("x"), Special("dtype", "bfloat16")),
                      node("b", "aten.to.dtype", Ref("w"), Special("dtype", "bfloat16")),
                      node("y", "aten.linear.default", Ref("a"), Ref("b"))), ("y",)), "bf16"),
        (KernelGraph((spec("x", "int8", 2, 2), spec("w", "int8", 2, 2)),
                     (node("y", "aten._int_mm.default", Ref("x"), Ref("w")),), ("y",)), "int8"),
        (KernelGraph((spec("x", "bfloat16", 2), spec("i", "int64", 2)),
                     (node("y", "aten.mul.Tensor", Ref("x"), Ref("i")),), ("y",)), "bf16"),
        (KernelGraph((), (), ()), "f32"),
    ],
    ids=["f32", "converted", "int8", "no-product", "empty"],
)  # fmt: skip
def test_a_kernels_limit_is_that_of_the_dtype_its_products_compute_in(kernel: KernelGraph, dtype: str) -> None:
    assert limit_dtype(kernel) == dtype


def test_indices_may_be_random_below_the_smallest_table_and_are_zero_where_anything_else_reads_them() -> None:
    table, ids = spec("t", "float32", 7, 2), spec("i", "int64", 3)
    look_up = KernelGraph(
        (table, ids),
        (
            node("r", "aten.to.dtype", Ref("t"), Special("dtype", "bfloat16")),
            node("v", "aten.view.default", Ref("i"), [3]),
            node("y", "aten.embedding.default", Ref("r"), Ref("v")),
        ),
        ("y",),
    )
    loss = KernelGraph(
        (spec("y", "float32", 3, 2), ids), (node("l", "aten.gather.default", Ref("y"), 1, Ref("i")),), ()
    )
    pef = example_pef()
    first, second = pef.sections
    reads = replace(first, kernel="look_up", inputs=("weight", "x"), outputs=("y",))
    also = replace(second, kernel="loss", inputs=("y", "x"), outputs=())
    kernels = {"look_up": look_up, "loss": loss}
    assert index_bounds(replace(pef, sections=(reads,)), kernels) == {"x": 7}
    assert index_bounds(replace(pef, sections=(reads, also)), kernels) == {}


def test_timed_operators_compute_what_the_generated_kernel_computes_and_are_counted() -> None:
    kernel = next(iter(example_kernels().values()))
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.rand(s.shape, generator=generator) for s in kernel.inputs]
    clock = OperatorClock()
    timed = clock.build(kernel)
    for _ in range(4):
        made = timed(list(inputs), {})
    expected = build_portable(kernel)(list(inputs), {})
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
    pef = example_pef()
    rows = clock.rows(pef, runs=4)
    assert {row.operator for row in rows} == {"t", "addmm", "_to_copy", "mean"}
    assert {row.section for row in rows} == {"linear"}
    assert all(row.calls == 1 for row in rows)
    assert sum(row.share for row in rows) == pytest.approx(1)
    product = next(row for row in rows if row.operator == "addmm")
    assert re.fullmatch(r"2 4×3 3×2", product.shapes)
    assert "4 of 4" in operators_table(rows).title
    clock.reset()
    assert clock.rows(pef, runs=1) == ()

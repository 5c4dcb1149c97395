"""The page of a profile: its verdict, its advice with predicted gains, and its escaping of names that others chose."""

from dataclasses import replace
from typing import Any

import pytest

from rdukit_runtime.engine.machine_limits import MachineLimits
from rdukit_runtime.profile.pef import Bound
from rdukit_runtime.profile.step import ROWS, Breakdown, BreakdownRow
from rdukit_runtime.report.advice import Advice, BoundBy, ProgramVerdict, find_advice, find_verdict
from rdukit_runtime.report.facts import ProgramFacts, SectionFacts
from rdukit_runtime.report.flame import FlameBox
from rdukit_runtime.report.page import MOST_SECTIONS, ReportPage, SourceLine, render_page
from support import shows

pytestmark = shows("profile")

#: 100 GFLOP/s in f32, four times as many in bf16; a call of an operator takes 1 µs.
LIMITS = MachineLimits("processor", 1, 10.0, 8.0, {"f32": 100.0, "bf16": 400.0, "int8": 0.0}, 1e-6)
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def section(number: int = 0, host_ns: int = 1000, **changed: Any) -> SectionFacts:
    values: dict[str, Any] = {
        "pef": 0, "id": number, "name": f"section_{number}", "type": "fwd", "graph": "main", "form": "native",
        "kernel": "k", "rule": "", "runs": 10, "host_ns": host_ns, "emulated_ns": 5, "flops": 8, "bytes": 8,
        "operators": 3, "dtype": "f32", "bound": Bound.MEMORY, "limit_ns": host_ns,
    }  # fmt: skip
    return SectionFacts(**{**values, **changed})


def facts(*sections: SectionFacts, total: int, **changed: Any) -> ProgramFacts:
    """A program with the given sections; further arguments are ns of rows, or fields."""
    spent = dict.fromkeys(ROWS, 0)
    for row in BreakdownRow:
        spent[row] = changed.pop(row.name, 0)
    spent |= {BreakdownRow.TOTAL: total, BreakdownRow.RUN_HW: sum(each.host_ns for each in sections)}
    values: dict[str, Any] = {
        "breakdown": Breakdown(spent, 10, 1), "wall_ns": 10 * total, "sections": sections, "phases": {}, "reads_ns": 0,
        "program_ns": spent[BreakdownRow.SAMBA], "limits": LIMITS, "batch": 8, "mode": "o3", "precision": "f32",
        "line": None,
    }  # fmt: skip
    return ProgramFacts(**{**values, **changed})


@pytest.mark.parametrize(
    ("found", "bound"),
    [
        (facts(section(), total=10_000), BoundBy.HOST),
        (facts(section(0, 9000), section(1, 900), total=10_000), BoundBy.SECTION),
        (facts(section(0, 3000), section(1, 3000), section(2, 3000), total=9500), BoundBy.MEMORY),
        (facts(section(0, 3000, bound=Bound.COMPUTE), total=3001), BoundBy.COMPUTE),
        (facts(section(0, 3000, bound=None, limit_ns=None), total=3001), BoundBy.UNKNOWN),
        (facts(total=0), BoundBy.NOTHING),
    ],
    ids=str,
)
def test_the_verdict_is_the_first_that_holds(found: ProgramFacts, bound: BoundBy) -> None:
    assert find_verdict(found).bound is bound


def test_a_gain_is_the_time_by_what_is_left_of_it() -> None:
    found = facts(section(0, 600_000), total=1_000_000, SAMBA=400_000)
    (advice,) = [each for each in find_advice(found) if "num_workers" in each.change]
    loop = 10 * 4_000  # ten runs, each with four calls of 1 µs around it
    assert advice.gain == pytest.approx(1_000_000 / (600_000 + loop))
    longer = facts(section(0, 200_000), total=1_000_000, SAMBA=800_000)
    (advice,) = [each for each in find_advice(longer) if "num_workers" in each.change]
    loading = (800_000 - loop) / 2
    assert advice.gain == pytest.approx(1_000_000 / loading), "two processes load; runs are too short to hide more"
    assert advice.assumes.endswith(f"before the loop: {1_000_000 / (200_000 + loop):.2f} times as fast")


def test_a_loop_that_only_starts_runs_is_not_taken_for_data_loading() -> None:
    found = find_advice(facts(section(0, 60_000), total=100_000, SAMBA=40_000))
    assert not [each for each in found if "num_workers" in each.change]
    (advice,) = [each for each in found if each.change.startswith("--batch-size")]
    assert advice.gain == pytest.approx(100_000 / (100_000 - 0.75 * (40_000 + 10_000)))


def test_small_copies_begin_as_slowly_whatever_the_batch_and_large_ones_grow_with_it() -> None:
    small = facts(section(0, 60_000), total=100_000, XFER=20_000, CONV_FUNC=20_000, copies=20)
    (advice,) = [each for each in find_advice(small) if each.change.startswith("--batch-size")]
    assert advice.gain == pytest.approx(100_000 / (100_000 - 0.75 * (40_000 + 10_000)))
    large = facts(section(0, 60_000), total=1_000_000, XFER=940_000, copies=10)
    (advice,) = [each for each in find_advice(large) if each.change.startswith("--batch-size")]
    assert advice.gain == pytest.approx(1_000_000 / (1_000_000 - 0.75 * (40_000 + 10_000)))


def test_a_larger_batch_is_advised_by_its_number_and_by_what_it_spreads() -> None:
    found = facts(section(0, 60_000), total=100_000, PYTHON_TO_C=30_000)
    (advice,) = [each for each in find_advice(found) if each.change.startswith("--batch-size")]
    assert advice.change.startswith("--batch-size 32 ")
    fixed = 30_000 + 10_000  # ten runs of one native section: a call of 1 µs each
    assert advice.gain == pytest.approx(100_000 / (100_000 - 0.75 * fixed))


def test_precision_and_mode_are_advised_only_where_they_would_help() -> None:
    products = section(0, 90_000, bound=Bound.COMPUTE, dtype="f32", limit_ns=80_000)
    (advice,) = [each for each in find_advice(facts(products, total=100_000)) if "--precision" in each.change]
    assert advice.change.startswith("--precision bf16")
    assert advice.gain == pytest.approx(100_000 / (100_000 - 90_000 * 0.75))
    slow = replace(LIMITS, gemm={"f32": 400.0, "bf16": 400.0, "int8": 0.0})
    assert not [a for a in find_advice(facts(products, total=100_000, limits=slow)) if "--precision" in a.change]
    disturbed = replace(LIMITS, others_share=0.5)
    assert not [a for a in find_advice(facts(products, total=100_000, limits=disturbed)) if "--precision" in a.change]
    portable = section(0, 90_000, form="portable", operators=5, limit_ns=10_000)
    (advice,) = [a for a in find_advice(facts(portable, total=100_000)) if "RDUKIT_KERNELS" in a.change]
    left = 10_000 + 10_000  # the limit, and ten calls of 1 µs
    assert advice.gain == pytest.approx(100_000 / (10_000 + left))
    product = replace(portable, bound=Bound.COMPUTE)
    (advice,) = [a for a in find_advice(facts(product, total=100_000)) if "RDUKIT_KERNELS" in a.change]
    assert advice.gain == pytest.approx(100 / 60)


def test_weights_are_read_once_a_run_whatever_the_batch_and_half_as_long_in_bf16() -> None:
    found = find_advice(facts(section(0, 100_000, weight_share=0.9), total=100_000))
    gains = {each.change.split()[0]: each.gain for each in found}
    inside = 0.9 * 100_000 + 10_000  # the weights, and ten calls of 1 µs each
    assert gains["--batch-size"] == pytest.approx(100_000 / (100_000 - 0.75 * inside))
    assert gains["--precision"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("precision", "converted", "saved"),
    [("f32", 0, -2_500), ("f32", 5_000, 0), ("bf16", 0, -25_000), ("bf16", 15_000, 5_000)],
)
def test_another_precision_moves_other_bytes_of_the_program_s_tensors(
    precision: str, converted: int, saved: int
) -> None:
    """A copy moves 8 bytes an element in f32 and 4 in bf16, a conversion 6."""
    products = section(0, 90_000, bound=Bound.COMPUTE, dtype=precision, limit_ns=80_000)
    four_times = {"f32": 100.0, "bf16": 400.0} if precision == "f32" else {"f32": 400.0, "bf16": 100.0}
    limits = replace(LIMITS, gemm={**four_times, "int8": 0.0})
    found = facts(
        products, total=200_000, XFER=10_000, CONV_FUNC=converted, precision=precision, limits=limits
    )  # fmt: skip
    (advice,) = [each for each in find_advice(found) if each.change.startswith("--precision")]
    assert advice.gain == pytest.approx(200_000 / (200_000 - 90_000 * 0.75 - saved))


def test_mode_o0_is_advised_against_by_what_o3_would_fuse() -> None:
    chain = [section(number, 10_000) for number in (1, 2, 3)]
    product = section(0, 50_000, bound=Bound.COMPUTE, dtype="bf16")
    found = facts(product, *chain, section(5, 20_000), total=100_000, mode="o0", precision="bf16")
    (advice,) = [each for each in find_advice(found) if each.change.startswith("-o3")]
    assert advice.gain == pytest.approx(100 / 80), "of the chain's three sections the time of one is left"
    assert advice.apply is not None
    assert advice.apply.options == {"optim-level": "o3"}


def test_the_largest_gain_is_first_and_small_ones_are_left_out() -> None:
    gains = [each.gain for each in find_advice(facts(section(0, 60_000), total=100_000, SAMBA=30_000, CONV_FUNC=900))]
    assert gains == sorted(gains, reverse=True)
    assert min(gains) >= 1.02
    assert find_advice(facts(section(0, 1_000_000), total=1_000_001, precision="bf16")) == []


def make_report(sections: int = 1, name: str = HOSTILE) -> ReportPage:
    """A page on which every text from outside is ``name``."""
    found = facts(*(section(n, 1000 - n % 7, name=name, rule=name, graph=name) for n in range(sections)), total=10**6)
    return ReportPage(
        title=name, process="process 1", facts=found, verdict=ProgramVerdict(BoundBy.HOST, name), notes=[name],
        advice=[Advice(name, name, 2.0, name)], account=[("host", name, 1)], pictures=[],
        flame=[FlameBox(name, "python", 0, 0.0, 100.0, name)], flame_left_out=0,
        lines=[SourceLine((name, 3, name), 1, 2, name)], environment=[(name, name)], commands=[name], missing=[name],
    )  # fmt: skip


def test_names_that_others_chose_are_escaped_everywhere() -> None:
    page = render_page(make_report())
    assert "<img src=x" not in page
    assert page.count("<script") == 1
    assert "&lt;script&gt;alert(1)" in page
    assert "script-src &#39;sha256-" in page or "script-src 'sha256-" in page


def test_a_page_of_ten_thousand_sections_is_small_and_says_what_it_left_out() -> None:
    page = render_page(make_report(10_000, "a_section_with_a_name_of_usual_length"))
    assert len(page.encode()) <= 3_000_000
    assert f"{10_000 - MOST_SECTIONS} shorter sections are left out" in page

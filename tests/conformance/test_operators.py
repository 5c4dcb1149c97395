"""The table of torch's operators: it is whole, its page is current, and a part of it is tried here.

All of it is tried by ``make operators``, and by ``make conformance`` a part that changes daily with native kernels.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from opdb import page
from opdb.cases import operator_table
from opdb.compare import Results, State, compare, compare_rounded, is_as_near
from opdb.sweep import Plan, choose_operators, read_records, run_plan
from support import first_short, shows

pytestmark = shows("operators")

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Twelve operators, the same on every day, and some whose arguments are out of the ordinary.
PLAN = Plan(samples=2, modes=("o3",), dtypes=("f32",), count=12, seed=18)
RARE = ("mm", "index_put", "index_fill", "fft.fft", "nn.functional.pad.circular", "linalg.inv", "nonzero", "bernoulli")


@pytest.fixture(scope="module")
def summary() -> page.Summary:
    return page.load((DOCS / "operators.json").read_text())


def test_the_table_has_every_operator_and_none_is_wrong(summary: page.Summary) -> None:
    assert summary.torch == torch.__version__.partition("+")[0]
    assert sorted(summary.operators) == sorted(operator_table())
    assert [name for name, entry in summary.operators.items() if entry.worst in {"wrong", "error"}] == []
    assert [name for name, e in summary.operators.items() if e.worst in {"refused", "host", "some"} and not e.why] == []
    right = [name for name, entry in summary.operators.items() if entry.worst in {"right", "some"}]
    tried = [name for name, entry in summary.operators.items() if entry.worst != "none"]
    assert len(right) >= 0.9 * len(tried)


def test_the_page_is_what_the_data_gives(summary: page.Summary) -> None:
    assert (DOCS / "operators.md").read_text() == page.write(summary)
    assert page.dump(page.load(page.dump(summary))) == page.dump(summary)


@pytest.mark.parametrize("plan", first_short([replace(PLAN, operators=RARE, count=0), PLAN]), ids=["rare", "drawn"])
def test_a_part_of_the_table_holds(plan: Plan, summary: page.Summary, tmp_path: Path) -> None:
    out = tmp_path / "operators.jsonl"
    tried = list(run_plan(plan, out))
    assert {record["operator"] for record in tried} == set(choose_operators(plan, list(operator_table())))
    assert [record for record in tried if record["state"] in {State.WRONG, State.BARE}] == []
    assert len(read_records([out])) == len(tried)
    for name, entry in page.summarise(tried).operators.items():
        for column in ("f32 forward", "f32 gradient"):
            known, found = summary.operators[name].states[column], entry.states[column]
            # fewer samples: what is right for some arguments may be right for these
            assert found in {"none", known, *({"right", "refused"} if known == "some" else set()),
                             *({"refused"} if known == "host" else set())}, (name, column)  # fmt: skip
    assert list(run_plan(plan, out)) == []  # what a file has is not tried again


def test_a_sweep_replaces_what_it_tried_again_and_leaves_the_rest() -> None:
    def record(operator: str, mode: str, state: str, sample: int = 0, **more: object) -> dict[str, object]:
        case = {"operator": operator, "sample": sample, "mode": mode, "dtype": "f32", "training": False}
        return {**case, "host_fallback": False, "state": state, "code": "", "text": f"{state} in {mode}", **more}

    tried = [("a", "o0", "wrong", 0), ("a", "o0", "right", 1), ("a", "o3", "refused", 0), ("b", "o3", "right", 0)]
    once = page.summarise([record(*case) for case in tried])
    assert once.operators["a"].counts == {"f32 O0 forward": {"right": 1, "wrong": 1}, "f32 O3 forward": {"refused": 1}}
    assert (once.operators["a"].worst, once.operators["a"].why) == ("wrong", "wrong in o0")
    again = page.summarise([record("a", "o0", "right"), record("c", "o0", "bare")])
    mended = page.merge(page.load(page.dump(once)), again)
    assert mended.cases == {"f32 O0": 2, "f32 O3": 2}
    found = {name: (entry.worst, entry.why) for name, entry in mended.operators.items()}
    assert found == {"a": ("some", "refused in o3"), "b": ("right", ""), "c": ("error", "bare in o0")}
    natively = page.merge(mended, page.summarise([record("b", "o3", "wrong", kernels="native")]))
    assert natively.operators["b"].counts == {"f32 O3 forward": {"right": 1}, "f32 O3 native forward": {"wrong": 1}}
    assert natively.operators["b"].worst == "wrong"
    skipped = page.merge(mended, page.summarise([record("c", "o0", "skipped")]))
    assert page.load(page.dump(skipped)).operators["c"].worst == "none"
    assert page.merge(page.Summary("0", mended.operators), once) == once  # another torch


def test_the_comparison_finds_what_is_wrong() -> None:
    x, none = torch.linspace(-1, 1, 12).reshape(3, 4), Results([], [])
    right = Results([x], [x, None])
    assert compare(right, right).state is State.RIGHT
    assert compare(Results([x], [x, torch.zeros(2)]), right).state is State.RIGHT
    assert compare(Results([x], [x, torch.ones(2)]), right).state is State.WRONG
    assert compare(Results([x], [x + 1e-3, None]), right).state is State.WRONG
    assert compare(Results([x + 1e-3], [x, None]), right).state is State.WRONG
    assert compare(Results([x.double()], [x, None]), right).state is State.WRONG
    assert compare(none, right).state is State.WRONG
    exact = Results([x.double() + 1e-3], [x.double(), None])
    assert is_as_near(Results([x + 1e-3], [x, None]), right, exact)  # torch's own f32 is further off
    assert not is_as_near(Results([x + 3e-3], [x, None]), right, exact)
    assert not is_as_near(Results([x * torch.nan], [x, None]), right, exact)
    assert not is_as_near(Results([x[:1] + 1e-3], [x, None]), right, exact)
    assert not is_as_near(Results([x + 1e-3], [x, torch.ones(2)]), right, exact)
    near, far = Results([x.bfloat16().float()], [x, None]), Results([x * 1.1], [x, None])
    assert compare_rounded(near, right, None).state is State.RIGHT
    assert compare_rounded(far, right, None).state is State.WRONG
    assert compare_rounded(Results([x.where(x < 1, torch.nan)], [x, None]), right, None).state is State.WRONG
    assert compare_rounded(far, right, far).state is State.RIGHT  # torch's own bf16 is no nearer

"""What public reports say that torch's code generator computes wrongly is right natively, and the manual lists it."""

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F

from rdukit.pef.units import Outcome, Unit
from rdukit_runtime.check.judge import Side, judge
from support import shows
from support.built_kernels import Built, agree, build
from support.upstream_reports import REPORTS, number_of, numbers, whole

pytestmark = [
    shows("native", "upstream-reports"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
    pytest.mark.timeout(3600),  # the first case builds the functions of all, on a busy machine, too
]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "upstream-reports.md"
#: A part that shows the most kinds; the rest are built in the long tier.
SHORT = ("198201", "196681 sum", "191499 min uint8", "183901", "183986 index_put", "180771")
#: Reports of a zero's sign, or of numbers near zero: each number is compared by itself.
BY_ITSELF = ("194347", "189799", "189801", "183606", "186281", "161944", "198133", "197895", "126848")
#: Largest difference over the largest number, by dtype: f32 as the kernel check has it, of narrow ones one last bit.
NEAR = {torch.float32: 4e-6, torch.float64: 1e-12, torch.bfloat16: 8e-3, torch.float16: 1e-3}
PLACES: Final = torch.tensor([1, 0, 4, 2])
BELOW: Final = torch.tensor([1, -2, 0, 2])
BEYOND: Final = torch.tensor([1, 0, 9, 2])
#: Functions of two arguments, what they take, and a second argument that torch refuses.
REFUSALS: Final[Mapping[str, tuple[Callable[..., Any], list[torch.Tensor], torch.Tensor]]] = {
    "193757": (F.binary_cross_entropy, [numbers(4, 4).sigmoid(), numbers(4, 4).sigmoid()], torch.full((4, 4), 1.5)),
    "183608": (lambda w, i: F.embedding(i, w), [numbers(5, 4), PLACES], BELOW),
    "197554 index_select": (lambda x, i: x.index_select(0, i), [numbers(5, 4), PLACES], BELOW),
    "197554 index_add": (lambda x, i: x.index_add(0, i, x[:4]), [numbers(5, 4), PLACES], BELOW),
    "197554 index_copy": (lambda x, i: x.index_copy(0, i, x[:4]), [numbers(5, 4), PLACES], BELOW),
    "197554 scatter_add": (
        lambda x, i: x.scatter_add(0, i.unsqueeze(1).expand(4, 4), x[:4]),
        [numbers(5, 4), PLACES],
        BEYOND,
    ),
    "197554 gather": (lambda x, i: x.gather(0, i.unsqueeze(1).expand(4, 4)), [numbers(5, 4), PLACES], BEYOND),
    "197554 cross_entropy": (F.cross_entropy, [numbers(4, 5), PLACES], BEYOND),
    "178013": (torch.floor_divide, [whole(4), PLACES + 1], PLACES * 0),
    "154420": (torch.remainder, [whole(4), PLACES + 1], PLACES * 0),
    "178013 trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), [whole(4), PLACES + 1], PLACES * 0),
}


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> dict[str, Built]:
    """Build the cases that run, in one batch."""
    named = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    return build({name: REPORTS[name] for name in dict.fromkeys(named) if name in REPORTS})


def one_by_one(name: str) -> list[torch.Tensor]:
    """Torch's results of an element-wise function, with each element by itself."""
    function, (given,) = REPORTS[name]
    return [torch.cat(parts) for parts in zip(*(function(each) for each in given.split(1)), strict=True)]


def is_near(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether NaN and infinity stand at the same places, and the rest differs by rounding."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape or not ours.is_floating_point():
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    finite = theirs.isfinite()
    same = torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours[theirs.isinf()], theirs[theirs.isinf()])
    size = theirs[finite].double().abs().max() if bool(finite.any()) else 0
    return same and bool(((ours - theirs)[finite].double().abs() <= NEAR[theirs.dtype] * size).all())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in REPORTS]
)
def test_a_reported_function_is_torchs(built: dict[str, Built], name: str) -> None:
    native, portable = built[name].results()
    compare = agree if number_of(name) in BY_ITSELF else is_near
    assert len(native) == len(portable)
    alone = one_by_one(name) if name.startswith("gradient of") else portable
    for ours, theirs, other in zip(native, portable, alone, strict=True):
        # torch's own answer may depend on the number of elements, as that of gelu at infinity: either is right.
        either = torch.where(ours.isinf() & (ours == other), other, theirs)
        assert compare(ours, either), (ours, theirs)


@pytest.fixture(scope="module")
def refusing() -> dict[str, Built]:
    """Build the functions that refuse some of their arguments."""
    return build({name: (function, given) for name, (function, given, _) in REFUSALS.items()})


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSALS)
def test_arguments_that_torch_refuses_are_refused_natively(refusing: dict[str, Built], name: str) -> None:
    case, wrong = refusing[name], REFUSALS[name][2]
    native, portable = case.results()
    assert all(is_near(ours, theirs) for ours, theirs in zip(native, portable, strict=True))
    for form in (case.native, case.portable):
        with pytest.raises(Exception, match=r"(?s)."):
            form((case.inputs[0].clone(), wrong), {})


@pytest.mark.long
@pytest.mark.parametrize("name", REPORTS)
def test_the_kernel_check_refuses_none_of_them(built: dict[str, Built], name: str) -> None:
    case = built[name]
    verdict = judge(Unit(case.graph), Side(case.native, None))
    assert verdict.outcome is not Outcome.REFUSED, verdict.reason


def test_the_manual_lists_the_reports_that_are_tried() -> None:
    tried = {number_of(name) for name in (*REPORTS, *REFUSALS)} - {""}
    assert tried <= set(re.findall(r"\b\d{5,6}\b", PAGE.read_text()))

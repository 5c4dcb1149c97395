"""Maximum pooling is torch's natively, values, places and gradient, at the size of window where another kernel takes
over: windows of up to 25 elements are written out, torch's kernel pools larger ones.

Values and places are equal. A gradient is a sum of up to 27 numbers near one, in another order: 3e-6.
"""

import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support import shows
from support.built_kernels import Built, Call, build, with_gradient

pytestmark = [
    shows("native", "native-kernels"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
]

NAN, INF = float("nan"), float("inf")


def numbers(*shape: int) -> torch.Tensor:
    """Numbers with ties, several NaN in a window, and infinite ones."""
    made = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1)).float()
    flat = made.view(-1)
    flat[::11], flat[5::17], flat[7::19] = NAN, -INF, INF
    return made


def pooled(pool: Any, window: Any, step: int, pad: int) -> Any:
    return with_gradient(lambda x: pool(x, window, step, pad, return_indices=True)[0])


def places(pool: Any, window: Any, step: int, pad: int) -> Any:
    return lambda x: pool(x, window, step, pad, return_indices=True)


WINDOWS: dict[str, tuple[Any, Any, int, int, torch.Tensor]] = {
    "25 elements": (F.max_pool2d, 5, 2, 2, numbers(1, 2, 9, 10)),
    "25 elements in a line": (F.max_pool1d, 25, 3, 4, numbers(2, 2, 40)),
    "26 elements": (F.max_pool2d, (2, 13), 2, 1, numbers(1, 2, 6, 19)),
    "27 elements of a room": (F.max_pool3d, 3, 1, 1, numbers(1, 2, 4, 5, 6)),
}
CALLS: dict[str, Call] = {
    **{f"{name}, gradient": (pooled(*case[:4]), [case[4]]) for name, case in WINDOWS.items()},
    **{f"{name}, places": (places(*case[:4]), [case[4]]) for name, case in WINDOWS.items()},
}


@pytest.fixture(scope="module")
def built() -> dict[str, Built]:
    """All functions, built in one batch."""
    return build(CALLS)


@pytest.mark.parametrize("name", list(CALLS))
def test_a_pool_is_torchs(built: dict[str, Built], name: str) -> None:
    native, portable = built[name].results()
    for ours, theirs in zip(native, portable, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=3e-6 if theirs.is_floating_point() else 0, equal_nan=True)

"""What people read about which kernels run."""

import pytest

from rdukit_runtime.application import tell_kernels
from support import shows

pytestmark = shows("native", "portable")


@pytest.mark.parametrize(
    ("native", "total", "words"),
    [
        (3, 3, "native: all 3"),
        (2, 3, "native: 2 of 3; the other libraries have no native form or failed to build"),
        (0, 3, "portable: they run on cuda"),
    ],
)
def test_it_is_told_which_kernels_run_and_why_none_is_native(native: int, total: int, words: str) -> None:
    assert tell_kernels(native, total, "they run on cuda") == words

"""Wait for what another process does, by looking again and again."""

import time
from collections.abc import Callable
from typing import Final

_PAUSE_S: Final = 0.01


def wait_until(happened: Callable[[], bool], timeout_s: float = 120.0, what: str = "what was waited for") -> float:
    """Look until ``happened``; returns the seconds waited.

    Raises:
        AssertionError: not within ``timeout_s``; says ``what``.
    """
    start = time.monotonic()
    while not happened():
        assert time.monotonic() - start < timeout_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(_PAUSE_S)
    return time.monotonic() - start

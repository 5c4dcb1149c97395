"""Progress of a compile: the current step, its place among all, and the seconds until it ends."""

import threading
import time
from collections.abc import Callable
from typing import Final

from rdukit_modelbox.verbs.context import Progress, VerbContext

#: Steps of a compile in order, by the compiler's names; a compile skips those that its PEF does not need.
STEPS: Final = (
    "building the model", "dtypes", "cutting sections", "sections", "kernels", "kernels checked", "writing the PEF",
)  # fmt: skip
BUILD: Final = STEPS[0]


def describe_step(what: str) -> str:
    """Name a step and its place among all; other names are returned unchanged (pure).

    >>> describe_step("sections of gpt2")
    'step 4 of 7: sections of gpt2'
    """
    for number, name in enumerate(STEPS, 1):
        if what == name or what.startswith(f"{name} of "):
            return f"step {number} of {len(STEPS)}: {what}"
    return what


def remaining_s(elapsed_s: float, done: int, total: int) -> float | None:
    """Estimate the seconds until a step ends, as if each item took equally long; ``None``: no item is done (pure)."""
    return elapsed_s / done * (total - done) if 0 < done < total else None


class CompileProgress:
    """Follower of one compile that passes on each step, count and estimate to a verb's context."""

    def __init__(self, context: VerbContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context, self._clock = context, clock
        self._lock = threading.Lock()
        self._what, self._done, self._began = "", 0, 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Pass on that ``done`` of ``total`` items of a step are ready; 0 of 0: the step counts nothing."""
        with self._lock:
            if what != self._what:
                self._what, self._done, self._began = what, 0, self._clock()
            elif done < self._done:  # an older count, from a slower thread
                return
            self._done = done
            left_s = remaining_s(self._clock() - self._began, done, total)
            self._context.progress(Progress(describe_step(what), done, total, eta_s=left_s))

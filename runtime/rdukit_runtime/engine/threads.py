"""The number of threads of a run: the lease's cores, or one if more would only wait.

torch's count belongs to the program: a run borrows it and restores it, so the program's own computations between runs
are unaffected. Source: ours; that an application has the cores of its tiles: runtime reference 3.2.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch

from rdukit.pef.model import Cost
from rdukit.settings import resolve
from rdukit.system.cpu import bound_cores, usable_cores
from rdukit_runtime.settings import ENGINE_THREADS

#: Work that one core of a modest machine does in a second, to distinguish small sections from large ones. Only the
#: order of magnitude matters: faster cores also have faster barriers.
_FLOPS: Final = 50e9
_BYTES: Final = 10e9
#: Least host time of a section that gains from several threads. Each operator of a shorter section takes a few
#: microseconds, and waking a thread costs about as much.
_LARGE_S: Final = 200e-6
#: Variables by which programs choose a number of threads for the libraries under torch, and so for torch.
_CHOICES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def gains_from_threads(costs: Iterable[Cost]) -> bool:
    """Return whether at least half of the time is spent in sections large enough for several threads. Pure.

    FLOPs and bytes decide whether a section is large, equally on all machines, so that a program always runs the same
    way.
    """
    small = large = 0.0
    for cost in costs:
        seconds = max(cost.flops / _FLOPS, (cost.bytes_in + cost.bytes_weights + cost.bytes_out) / _BYTES)
        if seconds >= _LARGE_S:
            large += seconds
        else:
            small += seconds
    return large > 0 and large >= small


def max_threads(current: int, leased: int, setting: int, usable: int, *, is_chosen: bool) -> int:
    """Return the most threads that a run may have. Pure.

    Args:
        current: torch's setting. leased: cores of the lease. setting: value of ``engine.threads``; 0: not set.
        usable: cores whose time the process may use. is_chosen: the program, or its starter, chose ``current``.
    """
    if setting > 0:
        return min(setting, usable)
    return current if is_chosen else max(1, min(current, leased, usable))


def is_chosen_count(current: int, environ: Mapping[str, str], machine_cores: int, bound: int) -> bool:
    """Return whether torch's number of threads is somebody's choice rather than its default. Pure.

    torch's default is all cores that the process is bound to, or half of them if cores run two hardware threads each.
    An equal choice matters only on a lease of fewer cores; ``engine.threads`` states it unmistakably.
    """
    if any(environ.get(name, "").strip() for name in _CHOICES):
        return True
    return current not in {cores for count in (machine_cores, bound) for cores in (count, max(1, count // 2))}


class LeasedThreads:
    """Sets torch's threads for the time of a run. ``begin`` and ``end`` cost well under a microsecond together."""

    def __init__(self, leased: int) -> None:
        """``leased``: cores of the lease."""
        self._leased = leased
        self._setting = resolve(ENGINE_THREADS)
        self._usable = usable_cores()
        self._machine, self._bound = os.cpu_count() or self._usable, bound_cores()
        #: torch's count → the most threads for it: a program rarely has more than one.
        self._most: dict[int, int] = {}

    @property
    def most(self) -> int:
        """The most threads that a run has now."""
        return self._most_of(torch.get_num_threads())

    def begin(self, gains: bool) -> int:
        """Set the threads of a run; returns what ``end`` takes.

        Args:
            gains: whether the run is one that gains from several threads.
        """
        former = torch.get_num_threads()
        wanted = self._most_of(former) if gains else 1
        if wanted != former:
            torch.set_num_threads(wanted)
        return former

    def end(self, former: int) -> None:
        """Restore the program's own number of threads."""
        if torch.get_num_threads() != former:
            torch.set_num_threads(former)

    def _most_of(self, current: int) -> int:
        found = self._most.get(current)
        if found is None:
            is_chosen = is_chosen_count(current, os.environ, self._machine, self._bound)
            found = max_threads(current, self._leased, self._setting, self._usable, is_chosen=is_chosen)
            self._most[current] = found
        return found


def in_one_thread(called: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``called``, limited to one thread regardless of the run's number."""

    def run(*args: Any, **kwargs: Any) -> Any:
        threads = torch.get_num_threads()
        if threads == 1:
            return called(*args, **kwargs)
        torch.set_num_threads(1)
        try:
            return called(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return run

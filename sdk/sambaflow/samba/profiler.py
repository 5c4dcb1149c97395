"""Profiler: named events of a program, measured on the host's clock. Source: SDK reference 14.2."""

import functools
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from rdukit.errors import InvalidArgument


class Event:
    """Next occurrence of a named event: ``with profiler.event('fwd'):``, or ``@profiler.event('fwd')``."""

    def __init__(self, profiler: "Profiler", name: str) -> None:
        self._profiler, self._name = profiler, name
        self._handles: list[int] = []

    def __enter__(self) -> "Event":
        self._handles.append(self._profiler.start_event(self._name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profiler.end_event(self._handles.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            with Event(self._profiler, self._name):
                return function(*args, **kwargs)

        return measured


class Profiler:
    """Collects the seconds of named events. Events are recorded even without ``start_profile``."""

    def __init__(self) -> None:
        #: Seconds of ended events by name, in order of their ends.
        self._seconds: dict[str, list[float]] = {}
        #: Handle → name and start of a running event.
        self._open: dict[int, tuple[str, float]] = {}
        self._next = 0
        self._began: float | None = None
        self.profile_seconds = 0.0

    def start_profile(self) -> None:
        """Clear earlier events and start the overall clock."""
        self._seconds.clear()
        self._open.clear()
        self._began, self.profile_seconds = time.perf_counter(), 0.0

    def stop_profile(self) -> None:
        """Stop the overall clock; measurements stay readable."""
        if self._began is not None:
            self.profile_seconds, self._began = time.perf_counter() - self._began, None

    def start_event(self, name: str) -> int:
        """Begin an event; return the handle for ``end_event``. Events may nest and overlap."""
        self._next += 1
        self._open[self._next] = (name, time.perf_counter())
        return self._next

    def end_event(self, handle: int) -> None:
        """End an event.

        Raises:
            InvalidArgument: no event with this handle is running.
        """
        if handle not in self._open:
            raise InvalidArgument(f"no running event has handle {handle!r}; pass each handle from start_event once")
        name, began = self._open.pop(handle)
        self._seconds.setdefault(name, []).append(time.perf_counter() - began)

    def event(self, name: str) -> Event:
        """Return a decorator and context manager around one event."""
        return Event(self, name)

    def get_latencies(self, names: Iterable[str], skip: int = 0) -> dict[str, float]:
        """Return the mean seconds of each event without the first ``skip`` occurrences; 0 if none is left."""
        return {name: _mean(self._seconds.get(name, [])[skip:]) for name in names}

    def get_throughputs(self, names: Iterable[str], batch: int = 1, skip: int = 0) -> dict[str, float]:
        """Return samples a second: ``batch`` over the mean seconds."""
        return {n: batch / s if s else 0.0 for n, s in self.get_latencies(names, skip).items()}

    def _get_iter_times(self, name: str, i: int = 0) -> list[float]:
        """Return the seconds of each occurrence from number ``i`` on."""
        return self._seconds.get(name, [])[i:]

    def print_statistics(
        self, keys: Iterable[str] | None = None, warmup: int = 0, num_samples_per_iter: int = 1,
        measurements: Iterable[str] = ("latency", "throughput"), **accepted: Any,
    ) -> str:  # fmt: skip
        """Print, and return, one line per event."""
        names, wanted = list(keys if keys is not None else self._seconds), set(measurements)
        lines = []
        for name in names:
            seconds = self._get_iter_times(name, warmup)
            line = f"{name}: count {len(seconds)}"
            if not wanted or any("laten" in word for word in wanted):
                line += f", latency {_mean(seconds):.6f} s"
            if not wanted or any("through" in word for word in wanted):
                mean = _mean(seconds)
                line += f", throughput {num_samples_per_iter / mean if mean else 0.0:.4f} samples/s"
            lines.append(line)
        text = "\n".join(lines)
        print(text)
        return text


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0

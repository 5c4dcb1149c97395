"""Small interfaces that all parts share: the clock, which is passed in, and objects with ``close``."""

import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol, Self


class Clock(Protocol):
    """A source of time. Tests pass ``support.FakeClock``."""

    def now(self) -> float:
        """Return the seconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease; only differences have a meaning."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Closable(ABC):
    """A base of classes with ``close``: a ``with`` block closes them at its end."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release everything; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""A clock that moves only when told."""


class FakeClock:
    """``Clock`` whose time stands still; ``sleep`` and ``advance`` move it, ``step`` sets its wall clock alone."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._offset = 0.0

    def now(self) -> float:
        return self._now + self._offset

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def step(self, seconds: float) -> None:
        self._offset += seconds

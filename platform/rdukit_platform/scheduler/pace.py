"""Whether silence means death: not while this host itself stood still, or its clock jumped."""

from rdukit.interfaces import Clock


class Pace:
    """Notes each pass of the scheduler, and how far the clocks went since the one before.

    A worker beats several times within its lease. Where the scheduler, which works as often, was held up for half of
    one, so were the workers: on a host that is overloaded, was suspended, or had its clock set. Then they get a lease's
    time to beat before any is taken for dead.
    """

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock, self._lease_s = clock, lease_s
        self._steady, self._wall = clock.monotonic(), clock.now()
        self._disturbed_at = float("-inf")

    def note(self) -> None:
        """A pass begins."""
        steady, wall = self._clock.monotonic(), self._clock.now()
        passed, jumped = steady - self._steady, abs((wall - self._wall) - (steady - self._steady))
        if max(passed, jumped) > self._lease_s / 2:
            self._disturbed_at = steady
        self._steady, self._wall = steady, wall

    def is_steady(self) -> bool:
        """Nothing was noticed within a lease's time."""
        return self._clock.monotonic() - self._disturbed_at > self._lease_s

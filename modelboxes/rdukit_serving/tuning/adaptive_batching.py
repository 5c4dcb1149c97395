"""The number of callers to wait for before a call of the device begins, learned from whether waiting brought anyone.

Pure.

Two kinds of callers are worth it. Callers that were answered together return together; a call that begins without them
makes them wait for a complete call. So a share of the last call's time is spent waiting for them. If the box is busy,
as on one core, requests trickle in one by one, and a call for each would slow all of them. So the policy waits for them
while the box is busy.

The number of callers is unknown, so the policy probes: now and then it waits for one more than came last time. An idle
box shows that there are no more callers; a lone caller pays a millisecond in a thousand requests for that.
"""

from typing import Final

#: Seconds between two looks; timers of event loops are no finer.
LOOK_S: Final = 0.001
#: Longest wait, as a fraction of the last call's duration, and in seconds.
SHARE: Final = 0.25
MAX_SHARE_S: Final = 0.05
#: Calls below this are quick.
QUICK_S: Final = 0.0005
#: The longest wait for requests that trickle in, and the share of processor time to wall time that is busy.
MAX_TRICKLE_S: Final = 0.015
BUSY: Final = 0.75
#: Calls between two tries with one more caller: few while tries succeed, some while they fail, many with a lone caller.
FEW: Final = 4
SOME: Final = 256
MANY: Final = 1024
#: Waits that went well, after which one in vain is forgiven.
TRUSTED: Final = 16


class BatchDelayPolicy:
    """Waits that one model version has learned. ``now`` and ``worked``: seconds of clock and processor."""

    def __init__(self) -> None:
        #: Number of callers to wait for; 1: no wait.
        self.expected = 1
        self._tries_every = self._until_try = FEW
        self._is_trying = False
        self._share_s = 0.0
        #: Begin of the present wait, time of the last look at it, and processor time then.
        self._began = self._looked = self._worked = 0.0
        self._has_waited = self._has_given_up = False
        #: Number of consecutive waits that brought as many requests as expected.
        self._good = 0

    @property
    def is_immediate(self) -> bool:
        """Return whether a lone caller's request goes without a wait: a call in vain would take no time."""
        return self.expected == 1 and 0 < self._share_s < QUICK_S * SHARE

    def is_worth_waiting(self, waiting: int) -> bool:
        """Return whether more than the ``waiting`` are expected."""
        return 0 < waiting < self.expected

    def begin(self, now: float, worked: float) -> float:
        """Begin a wait; return seconds to the next check."""
        self._began = self._looked = now
        self._worked = worked
        self._has_waited, self._has_given_up = True, False
        return max(LOOK_S, self._share_s)

    def left(self, now: float, worked: float) -> float:
        """Return seconds to the next check; 0: the wait is over."""
        is_busy = worked - self._worked > BUSY * (now - self._looked)
        self._looked, self._worked = now, worked
        self._has_given_up = not is_busy or now - self._began > MAX_TRICKLE_S
        return 0.0 if self._has_given_up else LOOK_S

    def end(self, waiting: int) -> None:
        """Begin a call with ``waiting`` requests; 0: no call begins."""
        has_waited, has_given_up = self._has_waited, self._has_given_up
        self._has_waited = self._has_given_up = False
        if waiting >= self.expected:
            if has_waited:
                self._good += 1
            if self._is_trying and has_waited:
                self._is_trying, self._tries_every = False, FEW
            if not self._is_trying:
                self._until_try -= 1
                if self._until_try <= 0:
                    self._is_trying = True
                    self.expected += 1
        elif has_given_up:
            if not self._is_trying and self._good >= TRUSTED:
                self._good = 0  # once, the box may have been held up
                return
            if self._is_trying:
                self._tries_every = min(MANY if waiting <= 1 else SOME, 2 * self._tries_every)
            self._is_trying, self._until_try, self._good = False, self._tries_every, 0
            self.expected = max(1, waiting)

    def answered(self, answered: int, waiting: int, call_s: float) -> None:
        """Learn from a call of ``call_s`` seconds that answered this many requests while others wait.

        After a long call, all its callers are expected back at once. After a short call, a wait in vain would cost more
        than the call: the number of callers is learned by trying.
        """
        self._share_s = min(MAX_SHARE_S, SHARE * call_s)
        if answered > 1 and self._share_s > LOOK_S / 2:
            self.expected = max(self.expected, answered + waiting)


class FixedDelay(BatchDelayPolicy):
    """The same wait for every batch with room, from the time when the device is free; 0: no wait."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self._delay_s = delay_s

    @property
    def is_immediate(self) -> bool:
        """Return whether nothing is waited for."""
        return self._delay_s <= 0

    def is_worth_waiting(self, waiting: int) -> bool:
        """Return whether a batch with ``waiting`` requests waits for more."""
        return waiting > 0 and self._delay_s > 0

    def begin(self, now: float, worked: float) -> float:
        """Return the wait in seconds."""
        return self._delay_s

    def left(self, now: float, worked: float) -> float:
        """Return 0: the wait is over."""
        return 0.0

    def end(self, waiting: int) -> None:
        """Do nothing: the wait is fixed."""

    def answered(self, answered: int, waiting: int, call_s: float) -> None:
        """Do nothing: the wait does not depend on calls."""


def make_delay_policy(max_queue_delay_us: int) -> BatchDelayPolicy:
    """Return the policy of a setting: -1 learns from the callers, any other value is a fixed wait."""
    return BatchDelayPolicy() if max_queue_delay_us < 0 else FixedDelay(max_queue_delay_us / 1e6)

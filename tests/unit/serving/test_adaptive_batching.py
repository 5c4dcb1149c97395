"""How many callers are waited for: learned from who came, at next to no cost for a lone one."""

from typing import Any, cast

import pytest

from rdukit_serving.batching import Batcher
from rdukit_serving.models.statistics import ModelStatistics
from rdukit_serving.tuning.adaptive_batching import LOOK_S, MANY, MAX_TRICKLE_S, BatchDelayPolicy, make_delay_policy
from rdukit_serving.tuning.fast_path import FastPath
from support import shows

pytestmark = shows("inference", "settings")

QUICK_S = 0.0001


class Box:
    """A box with so many callers, who come back ``gap_s`` after one another, on a clock of its own."""

    def __init__(self, callers: int, gap_s: float, is_busy: bool) -> None:
        self.gathering = BatchDelayPolicy()
        self.callers, self.gap_s, self.is_busy = callers, gap_s, is_busy
        self.now = self.waited = 0.0

    def call(self, call_s: float = QUICK_S) -> int:
        """One call of the device; returns how many went with it."""
        self.now += self.gap_s
        waiting = 1
        if self.gathering.is_worth_waiting(waiting):
            began = self.now
            left = self.gathering.begin(self.now, self.work())
            look = self.now + left
            while left and self.gathering.is_worth_waiting(waiting):
                if waiting < self.callers and self.now + self.gap_s <= look:
                    self.now += self.gap_s
                    waiting += 1
                else:
                    self.now = look
                    left = self.gathering.left(self.now, self.work())
                    look = self.now + left
            self.waited += self.now - began
        self.gathering.end(waiting)
        self.gathering.answered(waiting, 0, call_s)
        self.gathering.end(0)  # nobody waits yet
        return waiting

    def work(self) -> float:
        """Processor time so far."""
        return self.now if self.is_busy else 0.0


def test_a_lone_caller_pays_a_millisecond_in_a_thousand_requests() -> None:
    box = Box(1, 0.0005, is_busy=False)
    sizes = [box.call() for _ in range(10_000)]
    assert set(sizes) == {1}
    assert box.waited < 2 * LOOK_S * (10_000 / MANY + 10)


def test_callers_who_trickle_into_a_busy_box_are_gathered() -> None:
    box = Box(8, 0.0003, is_busy=True)
    sizes = [box.call() for _ in range(400)]
    assert sizes[-50:].count(8) > 40


def test_callers_who_join_a_lone_one_are_found_within_a_thousand_requests() -> None:
    box = Box(1, 0.0005, is_busy=False)
    for _ in range(5000):
        box.call()
    box.callers, box.gap_s, box.is_busy = 8, 0.0003, True
    sizes = [box.call() for _ in range(MANY + 100)]
    assert sizes[-50:].count(8) > 40


def test_a_busy_box_gathers_for_a_bounded_time() -> None:
    box = Box(1000, 0.0009, is_busy=True)
    assert max(box.call() for _ in range(2000)) <= (MAX_TRICKLE_S + LOOK_S) / box.gap_s + 1


def test_callers_who_left_are_waited_for_once() -> None:
    box = Box(8, 0.0003, is_busy=True)
    for _ in range(400):
        box.call()
    box.callers, box.is_busy, box.waited = 1, False, 0.0
    sizes = [box.call() for _ in range(50)]
    assert sizes == [1] * 50
    assert box.waited < 6 * LOOK_S


def test_callers_who_meet_by_chance_on_an_idle_box_are_seldom_held() -> None:
    gathering, waited = BatchDelayPolicy(), 0.0
    for number in range(3000):
        waiting = 2 if number % 3 == 0 else 1
        if gathering.is_worth_waiting(waiting):
            waited += gathering.begin(0.0, 0.0)
            assert gathering.left(LOOK_S, 0.0) == 0.0
        gathering.end(waiting)
        gathering.answered(waiting, 0, QUICK_S)
    assert waited < 0.1 * 3000 * LOOK_S


def test_an_idle_box_waits_a_share_of_a_long_call() -> None:
    gathering = BatchDelayPolicy()
    gathering.answered(4, 0, 0.2)
    assert gathering.is_worth_waiting(3)
    assert not gathering.is_worth_waiting(4)
    assert gathering.begin(10.0, 1.0) == 0.05
    assert gathering.left(10.05, 1.0) == 0.0
    gathering.end(2)
    assert gathering.expected == 2


def test_a_fixed_delay_is_waited_for_by_every_batch_with_room_and_nothing_is_learned() -> None:
    fixed = make_delay_policy(2000)
    assert fixed.begin(0.0, 0.0) == 0.002
    assert fixed.left(0.002, 0.0) == 0.0
    for _ in range(100):
        fixed.answered(8, 8, 0.01)
        fixed.end(1)
    assert fixed.begin(0.0, 0.0) == 0.002
    assert fixed.is_worth_waiting(1)
    assert not fixed.is_worth_waiting(0)


def test_no_delay_sends_every_request_at_once() -> None:
    none = make_delay_policy(0)
    assert none.is_immediate
    assert not none.is_worth_waiting(1)


async def test_the_setting_chooses_the_delay_of_a_batcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(Batcher(ModelStatistics(), 10)._delay) is BatchDelayPolicy
    monkeypatch.setenv("RDUKIT_BOX_MAX_QUEUE_DELAY_US", "2000")
    assert Batcher(ModelStatistics(), 10)._delay.begin(0.0, 0.0) == 0.002


def test_the_fast_path_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers() -> bool:
        fast_path = FastPath(cast(Any, None), cast(Any, None))
        fast_path.remember(b"/v2/models/mlp/infer", "mlp", "1")
        return fast_path.cycle(None, b"/v2/models/mlp/infer", True) is not None

    assert answers()
    monkeypatch.setenv("RDUKIT_BOX_FAST_PATH", "false")
    assert not answers()

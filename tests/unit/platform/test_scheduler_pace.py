"""When the scheduler takes a silent worker for dead, and when it looks to its own clock first."""

from rdukit_platform.scheduler.loop import ClockWatch
from support import FakeClock

LEASE_S = 8.0


def work(pace: ClockWatch, clock: FakeClock, seconds: float) -> None:
    """Passes every half second."""
    for _ in range(int(seconds * 2)):
        clock.sleep(0.5)
        pace.note()


def test_a_scheduler_that_works_steadily_may_take_workers_for_dead() -> None:
    clock = FakeClock()
    pace = ClockWatch(clock, LEASE_S)
    work(pace, clock, 20)
    assert pace.is_steady()


def test_after_it_stood_still_workers_get_a_lease_s_time_to_beat() -> None:
    clock = FakeClock()
    pace = ClockWatch(clock, LEASE_S)
    work(pace, clock, 20)
    clock.sleep(60)
    pace.note()
    assert not pace.is_steady()
    work(pace, clock, LEASE_S)
    assert not pace.is_steady()
    work(pace, clock, 1)
    assert pace.is_steady()


def test_a_clock_that_is_set_is_no_silence() -> None:
    clock = FakeClock()
    pace = ClockWatch(clock, LEASE_S)
    work(pace, clock, 20)
    clock.step(3600)
    work(pace, clock, 1)
    assert not pace.is_steady()
    work(pace, clock, LEASE_S)
    assert pace.is_steady()

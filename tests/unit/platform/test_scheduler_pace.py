"""When the scheduler takes a silent worker for dead: by its own steady clock, whatever wall clocks say."""

from rdukit_platform.nodes.registry import LAPSED
from rdukit_platform.scheduler.loop import LeaseWatch
from rdukit_platform.scheduler.watches import AgeWatch
from support import FakeClock, shows

pytestmark = shows("scheduler", "nodes")

LEASE_S = 8.0


def work(watch: LeaseWatch, clock: FakeClock, seconds: float) -> dict[str, float]:
    """Looks every half second; one worker is silent, the other beats, as its own clock is."""
    found: dict[str, float] = {}
    for _ in range(int(seconds * 2)):
        clock.sleep(0.5)
        found = watch.find_silent({"silent": 5.0, "beating": clock.now()})
    return found


def test_a_worker_that_does_not_beat_for_a_lease_s_time_is_lost() -> None:
    clock = FakeClock()
    watch = LeaseWatch(clock, LEASE_S)
    assert not work(watch, clock, LEASE_S)
    assert work(watch, clock, 0.5) == {"silent": 5.0}


def test_after_it_stood_still_workers_get_most_of_a_lease_s_time_to_beat() -> None:
    clock = FakeClock()
    watch = LeaseWatch(clock, LEASE_S)
    work(watch, clock, 1)
    clock.sleep(60)
    assert not work(watch, clock, 4)


def test_a_clock_that_is_set_or_differs_is_no_silence_and_hides_none() -> None:
    for step in (3600.0, -3600.0):
        clock = FakeClock()
        watch = LeaseWatch(clock, LEASE_S)
        work(watch, clock, 4)
        clock.step(step)
        assert not work(watch, clock, 4)
        assert work(watch, clock, 1) == {"silent": 5.0}


def test_what_was_a_node_s_that_is_away_is_lost_at_once() -> None:
    assert LeaseWatch(FakeClock(), LEASE_S).find_silent({"a": LAPSED, "b": 1e9}) == {"a": LAPSED}


def test_a_run_takes_no_longer_for_a_clock_that_is_set() -> None:
    ages, clock = AgeWatch(), FakeClock()
    began = {"a": clock.now() - 10.0, "b": clock.now() + 10.0}
    assert ages.look(began, clock.monotonic(), clock.now()) == {"a": 10.0, "b": 0.0}
    clock.step(7200)
    clock.sleep(5)
    assert ages.look(began, clock.monotonic(), clock.now()) == {"a": 15.0, "b": 5.0}
    assert ages.look({}, clock.monotonic(), clock.now()) == {}

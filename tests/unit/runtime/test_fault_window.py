"""A window counts what happened within its span, in bounded memory."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from rdukit_node.faults.records import SlidingWindow
from support import shows

pytestmark = shows("faults")

SPAN = 1_000_000


@given(st.lists(st.tuples(st.integers(0, SPAN // 2), st.integers(1, 5)), max_size=60))
def test_the_count_is_exact_but_for_a_thousandth_of_the_span(events: list[tuple[int, int]]) -> None:
    window, exact, now = SlidingWindow(SPAN), deque[tuple[int, int]](), 0
    for gap, number in events:
        now += gap
        exact.append((now, number))
        total = window.add(number, now)
        inside = sum(number for at, number in exact if at > now - SPAN)
        surely = sum(number for at, number in exact if at > now - SPAN + SPAN // 1000)
        assert surely <= total <= inside
        assert SlidingWindow(SPAN, window.coarse()).total == total


def test_a_storm_needs_a_bounded_number_of_entries() -> None:
    window = SlidingWindow(SPAN)
    for now in range(0, 3 * SPAN, 7):
        window.add(1, now)
    assert len(window._entries) <= 1001
    assert abs(window.total - SPAN // 7) <= SPAN // 7 // 500
    assert len(window.coarse()) <= 32


def test_a_clock_that_goes_back_stands_still() -> None:
    window = SlidingWindow(SPAN)
    window.add(1, SPAN)
    assert window.add(1, 0) == 2
    assert window.add(1, 2 * SPAN + 1) == 1

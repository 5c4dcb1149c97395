"""Tiles in use over time, from the times of attempts and replicas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit_platform.console.utilisation import TileSpan, mean_tiles, view_utilisation
from support import shows

pytestmark = shows("console")

TIMES = st.floats(-50, 150)
SPANS = st.lists(st.builds(TileSpan, TIMES, st.none() | TIMES, st.integers(1, 64)), max_size=20)


def test_a_span_counts_in_each_part_for_the_time_that_it_lies_in_it() -> None:
    spans = [TileSpan(5, 15, 4), TileSpan(18, None, 2), TileSpan(-9, -1, 64), TileSpan(99, None, 64)]
    assert mean_tiles(spans, 0, 20, 2) == pytest.approx([4 * 0.5, 4 * 0.5 + 2 * 0.2])


@settings(max_examples=60)
@given(SPANS)
def test_the_mean_over_all_parts_is_the_tile_seconds_of_the_spans(spans: list[TileSpan]) -> None:
    inside = sum(s.tiles * max(0.0, min(100, 100 if s.ended is None else s.ended) - max(0, s.began)) for s in spans)
    assert sum(mean_tiles(spans, 0, 100, 7)) / 7 == pytest.approx(inside / 100, abs=1e-9)


def test_the_picture_covers_the_hours_before_now_and_is_left_out_where_no_tile_was_in_use() -> None:
    use = view_utilisation([TileSpan(0, 3600, 8)], 0.0, 7200.0)
    assert (use.hours, use.mean, use.most) == (2.0, pytest.approx(4.0), 8.0)
    assert use.curve is not None
    assert use.curve.last_value == 0.0
    assert view_utilisation([], 0.0, 7200.0).curve is None

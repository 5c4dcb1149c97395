"""Quantities for people."""

import pytest

from rdukit.units import elapsed_s, format_bytes, format_count, format_seconds
from support import shows

pytestmark = shows("project")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1023 * 1024, "1023 KiB"),
        (3 << 30, "3 GiB"),
        (5 << 40, "5 TiB"),
    ],
)
def test_bytes_have_a_binary_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (3e-9, "3 ns"), (0.00012, "120 us"), (0.0015, "1.5 ms"), (12.345, "12.3 s"), (125, "2 min 5 s"),
        (3725, "1 h 2 min"), (-2, "-2 s"), (365 * 86400, "365 d"), (100_000, "1 d 3 h"),
        (60, "1 min"), (900.9, "15 min"), (7200, "2 h"), (7259, "2 h"),
    ],
)  # fmt: skip
def test_seconds_have_a_fitting_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (9999, "9999"), (0.125, "0.125"), (12_345, "12.3 k"), (1_234_567, "1.23 M"), (8e13, "80 T")],
)
def test_counts_have_a_decimal_prefix(count: float, text: str) -> None:
    assert format_count(count) == text


def test_what_ended_before_it_began_by_a_clock_set_back_took_no_time() -> None:
    assert (elapsed_s(1.0, 3.5), elapsed_s(7200.0, 60.0)) == (2.5, 0.0)

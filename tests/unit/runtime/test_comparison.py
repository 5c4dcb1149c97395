"""rdukit pef compare: verdicts on paired rounds are rarely false, and find what is there."""

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from rdukit_runtime.profile.comparison import (
    CONFIDENCE,
    Round,
    SpeedVerdict,
    compare_rounds,
    comparison_to_dict,
    interval_places,
    least_rounds,
    make_ratio,
)
from support import shows

pytestmark = shows("pef-profile")

#: Ids of sections in both PEFs.
SECTIONS = range(5)
PAIRS = [((number, number), f"section{number}", "fwd") for number in SECTIONS]


def rounds(count: int, slow_section: float, draw: random.Random) -> tuple[list[Round], list[Round]]:
    """Rounds on a busy machine: both sides of one share its pace, and each is disturbed for itself now and then."""
    sides: tuple[list[Round], list[Round]] = ([], [])
    for _ in range(count):
        pace = draw.lognormvariate(0.0, 0.4)
        for side, taken in enumerate(sides):
            sections = {n: pace * draw.lognormvariate(0.0, 0.01) for n in SECTIONS}
            if draw.random() < 0.1:
                sections[draw.choice(SECTIONS)] *= 3
            if side == 1:
                sections[2] *= slow_section
            taken.append((sum(sections.values()), sections))
    return sides


def verdicts(slow_section: float, seeds: Sequence[int]) -> list[tuple[SpeedVerdict, list[str]]]:
    found = []
    for seed in seeds:
        comparison = compare_rounds(*rounds(25, slow_section, random.Random(seed)), PAIRS)
        named = [s.name for s in comparison.sections if s.ratio.verdict is not SpeedVerdict.UNDECIDED]
        found.append((comparison.step.verdict, named))
    return found


def test_equal_sides_are_rarely_told_apart() -> None:
    false = [each for each in verdicts(1.0, range(200)) if each[0] is not SpeedVerdict.UNDECIDED or each[1]]
    assert len(false) <= 200 * 2 * (1 - CONFIDENCE) * 1.75  # the step's rate, and that of all sections together


def test_a_section_that_takes_five_percent_longer_is_found_and_named() -> None:
    found = [named for _, named in verdicts(1.05, range(40))]
    assert sum(named == ["section2"] for named in found) >= 34
    assert not any(set(named) - {"section2"} for named in found[:5])


@pytest.mark.parametrize("confidence", [0.9, 0.98, 0.999])
def test_an_interval_exists_from_the_least_rounds_on(confidence: float) -> None:
    least = least_rounds(confidence)
    assert interval_places(least, confidence) == 1
    assert interval_places(least - 1, confidence) == 0
    places = [interval_places(count, confidence) for count in range(least, 60)]
    assert all(a <= b for a, b in pairwise(places))


def test_too_few_rounds_decide_nothing() -> None:
    found = make_ratio([1.0] * 3, [9.0] * 3, CONFIDENCE)
    assert found.verdict is SpeedVerdict.UNDECIDED
    assert not found.is_slower_by(0.0)


def test_a_gate_fails_only_where_the_whole_interval_is_beyond_it() -> None:
    before = [1.0] * 25
    after = [1.02 + 0.001 * number for number in range(25)]
    found = make_ratio(before, after, CONFIDENCE)
    assert found.verdict is SpeedVerdict.SLOWER
    assert found.value == pytest.approx(1.032)
    assert found.is_slower_by(0.02)
    assert not found.is_slower_by(0.03)
    assert make_ratio(after, before, CONFIDENCE).verdict is SpeedVerdict.FASTER


def test_sections_that_one_side_lacks_are_left_out() -> None:
    before: list[Round] = [(1.0, {0: 0.5})] * 25
    after: list[Round] = [(1.0, {})] * 25
    found = comparison_to_dict(compare_rounds(before, after, PAIRS[:1]))
    assert found["sections"] == []
    assert found["step"]["verdict"] == "no difference found"

"""``rdukit tune``: its space, and its search with few measurements on machines that differ from the model."""

import math
import random
from collections.abc import Mapping

import pytest
import yaml

from rdukit.errors import InvalidArgument
from rdukit_runtime.tune.search import TuneCandidate, choose_next, estimate
from rdukit_runtime.tune.space import (
    Point,
    Value,
    default_space,
    list_points,
    option_name,
    option_words,
    outcome_text,
    point_key,
    read_try,
)
from support import shows

pytestmark = shows("tune")

SPACE: Mapping[str, tuple[Value, ...]] = {
    "batch-size": (32, 64, 128, 256), "optim-level": ("o0", "o1", "o3"), "precision": ("bf16", "f32"),
    "mapping": ("section", "spatial"),
}  # fmt: skip


def make_machine(seed: int) -> tuple[list[TuneCandidate], dict[str, float]]:
    """Return candidates with predictions, and what this machine would measure: values have effects that the cost
    model does not know, pairs of values smaller ones, and 1 % is noise.
    """
    draw = random.Random(seed)
    points = list_points(SPACE)
    effects = {(name, value): draw.gauss(0, 0.3) for name, values in SPACE.items() for value in values}
    candidates, measured = [], {}
    for number, point in enumerate(points):
        predicted = 1000 * math.exp(draw.gauss(0, 0.4))
        known = math.fsum(effects[name, value] for name, value in point.items())
        candidates.append(TuneCandidate(point, str(number), predicted))
        measured[str(number)] = predicted * math.exp(known + draw.gauss(0, 0.05) + draw.gauss(0, 0.01)) / 7
    return candidates, measured


def search(candidates: list[TuneCandidate], machine: dict[str, float], most: int) -> dict[str, float]:
    found: dict[str, float] = {}
    while len(found) < most and (chosen := choose_next(candidates, found)) is not None:
        found[chosen.digest] = machine[chosen.digest]
    return found


def test_a_quarter_of_the_grid_finds_its_best_within_three_percent_and_beats_chance() -> None:
    near = better = 0
    for seed in range(10):
        candidates, machine = make_machine(seed)
        found = search(candidates, machine, len(candidates) // 4)
        assert len(found) <= 12
        best = max(machine.values())
        near += max(found.values()) >= 0.97 * best
        chance = random.Random(seed).sample(sorted(machine), len(candidates) // 4)
        better += max(found.values()) >= max(machine[digest] for digest in chance)
    assert near == 10
    assert better >= 9


def test_the_search_ends_before_all_is_measured_and_never_measures_twice() -> None:
    candidates, machine = make_machine(3)
    found = search(candidates, machine, len(candidates))
    assert 3 <= len(found) < len(candidates)
    assert choose_next(candidates, machine) is None


def test_points_that_run_the_same_share_a_measurement() -> None:
    points = list_points({"num-tiles": (1, 2, 4)})
    candidates = [TuneCandidate(point, "same", 100.0) for point in points]
    assert choose_next(candidates, {"same": 90.0}) is None
    assert [each.expected for each in estimate(candidates, {"same": 90.0})] == pytest.approx([90.0] * 3, rel=0.05)


def test_the_effect_of_a_number_is_expected_of_numbers_near_it_and_not_of_words() -> None:
    sizes = list_points({"batch-size": (16, 32, 64, 512, 1024)})
    candidates = [TuneCandidate(point, str(number), 100.0) for number, point in enumerate(sizes)]
    low, near, middle, far, high = (each.expected for each in estimate(candidates, {"0": 50.0, "4": 200.0}))
    assert low < near < middle < far < high
    words = list_points({"optim-level": ("o0", "o1", "o3")})
    candidates = [TuneCandidate(point, str(number), 100.0) for number, point in enumerate(words)]
    found = estimate(candidates, {"0": 50.0, "2": 200.0})
    assert found[1].expected == pytest.approx(100.0), "as the mean of both"


def test_an_option_that_a_point_lacks_is_no_number() -> None:
    points: list[Point] = [{}, {"batch-size": 8}, {"batch-size": 16}]
    candidates = [TuneCandidate(point, str(number), 100.0) for number, point in enumerate(points)]
    found = estimate(candidates, {"1": 400.0, "0": 100.0})
    assert found[2].expected > 2 * found[0].expected


def test_an_order_of_the_points_changes_nothing() -> None:
    candidates, machine = make_machine(5)
    assert search(candidates, machine, 6) == search(candidates[::-1], machine, 6)


def test_options_are_read_with_their_kinds_and_become_words_and_a_file() -> None:
    assert read_try("-b=32,64") == ("batch-size", (32, 64))
    assert read_try("inference=true,false,") == ("inference", (True, False, None))
    point: Point = {"batch-size": 64, "inference": True, "optimization-rules": None, "plot": False, "optim-level": "o1"}
    assert option_words(point) == ["--batch-size", "64", "--inference", "--optim-level", "o1"]
    text = outcome_text(point, ["two\nlines: x", "more"])
    assert text.startswith("# two lines: x\n# more\n")
    assert yaml.safe_load(text) == {"batch_size": 64, "inference": True, "plot": False, "optim_level": "o1"}
    assert point_key({"a": 1, "b": "1"}) == point_key({"b": "1", "a": 1}) != point_key({"a": "1", "b": "1"})


@pytest.mark.parametrize("text", ["batch-size", "=1", "x=1", "--pef=a", "output-folder=b", "--=2"])
def test_what_cannot_be_searched_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"expected|cannot be searched"):
        read_try(text)


def test_large_spaces_and_repeated_values_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="at most 256"):
        list_points({"a-b": range(20), "c-d": range(20)})
    with pytest.raises(InvalidArgument, match="each once"):
        list_points({"batch-size": (1, 1)})
    assert len(list_points({"inference": (True, 1)})) == 2
    assert default_space("32")["batch-size"] == (32, 64, 128)
    assert "batch-size" not in default_space("")
    assert option_name("--num_tiles") == "num-tiles"

"""The picture of a sweep's trials: where values lie, and that everything stays inside."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit_platform.console import parallel
from rdukit_platform.console.parallel import draw_parallel
from support import shows

pytestmark = shows("console", "sweeps")

VALUES = st.one_of(st.floats(-1e9, 1e9), st.integers(-5, 5), st.booleans(), st.text(max_size=20), st.none())
TRIALS = st.lists(st.tuples(st.fixed_dictionaries({"a": VALUES, "b": VALUES}), st.floats(-1e6, 1e6)), min_size=2)


def test_fewer_than_two_trials_make_no_picture() -> None:
    assert draw_parallel([(0, {"lr": 1}, 0.5)], "loss", is_more_better=False) is None


@settings(max_examples=60)
@given(TRIALS)
def test_lines_stay_inside_the_picture(trials: list[tuple[dict[str, object], float]]) -> None:
    drawn = draw_parallel([(i, *one) for i, one in enumerate(trials)], "loss", is_more_better=True)
    assert drawn is not None
    assert {axis.name for axis in drawn.axes} == {"a", "b", "loss"}
    for line in drawn.lines:
        for place in line.path[1:].split("L"):
            x, y = map(float, place.split(","))
            assert 0 <= x <= parallel.WIDTH
            assert parallel.TOP <= y <= parallel.HEIGHT - parallel.BOTTOM
    assert all(len(axis.labels) <= parallel.MAX_LABELS + 1 for axis in drawn.axes)


def test_numbers_over_decades_lie_by_their_logarithm_and_the_best_is_on_top() -> None:
    trials = [(n, {"lr": lr, "mode": "o1"}, loss) for n, (lr, loss) in enumerate([(0.001, 3.0), (0.1, 1.0), (10, 2.0)])]
    drawn = draw_parallel(trials, "loss", is_more_better=False)
    assert drawn is not None
    heights = {label.text: label.y for label in drawn.axes[0].labels}
    assert heights["0.001"] - heights["0.1"] == heights["0.1"] - heights["10"]
    assert (drawn.lines[-1].number, drawn.lines[-1].shade) == (1, 0)
    assert drawn.lines[0].number == 0

"""Pictures of results: rows whose titles say in words what is seen."""

import numpy as np
import pytest
from PIL import Image

from rdukit_modelbox.tasks.pictures import GAP, HEAD, TILE, draw_rows
from rdukit_modelbox.tasks.self_supervised import SelfSupervised, titles_of
from rdukit_zoo.registry import get_model
from support import shows

pytestmark = shows("cards", "autophasenn")


@pytest.mark.parametrize(
    ("count", "names", "titles"),
    [
        (1, (), ["prediction"]),
        (2, (), ["prediction, channel 1", "prediction, channel 2"]),
        (2, ("a", "b"), ["a", "b"]),
        (3, ("a", "b"), ["prediction, channel 1", "prediction, channel 2", "prediction, channel 3"]),
    ],
)
def test_channels_have_the_models_names_or_numbers(count: int, names: tuple[str, ...], titles: list[str]) -> None:
    assert list(titles_of(count, names)) == titles


def test_a_crystals_channels_are_amplitude_and_phase() -> None:
    entry = get_model("autophasenn")
    assert entry.output_channels == ("prediction: amplitude", "prediction: phase")
    given, output = {"pattern": np.eye(8)[None, None].repeat(3, 0)}, np.zeros((3, 2, 8, 8))
    picture = SelfSupervised().draw(given, output, entry.output_channels)
    assert picture.size == (3 * (TILE + GAP) + GAP, 3 * (TILE + GAP + HEAD) + GAP)


def test_a_title_that_is_wider_than_its_row_is_not_cut() -> None:
    tile = Image.new("RGB", (TILE, TILE), "black")
    picture = np.asarray(draw_rows({"a title that is much wider than one tile of the picture": [tile]}).convert("L"))
    letters = np.flatnonzero((picture[:HEAD] < 128).any(0))
    assert letters.max() > 2 * TILE and letters.max() < picture.shape[1] - 1

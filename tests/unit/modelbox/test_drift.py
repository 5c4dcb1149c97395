"""Drift of the instrument that drawn data are read with."""

import numpy as np
import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.arrays import apply_drift
from support import shows

pytestmark = shows("recipes", "zoo")


def drawn(seed: int, count: int) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(seed)
    return {
        "image": chance.random((count, 1, 5, 6)).astype(np.float32),
        "mask": chance.random((count, 5, 6)).astype(np.float32),
    }


def test_each_place_has_a_gain_and_an_offset_of_its_own_in_both_splits() -> None:
    splits = {"train": drawn(0, 50), "test": drawn(1, 20)}
    changed = apply_drift(splits, ["image"], 0.5)
    assert changed["train"]["image"].dtype == np.float32 and (changed["train"]["image"] >= 0).all()
    for split in splits:
        assert changed[split]["mask"] is splits[split]["mask"]
    # Where nothing was cut off at zero, one line through all readings of a place, the same in both splits.
    for y, x in np.argwhere((changed["train"]["image"][:, 0] > 0).all(0) & (changed["test"]["image"][:, 0] > 0).all(0)):
        slope, offset = np.polyfit(splits["train"]["image"][:, 0, y, x], changed["train"]["image"][:, 0, y, x], 1)
        expected = slope * splits["test"]["image"][:, 0, y, x] + offset
        np.testing.assert_allclose(changed["test"]["image"][:, 0, y, x], expected, atol=1e-5)
    assert not np.allclose(changed["train"]["image"], splits["train"]["image"], atol=0.05)


def test_data_without_readings_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="drift needs readings"):
        apply_drift({"train": {}, "test": {}}, [], 0.5)

"""Levels of a model's parameters and their shares of the learning rate."""

import pytest

from rdukit_modelbox.tasks.layer_rates import levels_of, rate_shares
from support import shows

pytestmark = shows("validation")


@pytest.mark.parametrize(
    ("names", "levels"),
    [
        (["wte.weight", "wpe.weight", "h.0.w", "h.0.b", "h.1.w", "ln_f.w", "head.w"], [0, 0, 1, 1, 2, 3, 3]),
        (["bert.e.w", "bert.layer.0.a.0.w", "bert.layer.10.a.1.w", "pooler.w", "classifier.w"], [0, 1, 2, 3, 3]),
        (["down.0.w", "down.1.w", "middle.w", "up.0.w", "up.1.w", "down.0.b"], [0, 1, 2, 3, 4, 0]),
        (["0.weight", "2.weight"], [0, 1]),
        (["conv1.weight", "conv1.bias", "fc.weight"], [0, 0, 1]),
    ],
    ids=["decoder", "encoder", "two sequences", "sequential", "no numbers"],
)
def test_levels_go_from_the_input_to_the_head(names: list[str], levels: list[int]) -> None:
    assert levels_of(names) == levels


def test_the_last_level_has_the_whole_rate() -> None:
    assert rate_shares([0, 0, 1, 2], 0.5) == {0: 0.25, 1: 0.5, 2: 1.0}

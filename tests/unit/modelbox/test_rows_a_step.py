"""Positions of checkpoints in trainings with other numbers of rows a step: kept by row, or refused by name."""

import pytest
import torch

from rdukit.errors import InvalidArgument
from rdukit_modelbox.training.checkpoints import Checkpoint, Identity, TrainingTotals, with_rows_a_step
from rdukit_modelbox.training.options import Judged
from support import shows

pytestmark = shows("training")


def checkpoint(step: int, rows: int, samples: int) -> Checkpoint:
    within = step % (samples // rows)
    totals = TrainingTotals(3.0, 2.0, 5, 0.5 * within, within, 9.0, Judged(0.4, 3, 1))
    return Checkpoint(step, {}, {"state": {}}, torch.get_rng_state(), Identity("m", {}, rows, "d", 0), totals)


@pytest.mark.parametrize(
    ("step", "rows", "other", "expected"),
    [
        (0, 32, 64, 0),
        (6, 32, 64, 3),
        (3, 64, 32, 6),
        (31 + 4, 32, 64, 15 + 2),  # an epoch of 1000 samples has 31 steps of 32, and 15 of 64
        (15 + 3, 64, 48, 20 + 4),
        (5, 32, 32, 5),
    ],
)
def test_a_training_goes_on_at_its_row(step: int, rows: int, other: int, expected: int) -> None:
    before = checkpoint(step, rows, 1000)
    found = with_rows_a_step(before, other, 1000)
    assert (found.step, found.identity.batch_size) == (expected, other)
    within = expected % (1000 // other)
    assert within * other == step % (1000 // rows) * rows
    assert found.totals.epoch_steps == within
    assert found.totals.epoch_loss == pytest.approx(0.5 * within), "the mean loss of the epoch stays"
    assert (found.totals.train_seconds, found.totals.judged) == (9.0, Judged())
    assert found.optimizer is before.optimizer


def test_a_row_that_begins_no_step_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidArgument, match=r"at row 96 of epoch 1, .* use a checkpoint after a multiple of 2 steps"):
        with_rows_a_step(checkpoint(31 + 3, 32, 1000), 64, 1000)

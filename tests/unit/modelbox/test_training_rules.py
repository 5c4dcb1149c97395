"""Options, learning rates, which evaluation is best and reasons to stop: pure."""

import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.training.options import (
    Judged,
    TrainingOptions,
    judge_evaluation,
    learning_rate,
    options_from,
    reason_to_stop,
)
from support import shows

pytestmark = shows("training")


def rates(schedule: str, total: int, warmup: int, share: float = 0.0) -> list[float]:
    return [round(learning_rate(step, total, 1.0, schedule, warmup, share), 6) for step in range(total)]


def test_the_rate_rises_in_equal_parts_and_then_stays_or_falls_to_its_share() -> None:
    assert rates("constant", 4, 2) == [0.5, 1.0, 1.0, 1.0]
    assert rates("linear", 6, 1) == [1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert rates("linear", 5, 0, 0.2) == [1.0, 0.8, 0.6, 0.4, 0.2]
    assert rates("cosine", 5, 0) == [1.0, 0.853553, 0.5, 0.146447, 0.0]
    assert rates("cosine", 1, 0) == [1.0]
    assert rates("linear", 3, 8) == [0.125, 0.25, 0.375]


def test_parameters_become_options_of_their_types_and_others_are_passed_over() -> None:
    options = options_from({"lr": 1, "epochs": 3.0, "schedule": "cosine", "batch_size": 4})
    assert (options.lr, options.epochs, options.schedule, options.momentum) == (1.0, 3, "cosine", 0.9)
    assert options.scalars(0.25)["lr"] == 0.25
    for bad, words in (
        ({"schedule": "step"}, "expected constant, linear, cosine"),
        ({"patience": 2}, "patience needs evaluations"),
        ({"best_by": "luck"}, "expected loss, accuracy"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            options_from(bad)


def test_the_best_evaluation_is_the_first_with_the_lowest_loss_or_the_highest_accuracy() -> None:
    judged = Judged()
    for step, loss in ((10, 2.0), (20, 1.0), (30, 1.0), (40, 1.5)):
        judged = judge_evaluation(judged, step, loss, None, "accuracy")
    assert (judged.best_step, judged.best_score, judged.since_best, judged.last_loss) == (20, 1.0, 2, 1.5)
    judged = Judged()
    for step, accuracy in ((10, 0.5), (20, 0.9), (30, 0.8)):
        judged = judge_evaluation(judged, step, 1.0, accuracy, "accuracy")
    assert (judged.best_step, judged.best_score, judged.since_best) == (20, 0.9, 1)


def test_time_target_and_patience_end_a_training() -> None:
    options = TrainingOptions(evaluate_every=1, max_seconds=5, target_loss=0.5, target_accuracy=0.9, patience=3)
    going = Judged(1.0, 10, 2, 0.6, 0.8)
    assert reason_to_stop(options, going, 4.9) is None
    assert reason_to_stop(options, Judged(), 0) is None
    assert reason_to_stop(options, going, 5.0) == "time"
    assert reason_to_stop(options, Judged(0.5, 10, 0, 0.5, 0.8), 0) == "target"
    assert reason_to_stop(options, Judged(0.6, 10, 0, 0.6, 0.9), 0) == "target"
    assert reason_to_stop(options, Judged(0.6, 10, 3, 0.7, 0.8), 0) == "patience"
    assert reason_to_stop(TrainingOptions(), Judged(0.6, 10, 99, 0.0, 1.0), 1e9) is None

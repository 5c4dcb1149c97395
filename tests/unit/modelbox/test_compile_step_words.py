"""Steps of a compile, and the estimate of when one ends."""

import pytest

from rdukit_modelbox.verbs.compile_progress import STEPS, CompileProgress, describe_step, remaining_s
from rdukit_modelbox.verbs.context import Progress
from support import shows

pytestmark = shows("operations")


class Seen:
    """Context of a verb that keeps the progress that it gets."""

    def __init__(self) -> None:
        self.progresses: list[Progress] = []

    def progress(self, progress: Progress) -> None:
        self.progresses.append(progress)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("dtypes of gpt2", "step 2 of 7: dtypes of gpt2"),
        ("sections of decode_1", "step 4 of 7: sections of decode_1"),
        ("kernels", "step 5 of 7: kernels"),
        ("kernels checked", "step 6 of 7: kernels checked"),
        ("something new", "something new"),
    ],
)
def test_a_step_says_its_place_among_all(what: str, words: str) -> None:
    assert describe_step(what) == words


def test_the_estimate_is_there_once_something_is_done_and_not_all_is() -> None:
    assert remaining_s(6.0, 3, 12) == 18.0
    assert remaining_s(6.0, 0, 12) is None
    assert remaining_s(6.0, 12, 12) is None
    assert remaining_s(6.0, 0, 0) is None


def test_each_step_begins_its_own_estimate_and_older_counts_are_left_out() -> None:
    times = iter([0.0, 0.0, 4.0, 10.0, 10.0, 11.0])
    seen = Seen()
    follow = CompileProgress(seen, lambda: next(times))  # type: ignore[arg-type]
    for call in (("kernels", 0, 4), ("kernels", 2, 4), ("kernels", 1, 4), (STEPS[5], 0, 2), (STEPS[5], 1, 2)):
        follow(*call)
    assert [(p.step, p.total, p.eta_s) for p in seen.progresses] == [
        (0, 4, None),
        (2, 4, 4.0),
        (0, 2, None),
        (1, 2, 1.0),
    ]

"""Where ``reduce`` goes among the sections of a data-parallel run."""

import pytest

from rdukit.pef.model import SectionType
from sambaflow.sessions.data_parallel import choose_reduced, is_switched_on
from support import shows

pytestmark = shows("surface")

TYPES = dict(enumerate(SectionType(t) for t in ("fwd", "bckwd", "gradnorm", "opt", "reduce")))
#: reduce is numbered last and runs before gradnorm.
SCHEDULE = (0, 1, 4, 2, 3)


def chosen(*numbers: int, whole: bool = False, data_parallel: bool = True, pending: bool = False) -> tuple[int, ...]:
    return choose_reduced(
        TYPES, SCHEDULE, numbers, is_whole_step=whole, data_parallel=data_parallel, is_pending=pending
    )  # fmt: skip


def test_a_whole_step_averages_exactly_when_it_is_data_parallel() -> None:
    assert chosen(*SCHEDULE, whole=True) == SCHEDULE
    assert chosen(*SCHEDULE, whole=True, data_parallel=False) == (0, 1, 2, 3)


def test_named_sections_average_before_gradients_are_read_the_first_time() -> None:
    assert chosen(1, 3) == (1, 4, 3)
    assert chosen(2, pending=True) == (4, 2)
    assert chosen(3, pending=True) == (4, 3)
    assert chosen(3, pending=False) == (3,)
    assert chosen(0, 1, pending=True) == (0, 1)
    assert chosen(0, pending=True) == (0,)


def test_reduce_that_is_named_runs_as_named() -> None:
    assert chosen(4) == (4,)
    assert chosen(4, data_parallel=False) == (4,)
    assert chosen(1, 4, 3) == (1, 4, 3)
    assert chosen(1, 3, data_parallel=False, pending=True) == (1, 3)


@pytest.mark.parametrize(
    ("option", "expected"),
    [(True, True), ("yes", True), ("True", True), ("no", False), (None, False), ("", False), (0, False)],
)
def test_programs_may_redefine_the_option_as_a_text(option: object, expected: bool) -> None:
    assert is_switched_on(option) is expected

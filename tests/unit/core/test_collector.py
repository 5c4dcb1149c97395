"""A paused collector finds nothing meanwhile, and is afterwards as it was."""

import contextlib
import gc
import weakref

from rdukit.system.process import gc_paused
from support import shows

pytestmark = shows("project")


class Node:
    """Part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_nothing_is_collected_meanwhile_and_afterwards_it_is() -> None:
    with gc_paused():
        lost = weakref.ref(Node())
        kept = [[i] for i in range(100_000)]
        assert lost() is not None
    assert gc.isenabled()
    kept += [[i] for i in range(100_000)]
    assert lost() is None


def test_a_failure_and_an_inner_pause_leave_it_as_it_was() -> None:
    with contextlib.suppress(ValueError), gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

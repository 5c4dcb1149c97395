"""When gRPC's threads take turns with the event loop, and what that does to a process."""

import os
import subprocess
import sys

import pytest

from rdukit_serving.tuning.sched_batch import LONG_S, LOOK_S, PAUSE_S, SEVERAL, SchedBatchPolicy, Waits, has_waited_long


class Box:
    """A process whose threads wait ``wait_s`` each time that they run; None: the kernel does not count."""

    def __init__(self, wait_s: float | None) -> None:
        self.wait_s = wait_s
        self.now = 100.0
        self.switched: list[bool] = []
        self._runs, self._waited = 0, 0.0
        self.turns = SchedBatchPolicy(self.switched.append, self._waits, lambda: self.now)

    def _waits(self) -> Waits | None:
        return None if self.wait_s is None else Waits(self._runs, self._waited)

    def serve(self, callers: int, seconds: float) -> None:
        """So many requests at once, again and again, each time for a hundredth of a second."""
        until = self.now + seconds
        while self.now < until:
            for _ in range(callers):
                self.turns.__enter__()
            self.now += 0.01
            self._runs += 3
            self._waited += 3 * (self.wait_s or 0.0)
            for _ in range(callers):
                self.turns.__exit__(None, None, None)


def test_a_lone_caller_takes_turns_where_nobody_else_runs() -> None:
    box = Box(LONG_S / 10)
    box.serve(1, 10 * PAUSE_S)
    assert box.switched == [True]


def test_beside_a_busy_neighbour_a_lone_caller_does_not_but_for_a_moment_now_and_then() -> None:
    box = Box(2 * LONG_S)
    box.serve(1, 3 * LOOK_S)
    assert box.switched == [True, False]
    box.serve(1, PAUSE_S - 3 * LOOK_S)
    assert box.switched == [True, False]
    box.serve(1, 3 * LOOK_S)
    assert box.switched == [True, False, True, False]
    box.wait_s = LONG_S / 10  # it has gone
    box.serve(1, 3 * PAUSE_S)
    assert box.switched == [True, False, True, False, True]


@pytest.mark.parametrize("wait_s", [LONG_S / 10, 2 * LONG_S, None])
def test_several_callers_do_whoever_else_runs(wait_s: float | None) -> None:
    box = Box(wait_s)
    box.serve(SEVERAL, 3 * PAUSE_S)
    assert box.switched == [True]
    box.serve(1, LOOK_S / 2)  # what was waited until now was no lone caller's
    assert box.switched == [True]


def test_where_waits_are_not_counted_a_lone_caller_does_not() -> None:
    box = Box(None)
    box.serve(1, 3 * PAUSE_S)
    assert box.switched == []
    box.serve(SEVERAL, 1)
    box.serve(1, 1)
    assert box.switched == [True, False]


def test_a_request_that_fails_is_no_longer_under_way() -> None:
    box = Box(None)
    for _ in range(SEVERAL):
        with pytest.raises(ValueError, match="failed"), box.turns:
            raise ValueError("failed")
    assert box.switched == []


@pytest.mark.parametrize(
    ("after", "is_long"),
    [
        (Waits(10, 1.0), False),
        (Waits(20, 1.0 + 9 * LONG_S), False),
        (Waits(20, 1.0 + 11 * LONG_S), True),
        (Waits(5, 0.999), False),
        (None, False),
    ],
)
def test_waits_are_long_on_the_mean(after: Waits | None, is_long: bool) -> None:
    assert has_waited_long(Waits(10, 1.0), after) is is_long


CHILD = """
import os, threading
from rdukit_serving.tuning.sched_batch import set_batch_policy, read_thread_waits
print(read_thread_waits())
ready, done, tids = threading.Event(), threading.Event(), [0]
def stay(policy):
    os.sched_setscheduler(0, policy, os.sched_param(0))
    tids.append(threading.get_native_id())
    ready.set()
    done.wait()
for policy in (os.SCHED_OTHER, os.SCHED_IDLE):
    ready.clear()
    threading.Thread(target=stay, args=(policy,), daemon=True).start()
    ready.wait()
def say():
    print([os.sched_getscheduler(tid) for tid in tids], flush=True)
say()
set_batch_policy(True)
say()
set_batch_policy(False)
say()
print(read_thread_waits() is None, os.path.exists("/proc/self/schedstat"))
"""


@pytest.fixture(scope="module")
def lines() -> list[str]:
    run = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60, check=True)
    return run.stdout.splitlines()


def test_all_threads_but_the_main_one_and_those_with_a_policy_of_their_own_are_set_and_set_back(
    lines: list[str],
) -> None:
    other, batch, idle = os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE
    usual = str([other, other, idle])
    assert lines[1:4] == [usual, str([other, batch, idle]), usual]


def test_waits_are_those_of_other_threads(lines: list[str]) -> None:
    assert lines[0] == "None"
    is_none, is_counted = lines[4].split()
    assert (is_none == "False") == (is_counted == "True")

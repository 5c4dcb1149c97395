"""When threads of a box take turns, and what that does to a process."""

import os
import subprocess
import sys

from rdukit_modelbox.serving.turns import CALM, SEVERAL, Turns


def serve(turns: Turns, callers: int) -> None:
    """So many requests at once."""
    for _ in range(callers):
        turns.__enter__()
    for _ in range(callers):
        turns.__exit__(None, None, None)


def test_several_callers_turn_it_on_once_and_few_turn_it_off_after_a_while() -> None:
    switched: list[bool] = []
    turns = Turns(switched.append)
    for _ in range(100):
        serve(turns, SEVERAL - 1)
    assert switched == []
    for _ in range(100):
        serve(turns, SEVERAL)
    assert switched == [True]
    for _ in range(CALM - 1):
        serve(turns, 1)
    serve(turns, SEVERAL + 3)  # the others are there still
    for _ in range(CALM - 1):
        serve(turns, 1)
    assert switched == [True]
    for _ in range(2):
        serve(turns, 1)
    assert switched == [True, False]
    serve(turns, SEVERAL)
    assert switched == [True, False, True]


def test_few_callers_who_never_pause_turn_it_off_too() -> None:
    switched: list[bool] = []
    turns = Turns(switched.append)
    serve(turns, SEVERAL)
    turns.__enter__()  # there is always one under way
    for _ in range(CALM):
        serve(turns, 1)
    assert switched == [True, False]


def test_a_request_that_fails_is_no_longer_under_way() -> None:
    switched: list[bool] = []
    turns = Turns(switched.append)
    for _ in range(SEVERAL):
        try:
            with turns:
                raise ValueError
        except ValueError:
            pass
    assert switched == []


CHILD = """
import os, threading
from rdukit_modelbox.serving.turns import take_turns_in_this_process
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
take_turns_in_this_process(True)
say()
take_turns_in_this_process(False)
say()
"""


def test_all_threads_are_set_and_set_back_but_for_those_with_a_policy_of_their_own() -> None:
    run = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60, check=True)
    other, batch, idle = os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE
    usual = str([other, other, idle])
    assert run.stdout.splitlines() == [usual, str([batch, batch, idle]), usual], run.stderr

"""Boxes of tests that are about what a box does, not about its start: forked from one server of the test process."""

import atexit
import sys
from functools import cache

from rdukit.interfaces import SystemClock
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import LOG, ProcessBackend, ProcessBox
from rdukit_platform.backends.warm import WarmBoxes
from support.helpers import wait_until
from support.recording import note_log


@cache
def _warm_backend() -> ProcessBackend:
    warm = WarmBoxes((sys.executable, "-m", "rdukit_modelbox"), {"OMP_NUM_THREADS": "1"}, SystemClock())
    atexit.register(warm.close)
    wait_until(lambda: warm.find() is not None, what="the fork server of boxes")
    return ProcessBackend(warm=warm)


def start_box(spec: BoxSpec) -> ProcessBox:
    """Start a box as a worker starts those of its jobs: box and operations have imported what they need, torch among
    it, which takes seconds each time otherwise.
    """
    note_log(spec.state / LOG)
    return _warm_backend().start(spec, 120.0)

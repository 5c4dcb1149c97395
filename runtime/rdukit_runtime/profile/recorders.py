"""The recorder of this process: none without a profile, sums for ``snprof``, or each call for ``rdukit profile``."""

import atexit
import os
from functools import cache
from pathlib import Path

from rdukit.settings import resolve
from rdukit_runtime.profile.step import Recorder
from rdukit_runtime.settings import PROFILE_EVENTS, PROFILE_FOLDER


@cache
def find_recorder() -> Recorder | None:
    """Return this process's recorder, which writes at its end; ``None``: no profile is wanted."""
    folder = resolve(PROFILE_FOLDER)
    if not folder:
        return None
    events = resolve(PROFILE_EVENTS)
    if events > 0:
        from rdukit_runtime.profile.timeline import TimelineRecorder  # snprof's programs need it not

        recorder: Recorder = TimelineRecorder(events)
    else:
        recorder = Recorder()
    owner = os.getpid()
    atexit.register(lambda: recorder.write(Path(folder)) if os.getpid() == owner else None)
    return recorder


def write_recording(folder: Path) -> None:
    """Write what this process recorded into ``folder``; nothing if it ran no session."""
    recorder = find_recorder()
    if recorder is not None:
        recorder.write(folder)

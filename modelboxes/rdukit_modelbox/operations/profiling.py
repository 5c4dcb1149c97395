"""Profile of an operation: what ``rdukit profile`` writes of a program, here of the processes that do a verb.

Recorders are only there when a request asks for them. The first member asks the others by the environment that they
inherit, and reads what all of them recorded once they have ended.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rdukit.errors import RdukitError
from rdukit.files.owned import scratch_folder

#: Name of the output.
PROFILE: Final = "profile"
#: Most bytes of each of its files.
MAX_FILE_BYTES: Final = 32_000_000


@contextmanager
def recording(request: Mapping[str, Any]) -> Iterator[Path | None]:
    """Let sessions of this process and its members record inside the block, if the request asks for it.

    Yields the folder for recordings; ``None``: none are made, or they are the first member's to read.
    """
    if not request.get(PROFILE):
        yield None
        return
    from rdukit_runtime.profile.program_run import BYTES_A_CALL
    from rdukit_runtime.profile.recorders import write_recording
    from rdukit_runtime.settings import PROFILE_EVENTS, PROFILE_FOLDER

    if request.get("is_follower"):
        try:
            yield None
        finally:
            write_recording(Path(os.environ[PROFILE_FOLDER.variable]))
        return
    with scratch_folder("rdukit-profile") as scratch:
        os.environ[PROFILE_FOLDER.variable] = str(scratch)
        os.environ[PROFILE_EVENTS.variable] = str(MAX_FILE_BYTES // BYTES_A_CALL)
        yield scratch


def write_profile(folder: Path, title: str, command: str, output: Path) -> Path | None:
    """Write the profile of the verb that has just ended, as a folder in ``output``.

    Args:
        folder: with the recordings of other members. command: what repeats the measurement.
    Returns:
        The folder; ``None``: no process ran a session.
    Raises:
        RdukitError: a recording cannot be read. OSError: the files cannot be written.
    """
    from rdukit_runtime.profile.program_run import ProgramProfile, read_recordings
    from rdukit_runtime.profile.recorders import write_recording

    write_recording(folder)
    recordings = tuple(read_recordings(folder))
    if not recordings:
        return None
    from rdukit_runtime.report.files import profile_files, summarize_profile
    from rdukit_runtime.report.make import build_page

    began_ns = min(each.started_ns for each in recordings)
    found = ProgramProfile(title, 0, began_ns, time.perf_counter_ns() - began_ns, recordings, ())
    page = build_page(title, recordings, (), [command], os.environ)
    target = output / PROFILE
    target.mkdir()
    for name, content in profile_files(found, summarize_profile(found, page), page, MAX_FILE_BYTES).items():
        (target / name).write_bytes(content)
    return target


def explain_failure(error: Exception) -> str:
    """Return the line of the log for a profile that could not be written; the verb itself has succeeded."""
    reason = error.message if isinstance(error, RdukitError) else f"{type(error).__name__}: {error}"
    return f"the profile was not written: {reason}"

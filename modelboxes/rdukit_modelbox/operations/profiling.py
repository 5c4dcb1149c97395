"""Profile of an operation: what ``rdukit profile`` writes of a program, here of the processes that do a verb.

Recorders are only there when a request asks for them. The first member asks the others by the environment that they
inherit, and reads what all of them recorded once they have ended.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rdukit.errors import RdukitError

if TYPE_CHECKING:
    from rdukit_runtime.profile.recording import ProcessRecording

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
    from rdukit_runtime.profile.program import BYTES_A_CALL
    from rdukit_runtime.settings import PROFILE_EVENTS, PROFILE_FOLDER

    if request.get("is_follower"):
        try:
            yield None
        finally:
            write_recording(Path(os.environ[PROFILE_FOLDER.variable]))
        return
    with tempfile.TemporaryDirectory(prefix="rdukit-profile-") as scratch:
        os.environ[PROFILE_FOLDER.variable] = scratch
        os.environ[PROFILE_EVENTS.variable] = str(MAX_FILE_BYTES // BYTES_A_CALL)
        yield Path(scratch)


def write_recording(folder: Path) -> None:
    """Write what this process recorded into ``folder``; nothing if it ran no session."""
    from rdukit_runtime.profile.step import find_recorder

    recorder = find_recorder()
    if recorder is not None:
        recorder.write(folder)


def write_profile(folder: Path, title: str, command: str, output: Path) -> Path | None:
    """Write the profile of the verb that has just ended, as a folder in ``output``.

    Args:
        folder: with the recordings of other members. command: what repeats the measurement.
    Returns:
        The folder; ``None``: no process ran a session.
    Raises:
        RdukitError: a recording cannot be read. OSError: the files cannot be written.
    """
    from rdukit_runtime.profile.program import read_recordings

    write_recording(folder)
    found = read_recordings(folder)
    if not found:
        return None
    target = output / PROFILE
    target.mkdir()
    for name, content in _files_of(title, command, found).items():
        (target / name).write_bytes(content)
    return target


def explain_failure(error: Exception) -> str:
    """Return the line of the log for a profile that could not be written; the verb itself has succeeded."""
    reason = error.message if isinstance(error, RdukitError) else f"{type(error).__name__}: {error}"
    return f"the profile was not written: {reason}"


def _files_of(title: str, command: str, found: "list[ProcessRecording]") -> dict[str, bytes]:
    from rdukit_runtime.profile.recording import summary_to_dict
    from rdukit_runtime.profile.timeline_files import speedscope_text, trace_text
    from rdukit_runtime.report.advice import advice_to_dict
    from rdukit_runtime.report.make import build_page
    from rdukit_runtime.report.page import render_page

    began_ns = min(each.started_ns for each in found)
    page = build_page(title, found, (), [command], os.environ)
    summary = summary_to_dict(title, 0, time.perf_counter_ns() - began_ns, found, ())
    summary["advice"] = [advice_to_dict(each) for each in page.advice]
    return {
        "report.html": render_page(page).encode(),
        "trace.json": trace_text(found, (), began_ns, MAX_FILE_BYTES).encode(),
        "speedscope.json": speedscope_text(found, MAX_FILE_BYTES).encode(),
        "summary.json": json.dumps(summary, indent=1).encode() + b"\n",
    }

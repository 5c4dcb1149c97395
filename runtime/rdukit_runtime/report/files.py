"""The files of a profile, which ``rdukit profile`` writes of a program, and a box of the processes of a verb."""

import json
from typing import Any

from rdukit_runtime.profile.program_run import ProgramProfile
from rdukit_runtime.profile.recording import summary_to_dict
from rdukit_runtime.profile.timeline_files import speedscope_text, trace_text
from rdukit_runtime.report.advice import advice_to_dict
from rdukit_runtime.report.page import ReportPage, render_page


def summarize_profile(found: ProgramProfile, page: ReportPage | None) -> dict[str, Any]:
    """Return the content of ``summary.json``.

    Args:
        page: with the advice; None: no process ran a session.
    """
    summary = summary_to_dict(found.command, found.status, found.wall_ns, found.recordings, found.spans)
    if page is not None:
        summary["advice"] = [advice_to_dict(each) for each in page.advice]
    return summary


def profile_files(
    found: ProgramProfile, summary: dict[str, Any], page: ReportPage | None, most_bytes: int
) -> dict[str, bytes]:
    """Return the files by name: the summary, a trace if there is anything to draw, and the others with ``page``.

    Args:
        summary, page: as of ``summarize_profile``. most_bytes: of each file that grows with the number of calls.
    """
    files = {"summary.json": json.dumps(summary, indent=1).encode() + b"\n"}
    if found.recordings or found.spans:
        files["trace.json"] = trace_text(found.recordings, found.spans, found.began_ns, most_bytes).encode()
    if page is not None:
        files["report.html"] = render_page(page).encode()
        files["speedscope.json"] = speedscope_text(found.recordings, most_bytes).encode()
    return files

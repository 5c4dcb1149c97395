"""Spans of a call from the ``Server-Timing`` header of a replica's answer."""

import re
import time
from typing import Final

from rdukit.telemetry.model import Attribute, Span
from rdukit.telemetry.spans import begin_span, end_span, is_traced

#: Server-Timing entries that become spans; others are of the model's load, long before.
PARTS: Final = ("queue", "batch", "compute")
_PART: Final = re.compile(r'(\w{1,32});dur=(\d{1,9}(?:\.\d{1,9})?)(?:;desc="([\w= ]{0,80})")?')
#: Entries about the batch of a request, and their span attributes.
BATCH: Final = {
    "requests": "rdukit.batch.requests", "rows": "rdukit.batch.rows", "most": "rdukit.batch.most_rows",
    "own": "rdukit.rows",
}  # fmt: skip
_COUNT: Final = re.compile(r"\b(\w{1,32})=(\d{1,9})\b")


def read_timing(header: str) -> list[tuple[str, float]]:
    """Return the parts of a ``Server-Timing`` with their milliseconds, in order (pure)."""
    times = {match[1]: float(match[2]) for match in _parts_of(header)}
    return [(name, times[name]) for name in PARTS if name in times]


def read_batch(header: str) -> dict[str, Attribute]:
    """Return the batch's attributes from a ``Server-Timing`` (pure)."""
    batch = next((match[3] or "" for match in _parts_of(header) if match[1] == "batch"), "")
    return {BATCH[name]: int(count) for name, count in _COUNT.findall(batch) if name in BATCH}


def _parts_of(header: str) -> list[re.Match[str]]:
    found = (_PART.fullmatch(part.strip()) for part in header[:2000].split(","))
    return [match for match in found if match]


def tell_timing(call: Span, header: str) -> None:
    """Record the parts as successive spans: the last ends now, and all begin within the call."""
    parts = read_timing(header) if is_traced() else []
    batch = read_batch(header) if parts else {}
    at = max(call.start_ns, time.time_ns() - int(sum(length_ms for _, length_ms in parts) * 1e6))
    for name, length_ms in parts:
        about = {"rdukit.told_by": "replica", **(batch if name != "queue" else {})}
        part = begin_span(name, about, parent=call.context, start_ns=at)
        at += int(length_ms * 1e6)
        end_span(part, min(at, time.time_ns()))

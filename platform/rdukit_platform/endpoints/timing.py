"""What a replica's ``Server-Timing`` tells of a call, as spans below the call's; the replica is not trusted."""

import re
import time
from typing import Final

from rdukit.telemetry.model import Span
from rdukit.telemetry.spans import begin_span, end_span, is_traced

#: Parts of an answer that are told: others are of the model's load, long before.
PARTS: Final = ("queue", "compute")
_PART: Final = re.compile(r"(\w{1,32});dur=(\d{1,9}(?:\.\d{1,9})?)")


def read_timing(header: str) -> list[tuple[str, float]]:
    """Return the parts of a ``Server-Timing`` with their milliseconds, in the order in which they come (pure)."""
    found = (_PART.fullmatch(part.strip()) for part in header[:2000].split(","))
    times = {match[1]: float(match[2]) for match in found if match}
    return [(name, times[name]) for name in PARTS if name in times]


def tell_timing(call: Span, header: str) -> None:
    """Record the parts one after the other, so that the last ends now, and none begins before the call did."""
    parts = read_timing(header) if is_traced() else []
    at = max(call.start_ns, time.time_ns() - int(sum(length_ms for _, length_ms in parts) * 1e6))
    for name, length_ms in parts:
        part = begin_span(name, {"rdukit.told_by": "replica"}, parent=call.context, start_ns=at)
        at += int(length_ms * 1e6)
        end_span(part, min(at, time.time_ns()))

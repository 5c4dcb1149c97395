"""Traces of inferences: timing of a request, returned only to callers whose trace is sampled.

Other requests only cost a comparison of each header's name. For sampled requests, the answer's ``Server-Timing`` has
the batch, so that a replica without a network can report to its gateway. If the box exports spans itself, it also
creates spans for the request.
"""

import time
from functools import cache
from typing import Final

from rdukit.telemetry.model import Attribute, SpanContext, SpanKind
from rdukit.telemetry.spans import (
    BOX,
    TRACEPARENT,
    begin_span,
    configure_telemetry,
    end_span,
    find_traceparent,
    is_traced,
)
from rdukit_serving.signature import InferResponse

TRACE_HEADER: Final = TRACEPARENT.encode()


def find_wanted(value: bytes) -> SpanContext | None:
    """Return the span that a header names if its trace is sampled (pure); ``None`` otherwise."""
    found = find_traceparent(value[:256].decode("latin-1"))
    return found if found is not None and found.is_sampled else None


def tell_batch(answer: InferResponse) -> bytes:
    """Return a further ``Server-Timing`` entry: milliseconds of forming the batch, and its content (pure).

    Source: W3C Server Timing, ``dur`` and ``desc``; the content of ``desc`` is ours.
    """
    timing = answer.timing
    return b', batch;dur=%.3f;desc="requests=%d rows=%d most=%d own=%d"' % (
        timing.form / 1000, timing.requests, timing.batch_rows, timing.most_rows, answer.rows,
    )  # fmt: skip


def tell_spans(parent: SpanContext, model: str, version: str, answer: InferResponse) -> None:
    """Record an answered request with its consecutive phases, if spans are exported.

    The parts are ``queue``, ``batch`` (forming it in memory) and ``device`` (its run).
    """
    _open_sinks()
    if not is_traced():
        return
    timing, now = answer.timing, time.time_ns()
    about: dict[str, Attribute] = {"rdukit.model": model, "rdukit.model.version": version, "rdukit.rows": answer.rows}
    batch: dict[str, Attribute] = {
        "rdukit.batch.requests": timing.requests, "rdukit.batch.rows": timing.batch_rows,
        "rdukit.batch.most_rows": timing.most_rows,
    }  # fmt: skip
    run = {"rdukit.copy_in_us": timing.copy_in, "rdukit.compute_us": timing.compute,
           "rdukit.copy_out_us": timing.copy_out}  # fmt: skip
    at = now - 1000 * (timing.queue + timing.form + timing.device)
    whole = begin_span("infer", about, kind=SpanKind.SERVER, parent=parent, start_ns=at)
    parts: tuple[tuple[str, int, dict[str, Attribute]], ...] = (
        ("queue", timing.queue, {}), ("batch", timing.form, batch), ("device", timing.device, {**batch, **run}),
    )  # fmt: skip
    for name, length_us, more in parts:
        part = begin_span(name, more, parent=whole.context, start_ns=at)
        at += 1000 * length_us
        end_span(part, at)
    end_span(whole, now)


@cache
def _open_sinks() -> None:
    """Open the sinks that the settings name, once a caller has asked."""
    configure_telemetry(BOX)

"""Trace of a job for its users. Its events give the queue's spans; its attempts give those of worker and box.

A collector gets the same ids, so both can be compared.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, JsonValue
from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.telemetry.model import Attribute, Span, SpanContext
from rdukit.telemetry.spans import begin_span, end_span, find_traceparent
from rdukit_platform.db.models import AttemptRow, JobEventRow, JobRow
from rdukit_platform.jobs.states import WAITING, JobState

#: Largest number of spans kept for one attempt, from its worker and its box.
MAX_SPANS: Final = 400
#: Largest number of spans in one answer.
MAX_SHOWN: Final = 4000
#: Names of spans for states whose own name is unclear.
_STAYS: Final = {JobState.SUBMITTED: "wait for earlier steps"}


class TraceSpan(BaseModel):
    """Span of a trace; times are seconds since 1970, ``end`` is missing while it lasts."""

    name: str
    span_id: str
    parent_id: str
    start: float
    end: float | None
    service: str
    error: str = ""
    attributes: dict[str, JsonValue] = {}


class JobTrace(BaseModel):
    """Trace of a job: its spans, each after its parent."""

    job_id: str
    trace_id: str
    spans: list[TraceSpan]


@dataclass(frozen=True, slots=True)
class Stay:
    """Time that a job spent in a waiting state, and the number of the attempt that ended it."""

    state: JobState
    attempt: int
    start: float
    end: float | None


def context_of(job: JobRow) -> SpanContext:
    """Return the span in which a job was submitted; jobs without one get a span derived from their id."""
    found = find_traceparent(job.traceparent)
    return found or SpanContext(hashlib.sha256(job.id.encode()).hexdigest()[:32], span_id_of(job.id), False)


def span_id_of(*words: object) -> str:
    """Derive a span's id from words, so that several processes get the same one (pure)."""
    return hashlib.sha256("/".join(map(str, words)).encode()).hexdigest()[:16]


def tell_wait(job: JobRow, attempt: int, now: float) -> None:
    """Record a span for a job's wait in the queue, which has just ended."""
    start = job.created_at if job.queued_at is None else job.queued_at
    about: dict[str, Attribute] = {"rdukit.job": job.id, "rdukit.attempt": attempt, "rdukit.tiles": job.tiles}
    wait = begin_span(
        str(JobState.QUEUED), about, parent=context_of(job), start_ns=int(start * 1e9),
        span_id=span_id_of(job.id, JobState.QUEUED, attempt),
    )  # fmt: skip
    end_span(wait, int(now * 1e9))


def flat_span(span: Span, service: str) -> dict[str, object]:
    """Return a span in the form that attempts store (pure)."""
    return {
        "name": span.name,
        "span_id": span.context.span_id,
        "parent_id": span.parent_id,
        "start": span.start_ns / 1e9,
        "end": span.end_ns / 1e9,
        "service": service,
        "error": span.error,
        "attributes": dict(span.attributes),
    }


def read_trace(session: Session, job: JobRow) -> JobTrace:
    """Return a job's trace so far."""
    states = (JobEventRow.job_id == job.id, JobEventRow.kind == "state")
    columns = (JobEventRow.at, JobEventRow.attempt, JobEventRow.data)
    events = session.execute(select(*columns).where(*states).order_by(JobEventRow.id)).all()
    kept = (AttemptRow.number, AttemptRow.spans, AttemptRow.claimed_at, AttemptRow.ended_at)
    query = select(*kept).where(AttemptRow.job_id == job.id).order_by(AttemptRow.number)
    context, spans = context_of(job), list[TraceSpan]()
    for stay in find_stays([(at, attempt, data) for at, attempt, data in events]):
        spans.append(_stay_span(job.id, context, stay))
    for number, recorded, claimed_at, ended_at in session.execute(query):
        spans += [TraceSpan.model_validate(each) for each in recorded or ()]
        if not recorded and claimed_at is not None:
            spans.append(_attempt_span(job.id, context, number, claimed_at, ended_at))
    root = TraceSpan(
        name=f"job {job.box} {job.verb}", span_id=context.span_id, parent_id="", start=job.created_at,
        end=job.ended_at, service="gateway", error=str((job.error or {}).get("code") or ""),
        attributes={"rdukit.job": job.id, "rdukit.state": job.state},
    )  # fmt: skip
    return JobTrace(job_id=job.id, trace_id=context.trace_id, spans=in_order(root, spans)[:MAX_SHOWN])


def find_stays(events: Iterable[tuple[float, int, Mapping[str, Any]]]) -> list[Stay]:
    """Return a job's waits from its state events, oldest first (pure)."""
    stays, waits_since = list[Stay](), None
    for at, attempt, data in events:
        if waits_since is not None:
            state, since = waits_since
            number = attempt + 1 if data.get("event") == "admit" else attempt
            stays.append(Stay(state, number, since, at))
        after = data.get("to")
        waits_since = (JobState(str(after)), at) if after in {*WAITING, JobState.PAUSED} else None
    if waits_since is not None:
        stays.append(Stay(waits_since[0], 0, waits_since[1], None))
    return [stay for stay in stays if stay.state is not JobState.SUBMITTED or stay.end is None or stay.end > stay.start]


def _stay_span(job_id: str, context: SpanContext, stay: Stay) -> TraceSpan:
    words = (stay.state, stay.attempt) if stay.state is JobState.QUEUED else (stay.state, stay.attempt, stay.start)
    return TraceSpan(
        name=_STAYS.get(stay.state, str(stay.state)), span_id=span_id_of(job_id, *words), parent_id=context.span_id,
        start=stay.start, end=stay.end, service="scheduler",
    )  # fmt: skip


def _attempt_span(job_id: str, context: SpanContext, number: int, start: float, end: float | None) -> TraceSpan:
    """Return the span of an attempt without stored spans: it runs, or its worker was lost."""
    return TraceSpan(
        name=f"attempt {number}", span_id=span_id_of(job_id, "attempt", number), parent_id=context.span_id,
        start=start, end=end, service="worker",
    )  # fmt: skip


def in_order(root: TraceSpan, spans: Sequence[TraceSpan]) -> list[TraceSpan]:
    """Return spans in the order of a tree: each after its parent, siblings by their beginning (pure).

    A span without a known parent, or that would be its own ancestor, becomes a child of ``root``.
    """
    known = {root.span_id: root}
    for span in spans:
        known.setdefault(span.span_id, span)
    below: dict[str, list[TraceSpan]] = {}
    for span_id, span in known.items():
        if span is not root:
            below.setdefault(span.parent_id if span.parent_id in known else root.span_id, []).append(span)
        assert span_id == span.span_id
    ordered, open_spans, seen = list[TraceSpan](), [root], {root.span_id}
    while open_spans:
        span = open_spans.pop()
        ordered.append(span)
        for child in sorted(below.get(span.span_id, ()), key=lambda each: (each.start, each.name), reverse=True):
            if child.span_id not in seen:
                seen.add(child.span_id)
                open_spans.append(child)
    lost = [span for span in known.values() if span.span_id not in seen]
    return ordered + [span.model_copy(update={"parent_id": root.span_id}) for span in lost]


def depths(spans: Sequence[TraceSpan]) -> list[int]:
    """Return how deep each of a trace's spans lies (pure)."""
    found: dict[str, int] = {}
    for span in spans:
        found[span.span_id] = found.get(span.parent_id, -1) + 1 if span.parent_id else 0
    return [found[span.span_id] for span in spans]

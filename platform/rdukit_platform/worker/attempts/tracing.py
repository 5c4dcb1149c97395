"""Spans of one attempt: the worker's own, and those in its box's file, which is not trusted."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rdukit.settings import TELEMETRY_OTLP_ENDPOINT, TELEMETRY_SPAN_FILE, TELEMETRY_TRACEPARENT
from rdukit.telemetry.model import Attribute, Span, SpanContext, SpanKind
from rdukit.telemetry.otlp_lines import read_span_file
from rdukit.telemetry.spans import begin_span, end_span, format_traceparent, pass_on
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs.trace import MAX_SPANS, context_of, flat_span, span_id_of

#: Number of bytes that are read from a box's file.
MAX_FILE_BYTES: Final = 1 << 20


class AttemptTrace:
    """Spans of a worker's attempt, from its claim to its end."""

    def __init__(self, job: JobRow, collected: list[Span], output: Path, part: int = 0) -> None:
        """Begin the attempt's span, or a further part's, whose parent is the attempt's.

        Args:
            collected: collector of the worker's spans of the attempt.
            output: the folder that the box may write in.
        """
        self._collected = collected
        #: File that the box writes.
        self.file = output / f".spans-{job.attempt}.jsonl"
        self._told: list[Span] | None = None
        about: dict[str, Attribute] = {
            "rdukit.job": job.id, "rdukit.attempt": job.attempt, "rdukit.box": job.box, "rdukit.verb": job.verb,
            "rdukit.tiles": job.tiles,
        }  # fmt: skip
        name, further = f"attempt {job.attempt}", (part,) if part else ()
        if further:
            name, about["rdukit.part"] = f"{name} part {part}", part
        self._span = begin_span(
            name, about, kind=SpanKind.CONSUMER, parent=context_of(job),
            span_id=span_id_of(job.id, "attempt", job.attempt, *further),
        )  # fmt: skip
        self._ended: list[dict[str, object]] | None = None

    @property
    def context(self) -> SpanContext:
        """Return the context of the attempt's span, the parent of its other spans."""
        return self._span.context

    def environment(self, parent: SpanContext) -> dict[str, str]:
        """Return the variables that make a box write its spans, children of ``parent``, to a file only."""
        return {
            TELEMETRY_TRACEPARENT.variable: format_traceparent(parent),
            TELEMETRY_SPAN_FILE.variable: str(self.file),
            TELEMETRY_OTLP_ENDPOINT.variable: "",
        }

    def read_box_spans(self) -> list[Span]:
        """Return the box's spans. They are read once: the file may be removed before the attempt's span ends."""
        if self._told is None:
            self._told = read_span_file(self.file, MAX_SPANS, MAX_FILE_BYTES)
        return self._told

    def end(self, error: str = "") -> list[dict[str, object]]:
        """End the attempt's span, export the box's spans, and return all in the form that attempts store."""
        if self._ended is None:
            own = list(self._collected)
            self._span.error = error
            reported = adopt(self.read_box_spans(), self._span, own)
            end_span(self._span)
            for span in reported:
                pass_on(span)
            flat = [flat_span(self._span, "worker"), *(flat_span(span, "worker") for span in own)]
            self._ended = (flat + [flat_span(span, "box") for span in reported])[:MAX_SPANS]
        return self._ended


def adopt(reported: Iterable[Span], attempt: Span, own: Iterable[Span]) -> list[Span]:
    """Adopt a box's spans into an attempt; untrusted values are overridden (pure).

    Trace, sampling and limits of time are the attempt's. Ids of the worker's spans are refused, parents must be spans
    of the attempt, and only rdukit's own attributes stay.
    """
    taken = {attempt.context.span_id, *(span.context.span_id for span in own)}
    kept: dict[str, Span] = {}
    for span in reported:
        if span.context.span_id not in taken:
            kept.setdefault(span.context.span_id, span)
    first_ns = attempt.start_ns
    for span in kept.values():
        is_known = span.parent_id in kept or span.parent_id in taken
        span.parent_id = span.parent_id if is_known else attempt.context.span_id
        span.context = SpanContext(attempt.context.trace_id, span.context.span_id, attempt.context.is_sampled)
        span.start_ns = max(span.start_ns, first_ns)
        span.end_ns = max(span.end_ns, span.start_ns)
        span.attributes = {key: value for key, value in span.attributes.items() if key.startswith("rdukit.")}
        span.links = ()
    return list(kept.values())

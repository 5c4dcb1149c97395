"""Spans of one attempt: the worker's own, and those that its box wrote into a file, which may be anything."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rdukit.settings import TELEMETRY_OTLP_ENDPOINT, TELEMETRY_SPAN_FILE, TELEMETRY_TRACEPARENT
from rdukit.telemetry.model import Attribute, Span, SpanContext, SpanKind
from rdukit.telemetry.otlp_lines import read_span_file
from rdukit.telemetry.spans import begin_span, end_span, format_traceparent, pass_on
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs.trace import MAX_SPANS, context_of, flat_span, span_id_of

#: Of a box's file, what is looked at.
MAX_FILE_BYTES: Final = 1 << 20


class AttemptTrace:
    """Spans of the attempt that a worker has, from its claim to its end."""

    def __init__(self, job: JobRow, collected: list[Span], output: Path, part: int = 0) -> None:
        """Begin it, or that of a further part, which lies in the attempt's.

        Args:
            collected: where the worker's spans of the attempt gather.
            output: the folder that the box may write to.
        """
        self._collected = collected
        #: Which the box writes.
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
        """Return the span that the attempt's spans lie in."""
        return self._span.context

    def environment(self, parent: SpanContext) -> dict[str, str]:
        """Return the variables by which a box tells its spans below ``parent``: to a file, and to no collector."""
        return {
            TELEMETRY_TRACEPARENT.variable: format_traceparent(parent),
            TELEMETRY_SPAN_FILE.variable: str(self.file),
            TELEMETRY_OTLP_ENDPOINT.variable: "",
        }

    def read_box_spans(self) -> list[Span]:
        """Return what the box has told, which is read once: its file may go before the attempt's span ends."""
        if self._told is None:
            self._told = read_span_file(self.file, MAX_SPANS, MAX_FILE_BYTES)
        return self._told

    def end(self, error: str = "") -> list[dict[str, object]]:
        """End the attempt's span, hand on what the box told, and return all as attempts keep it."""
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
    """Make a box's spans part of an attempt, whatever they say of themselves (pure).

    Their trace is the attempt's, so are their sampling and their time; none takes the id of a span that is the
    worker's; a parent is a span of the attempt; attributes are rdukit's own.
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

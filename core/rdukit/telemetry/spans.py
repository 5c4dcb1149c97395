"""Spans of traces in OpenTelemetry's data model, and the propagation of traces between processes.

Without a sink, a span costs almost nothing: ``span`` only checks for one. OpenTelemetry's SDK is imported only if spans
are sent to a collector.

Source: W3C Trace Context (``traceparent``); OpenTelemetry's specification of traces and of environment variables.
"""

import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final, Protocol

from rdukit.settings import TELEMETRY_OTLP_ENDPOINT, TELEMETRY_SPAN_FILE, TELEMETRY_TRACEPARENT, resolve
from rdukit.telemetry.model import Attribute, Span, SpanContext, SpanKind

#: Name of the header, and in upper case of the variable, that propagates a trace.
TRACEPARENT: Final = "traceparent"
#: Programs that continue the trace in their environment, whose work they do.
PROGRAM: Final = "program"
BOX: Final = "box"
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class SpanSink(Protocol):
    """Destination of ended spans."""

    def take(self, span: Span) -> None:
        """Take a span that has ended; never raises."""

    def is_sampled(self, trace_id: str, parent: SpanContext | None) -> bool:
        """Return whether a trace that begins here, or continues from ``parent``, is to be sent."""

    def close(self) -> None:
        """Send pending spans, for some seconds at most."""


class _Sinks:
    """Sinks of this process, opened for the first span."""

    def __init__(self) -> None:
        self.service = PROGRAM
        #: Default parent of the spans of a program or a box.
        self.parent: SpanContext | None = None
        self.opened: tuple[SpanSink, ...] | None = None

    def all(self) -> tuple[SpanSink, ...]:
        if self.opened is None:
            configure_telemetry(self.service)
        return self.opened or ()


_sinks: Final = _Sinks()
_current: ContextVar[SpanContext | None] = ContextVar("span", default=None)
_collected: ContextVar[list[Span] | None] = ContextVar("collected_spans", default=None)


def configure_telemetry(service: str) -> None:
    """Open the sinks of the settings for this service's process; close the former ones."""
    close_telemetry()
    _sinks.service = service
    _sinks.parent = find_traceparent(resolve(TELEMETRY_TRACEPARENT)) if service in {PROGRAM, BOX} else None
    _sinks.opened = _open_sinks(service)


def name_service(service: str) -> None:
    """Set this process's service name in log and spans; the first span opens the sinks."""
    _sinks.service = service


def service_name() -> str:
    """Return this process's service name, or ``program``."""
    return _sinks.service


def close_telemetry() -> None:
    """Send pending spans and close the sinks; the next span opens them again."""
    opened, _sinks.opened = _sinks.opened, None
    for sink in opened or ():
        sink.close()


def _open_sinks(service: str) -> tuple[SpanSink, ...]:
    found = list[SpanSink]()
    if file := resolve(TELEMETRY_SPAN_FILE):
        from rdukit.telemetry.otlp_lines import SpanFile

        found.append(SpanFile(Path(file).expanduser(), service))
    if endpoint := resolve(TELEMETRY_OTLP_ENDPOINT):
        from rdukit.telemetry.otlp_export import OtlpSink

        found.append(OtlpSink(endpoint, service))
    return tuple(found)


def is_traced() -> bool:
    """Return whether spans have a destination."""
    return bool(_sinks.all()) or _collected.get() is not None


def current_context() -> SpanContext | None:
    """Return the span that this code runs in."""
    return _current.get()


@contextmanager
def within(context: SpanContext | None) -> Iterator[None]:
    """Make a span, recorded here or elsewhere, the parent of the block's spans and log lines."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def collecting() -> Iterator[list[Span]]:
    """Collect the spans that end in the block, in addition to the sinks."""
    found = list[Span]()
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


@contextmanager
def span(
    name: str,
    attributes: Mapping[str, Attribute] | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: SpanContext | None = None,
    links: Sequence[SpanContext] = (),
) -> Iterator[Span]:
    """Record the block as a span, if spans have a destination.

    Args:
        parent: parent from another process; ``None``: the current span.
    """
    if not is_traced():
        yield Span(name, _NOWHERE)
        return
    begun = begin_span(name, attributes, kind=kind, parent=parent, links=links)
    token = _current.set(begun.context)
    try:
        yield begun
    except BaseException as error:
        begun.error = type(error).__name__
        raise
    finally:
        _current.reset(token)
        end_span(begun)


_NOWHERE: Final = SpanContext("0" * 32, "0" * 16, False)


def begin_span(
    name: str,
    attributes: Mapping[str, Attribute] | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: SpanContext | None = None,
    links: Sequence[SpanContext] = (),
    start_ns: int = 0,
    span_id: str = "",
) -> Span:
    """Begin a span that ``end_span`` ends, for work that does not begin and end in one block.

    Args:
        parent: as in ``span``.
        start_ns: start time; 0: now.
        span_id: id, if others must know it.
    """
    remote = parent
    above = _current.get() if parent is None else parent
    if above is None:
        remote = above = _sinks.parent
    trace_id = secrets.token_hex(16) if above is None else above.trace_id
    is_sampled = True
    if above is None or remote is not None:
        is_sampled = all(sink.is_sampled(trace_id, above) for sink in _sinks.all())
    else:
        is_sampled = above.is_sampled
    return Span(
        name,
        SpanContext(trace_id, span_id or secrets.token_hex(8), is_sampled),
        "" if above is None else above.span_id,
        kind,
        start_ns or time.time_ns(),
        attributes=dict(attributes or {}),
        links=tuple(links),
    )


def end_span(begun: Span, end_ns: int = 0) -> None:
    """End a span, now or at the given time, and pass it to the sinks and collectors."""
    begun.end_ns = max(end_ns or time.time_ns(), begun.start_ns)
    pass_on(begun)


def pass_on(ended: Span) -> None:
    """Pass on a span that ended here or in another process."""
    collected = _collected.get()
    if collected is not None:
        collected.append(ended)
    for sink in _sinks.all():
        sink.take(ended)


def format_traceparent(context: SpanContext) -> str:
    """Return the header's value."""
    return f"00-{context.trace_id}-{context.span_id}-{int(context.is_sampled):02x}"


def find_traceparent(text: str | None) -> SpanContext | None:
    """Parse a ``traceparent``; ``None`` if it is missing or malformed, in which case a new trace begins."""
    found = None if text is None else _TRACEPARENT.fullmatch(text.strip()[:256])
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    # A later version may have more parts; its first four are the same as ours.
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & 1))

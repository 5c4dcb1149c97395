"""Spans as lines of OTLP in JSON: one span a line, in the file format of OpenTelemetry's collector.

Readers do not trust a file: lines that are not spans, and lines beyond the limits, are skipped.

Source: OTLP specification, "JSON Protobuf Encoding"; the collector's ``otlpjsonfile`` receiver.
"""

import json
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rdukit.telemetry.model import Attribute, Span, SpanContext, SpanKind

#: Maximum length of a name and of a text, and maximum number of attributes, of a span in a file.
MAX_TEXT: Final = 200
MAX_ATTRIBUTES: Final = 40
_HEX: Final = frozenset("0123456789abcdef")
_MAX_NS: Final = (1 << 63) - 1


class SpanFile:
    """Sink that appends spans to a file, each with one system call, so that a killed process leaves complete lines."""

    def __init__(self, path: Path, service: str) -> None:
        self._path, self._service = path, service
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def take(self, span: Span) -> None:
        """Append the span; a full disk loses spans, but raises no error."""
        line = json.dumps(to_otlp(span, self._service), separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                if self._descriptor is None:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                    self._descriptor = os.open(self._path, flags, 0o644)
                os.write(self._descriptor, line)
        except OSError:
            return

    def is_sampled(self, trace_id: str, parent: SpanContext | None) -> bool:
        """Return True: a file gets all spans; other sinks may also get the trace."""
        return parent is None or parent.is_sampled

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


def to_otlp(span: Span, service: str) -> dict[str, object]:
    """Return a span as one export of OTLP (pure)."""
    data: dict[str, object] = {
        "traceId": span.context.trace_id,
        "spanId": span.context.span_id,
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": [{"key": key, "value": _value(value)} for key, value in span.attributes.items()],
    }
    if span.parent_id:
        data["parentSpanId"] = span.parent_id
    if span.links:
        data["links"] = [{"traceId": link.trace_id, "spanId": link.span_id} for link in span.links]
    if span.error:
        data["status"] = {"code": 2, "message": span.error}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": f"rdukit-{service}"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "rdukit"}, "spans": [data]}]}]}


def _value(value: Attribute) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def read_span_file(path: Path, max_spans: int, max_bytes: int) -> list[Span]:
    """Return the first spans of an untrusted file; empty if it is missing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        data = _read_regular(descriptor, max_bytes)
    finally:
        os.close(descriptor)
    found = list[Span]()
    for line in data.splitlines():
        for each in _spans_in(line):
            span = find_span(each)
            if span is not None:
                found.append(span)
            if len(found) >= max_spans:
                return found
    return found


def _read_regular(descriptor: int, max_bytes: int) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return b""
    data = bytearray()
    with suppress(OSError):
        while len(data) < max_bytes and (block := os.read(descriptor, max_bytes - len(data))):
            data += block
    return bytes(data)


def _spans_in(line: bytes) -> Iterator[object]:
    try:
        value: Any = json.loads(line)
        for resource in value["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                yield from scope["spans"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return


def find_span(data: object) -> Span | None:
    """Return a span from its OTLP in JSON; ``None`` if it is malformed (pure)."""
    if not isinstance(data, Mapping):
        return None
    trace_id, span_id, parent_id = data.get("traceId"), data.get("spanId"), data.get("parentSpanId") or ""
    start_ns, end_ns = _nanoseconds(data.get("startTimeUnixNano")), _nanoseconds(data.get("endTimeUnixNano"))
    is_legal = _is_hex(trace_id, 32) and _is_hex(span_id, 16) and (parent_id == "" or _is_hex(parent_id, 16))
    if not is_legal or start_ns is None or end_ns is None or end_ns < start_ns:
        return None
    status, kind = data.get("status"), data.get("kind")
    message = status.get("message") if isinstance(status, Mapping) and status.get("code") == 2 else ""
    known = {int(each) for each in SpanKind}
    return Span(
        _text(data.get("name")) or "?",
        SpanContext(str(trace_id), str(span_id)),
        str(parent_id),
        SpanKind(kind) if isinstance(kind, int) and kind in known else SpanKind.INTERNAL,
        start_ns,
        end_ns,
        dict(_attributes(data.get("attributes"))),
        error=_text(message),
    )


def _attributes(data: object) -> Iterable[tuple[str, Attribute]]:
    for each in data[:MAX_ATTRIBUTES] if isinstance(data, list) else ():
        key, value = (each.get("key"), each.get("value")) if isinstance(each, Mapping) else (None, None)
        if not isinstance(key, str) or not key or not isinstance(value, Mapping):
            continue
        text, number, real, flag = (value.get(f"{kind}Value") for kind in ("string", "int", "double", "bool"))
        if isinstance(text, str):
            yield _text(key), _text(text)
        elif isinstance(flag, bool):
            yield _text(key), flag
        elif isinstance(number, str) and number.removeprefix("-").isdecimal() and len(number) < 20:
            yield _text(key), int(number)
        elif isinstance(real, float | int) and abs(real) < float("inf"):
            yield _text(key), float(real)


def _text(value: object) -> str:
    return "".join(letter for letter in value[:MAX_TEXT] if letter.isprintable()) if isinstance(value, str) else ""


def _is_hex(value: object, digits: int) -> bool:
    return isinstance(value, str) and len(value) == digits and set(value) <= _HEX and set(value) != {"0"}


def _nanoseconds(value: object) -> int | None:
    if not isinstance(value, str) or not value.isdecimal() or len(value) > 19:
        return None
    return int(value) if int(value) <= _MAX_NS else None

"""Values of traces: a span, and its position in a trace.

Source: OpenTelemetry's specification of traces and OTLP.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True)
class SpanContext:
    """Position in a trace: ids of 32 and 16 hexadecimal digits, and whether the trace is sent to a collector."""

    trace_id: str
    span_id: str
    is_sampled: bool = True


class SpanKind(IntEnum):
    """Kind of a span, numbered as in OTLP."""

    INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5


@dataclass(slots=True)
class Span:
    """Span. Times are nanoseconds since 1970; ``error`` is empty if there was none."""

    name: str
    context: SpanContext
    parent_id: str = ""
    kind: SpanKind = SpanKind.INTERNAL
    start_ns: int = 0
    end_ns: int = 0
    attributes: dict[str, Attribute] = field(default_factory=dict)
    links: tuple[SpanContext, ...] = ()
    error: str = ""

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""
        self.attributes.update(attributes)

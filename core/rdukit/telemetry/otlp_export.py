"""Sends spans to a collector with OpenTelemetry's SDK, which batches, encodes and retries.

Source: OpenTelemetry's environment variables, which the SDK reads: ``OTEL_EXPORTER_OTLP_*`` (protocol, headers,
certificate, time-out), ``OTEL_BSP_*``, ``OTEL_TRACES_SAMPLER``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_SERVICE_NAME``.
"""

import atexit
import logging
from typing import Final

from rdukit import __version__
from rdukit.errors import InvalidArgument
from rdukit.settings import (
    TELEMETRY_OTLP_ENDPOINT,
    TELEMETRY_OTLP_PROTOCOL,
    TELEMETRY_SERVICE,
    resolve,
)
from rdukit.telemetry.model import Span, SpanContext

try:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.sdk.trace.sampling import Decision
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        set_span_in_context,
    )
    from opentelemetry.trace import SpanContext as OtelContext
except ImportError as cause:
    raise InvalidArgument(
        f"{TELEMETRY_OTLP_ENDPOINT.name} is set, but OpenTelemetry's SDK is not installed: pip install 'rdukit[otlp]', "
        "or unset it"
    ) from cause

FLUSH_MS: Final = 3000


class OtlpSink:
    """Sink that sends sampled spans in batches, from a separate thread."""

    def __init__(self, endpoint: str, service: str) -> None:
        """Prepare the exporter; the first batch connects.

        Raises:
            InvalidArgument: the SDK is not installed.
        """
        name = resolve(TELEMETRY_SERVICE) or f"rdukit-{service}"
        self._resource = Resource.create({"service.name": name, "service.version": __version__})
        self._scope = InstrumentationScope(f"rdukit.{service}", __version__)
        # Created for its sampler, which it reads from the environment.
        self._sampler = TracerProvider(resource=self._resource, shutdown_on_exit=False).sampler
        # One message for each batch about an unreachable collector is enough.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        self._processor = BatchSpanProcessor(_make_exporter(endpoint))
        atexit.register(self.close)

    def take(self, span: Span) -> None:
        """Queue the span."""
        if span.context.is_sampled:
            self._processor.on_end(to_readable(span, self._resource, self._scope))

    def is_sampled(self, trace_id: str, parent: SpanContext | None) -> bool:
        """Ask the sampler that ``OTEL_TRACES_SAMPLER`` names."""
        context = None if parent is None else set_span_in_context(NonRecordingSpan(to_otel(parent, is_remote=True)))
        return self._sampler.should_sample(context, int(trace_id, 16), "").decision is Decision.RECORD_AND_SAMPLE

    def close(self) -> None:
        """Send the queued spans."""
        atexit.unregister(self.close)
        self._processor.force_flush(FLUSH_MS)
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _make_exporter(endpoint: str) -> SpanExporter:
    if resolve(TELEMETRY_OTLP_PROTOCOL) == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=endpoint.rstrip("/") + "/v1/traces")


def to_otel(context: SpanContext, *, is_remote: bool = False) -> OtelContext:
    """Return the SDK's form of a context (pure)."""
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    return OtelContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote, flags)


def to_readable(span: Span, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    """Return the SDK's form of a span that has ended (pure)."""
    above = SpanContext(span.context.trace_id, span.parent_id, span.context.is_sampled) if span.parent_id else None
    return ReadableSpan(
        name=span.name,
        context=to_otel(span.context),
        parent=None if above is None else to_otel(above),
        resource=resource,
        attributes=span.attributes,
        links=[Link(to_otel(link)) for link in span.links],
        kind=SpanKind[span.kind.name],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=scope,
    )

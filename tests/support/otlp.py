"""A collector that keeps what it is sent: OTLP over HTTP and over gRPC, decoded by OpenTelemetry's own messages."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as the collector got it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: tuple[str, ...]
    is_error: bool
    seconds: float


class Collector:
    """What was received, and where spans are sent to."""

    def __init__(self) -> None:
        self.url = ""
        self._spans: list[ReceivedSpan] = []
        self._arrived = threading.Condition()

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keep the spans of one export."""
        found = []
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    found.append(
                        ReceivedSpan(
                            names["service.name"], span.name, span.trace_id.hex(), span.span_id.hex(),
                            span.parent_span_id.hex(),
                            {each.key: _value(each.value) for each in span.attributes},
                            tuple(link.span_id.hex() for link in span.links), span.status.code == 2,
                            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        )
                    )  # fmt: skip
        with self._arrived:
            self._spans += found
            self._arrived.notify_all()

    def wait_for(self, *names: str, timeout_s: float = 60.0) -> list[ReceivedSpan]:
        """Return all spans as soon as there is one of each name."""
        with self._arrived:
            wanted = set(names)
            if not self._arrived.wait_for(lambda: wanted <= {span.name for span in self._spans}, timeout_s):
                raise TimeoutError(f"missing: {wanted - {span.name for span in self._spans}}")
            return list(self._spans)


def _value(value: AnyValue) -> object:
    return getattr(value, str(value.WhichOneof("value")))


@contextmanager
def http_collector() -> Iterator[Collector]:
    """Run one that is asked over HTTP."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    """Run one that is asked over gRPC."""
    collector = Collector()

    class Servicer(TraceServiceServicer):
        def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:
            collector.take(request)
            return ExportTraceServiceResponse()

    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        add_TraceServiceServicer_to_server(Servicer(), server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        collector.url = f"http://127.0.0.1:{port}"
        try:
            yield collector
        finally:
            server.stop(None).wait()

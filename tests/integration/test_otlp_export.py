"""Spans sent to a collector over both of OTLP's wires, and the variables of OpenTelemetry that say how."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rdukit.telemetry.model import SpanContext, SpanKind
from rdukit.telemetry.spans import close_telemetry, configure_telemetry, span
from support import shows
from support.otlp import Collector, grpc_collector, http_collector

pytestmark = shows("observability")

REMOTE = SpanContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    yield
    close_telemetry()


@pytest.mark.parametrize(("protocol", "collector"), [("http/protobuf", http_collector), ("grpc", grpc_collector)])
def test_spans_arrive_with_their_service_parents_links_and_errors(
    protocol: str, collector: Callable[[], AbstractContextManager[Collector]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv("RDUKIT_TELEMETRY_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab")
        configure_telemetry("worker")
        attempt = span("attempt", {"rdukit.tiles": 4}, kind=SpanKind.CONSUMER, parent=REMOTE, links=[REMOTE])
        with attempt, pytest.raises(KeyError), span("box"):
            raise KeyError
        close_telemetry()
        spans = {each.name: each for each in received.wait_for("attempt", "box")}
    assert {each.service for each in spans.values()} == {"rdukit-worker"}
    assert {each.trace_id for each in spans.values()} == {REMOTE.trace_id}
    assert spans["attempt"].parent_id == REMOTE.span_id
    assert spans["attempt"].attributes == {"rdukit.tiles": 4}
    assert spans["attempt"].links == (REMOTE.span_id,)
    assert spans["box"].parent_id == spans["attempt"].span_id
    assert (spans["box"].is_error, spans["attempt"].is_error) == (True, False)


def test_the_sampler_of_the_environment_decides_for_new_traces_and_the_caller_for_his(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with http_collector() as received:
        monkeypatch.setenv("RDUKIT_TELEMETRY_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv("RDUKIT_TELEMETRY_SERVICE", "mine")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
        configure_telemetry("gateway")
        with span("ours") as ours, span("below"):
            assert not ours.context.is_sampled
        with span("theirs", parent=REMOTE), span("last"):
            pass
        close_telemetry()
        found = received.wait_for("theirs", "last")
    assert {each.name for each in found} == {"theirs", "last"}
    assert {each.service for each in found} == {"mine"}


def test_a_collector_that_is_away_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_TELEMETRY_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    configure_telemetry("gateway")
    with span("request"):
        pass

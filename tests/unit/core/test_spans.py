"""Spans: what they belong to, and what is read of a file that anybody wrote."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.telemetry.model import SpanContext, SpanKind
from rdukit.telemetry.otlp_lines import MAX_TEXT, find_span, read_span_file, to_otlp
from rdukit.telemetry.spans import (
    close_telemetry,
    collecting,
    configure_telemetry,
    current_context,
    find_traceparent,
    format_traceparent,
    is_traced,
    span,
    within,
)
from support import shows

pytestmark = shows("observability")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    close_telemetry()
    yield
    close_telemetry()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"00-{TRACE}-{SPAN}-01", SpanContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-00", SpanContext(TRACE, SPAN, False)),
        (f"cc-{TRACE}-{SPAN}-01-what-will-be", SpanContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        ("", None),
        (None, None),
        ("x" * 100_000, None),
    ],
)
def test_a_traceparent_is_read_as_w3c_says(text: str | None, found: SpanContext | None) -> None:
    assert find_traceparent(text) == found
    if found is not None and text is not None and text.startswith("00"):
        assert format_traceparent(found) == text


def test_spans_lie_in_each_other_and_in_the_trace_that_came_from_elsewhere() -> None:
    with collecting() as found, within(SpanContext(TRACE, SPAN)), span("outer", {"rdukit.job": "job-1"}) as outer:
        with span("inner") as inner:
            assert current_context() == inner.context
        with pytest.raises(ValueError), span("broken"):
            raise ValueError
    assert [each.name for each in found] == ["inner", "broken", "outer"]
    assert {each.context.trace_id for each in found} == {TRACE}
    assert [each.parent_id for each in found] == [outer.context.span_id, outer.context.span_id, SPAN]
    assert [each.error for each in found] == ["", "ValueError", ""]
    assert found[2].start_ns <= found[0].start_ns <= found[0].end_ns <= found[2].end_ns


def test_a_program_belongs_to_the_trace_of_its_environment_and_a_service_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "spans.jsonl"
    monkeypatch.setenv("RDUKIT_TELEMETRY_SPAN_FILE", str(file))
    monkeypatch.setenv("RDUKIT_TELEMETRY_TRACEPARENT", f"00-{TRACE}-{SPAN}-01")
    for service in ("program", "gateway"):
        configure_telemetry(service)
        assert is_traced()
        with span(service):
            pass
    close_telemetry()
    program, gateway = read_span_file(file, 10, 1 << 20)
    assert (program.name, program.context.trace_id, program.parent_id) == ("program", TRACE, SPAN)
    assert gateway.parent_id == ""
    assert gateway.context.trace_id != TRACE


def test_a_span_written_and_read_again_is_the_same() -> None:
    with collecting() as found, span("compile", {"a": "b", "n": -3, "f": 0.5, "yes": True}, kind=SpanKind.CLIENT):
        pass
    (told,) = to_otlp(found[0], "box")["resourceSpans"][0]["scopeSpans"][0]["spans"]  # type: ignore[index]
    assert find_span(json.loads(json.dumps(told))) == found[0]


def test_of_a_file_that_anybody_wrote_only_spans_are_taken_and_not_too_many(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    good = {
        "traceId": TRACE, "spanId": SPAN, "name": "n\x00" + "x" * 10_000, "startTimeUnixNano": "1",
        "endTimeUnixNano": "2", "kind": 99,
        "attributes": [
            {"key": "rdukit.text", "value": {"stringValue": "v" * 10_000}},
            {"key": "n", "value": {"doubleValue": 1e999}}, {"key": 7, "value": {}}, "no",
            {"key": "big", "value": {"intValue": "9" * 400}},
        ],
    }  # fmt: skip
    bad: list[object] = [
        None, 7, [], {}, {**good, "traceId": "0" * 32}, {**good, "spanId": "zz"}, {**good, "startTimeUnixNano": "3"},
        {**good, "endTimeUnixNano": "9" * 30}, {**good, "parentSpanId": "../../etc"},
    ]  # fmt: skip
    lines = [json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [each]}]}]}) for each in [*bad, good, good, good]]
    file.write_text("\n".join(["{", "[" * 5000, '{"resourceSpans": 7}', *lines, lines[-1][:40]]))
    found = read_span_file(file, 2, 1 << 20)
    assert len(found) == 2
    assert found[0].name == "n" + "x" * (MAX_TEXT - 2)
    assert found[0].attributes == {"rdukit.text": "v" * MAX_TEXT}
    assert found[0].kind is SpanKind.INTERNAL
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read_span_file(link, 2, 1 << 20) == read_span_file(tmp_path, 2, 1 << 20) == []
    assert read_span_file(tmp_path / "missing", 2, 1 << 20) == []
    assert read_span_file(file, 100, 50) == []

"""The trace of a job: waits from its events, what of a box's spans is believed, and the order in which it is shown."""

from rdukit.telemetry.model import Span, SpanContext
from rdukit_platform.cli.job_trace import BAR, draw_bar, waterfall
from rdukit_platform.console.waterfall import LEAST, WIDTH, span_lines
from rdukit_platform.jobs.states import JobState
from rdukit_platform.jobs.trace import Stay, TraceSpan, depths, find_stays, in_order
from rdukit_platform.worker.attempts.tracing import adopt
from support import shows

pytestmark = shows("observability", "console", "traces")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def sid(number: int) -> str:
    return f"{number:016x}"


def test_waits_are_the_times_between_events_of_state() -> None:
    events = [
        (1.0, 0, {"to": "submitted", "event": "submit"}),
        (1.0, 0, {"to": "queued", "event": "ready"}),
        (3.0, 0, {"to": "starting", "event": "admit"}),
        (4.0, 1, {"to": "running", "event": "start"}),
        (5.0, 1, {"to": "retrying", "event": "fail"}),
        (7.0, 1, {"to": "queued", "event": "due"}),
    ]
    assert find_stays(events) == [
        Stay(JobState.QUEUED, 1, 1.0, 3.0),
        Stay(JobState.RETRYING, 1, 5.0, 7.0),
        Stay(JobState.QUEUED, 0, 7.0, None),
    ]


def test_what_a_box_says_of_its_spans_moves_none_out_of_its_attempt() -> None:
    attempt = Span("attempt 1", SpanContext(TRACE, sid(1), False), start_ns=1000)
    own = [Span("start box", SpanContext(TRACE, sid(2)), sid(1))]
    told = [
        Span("forged", SpanContext("f" * 32, sid(2)), sid(1)),
        Span("early", SpanContext("f" * 32, sid(3)), "e" * 16, start_ns=5, end_ns=10, attributes={"secret": "x"}),
        Span("below", SpanContext(TRACE, sid(4)), sid(3), start_ns=1500, end_ns=1600, attributes={"rdukit.runs": 2}),
        Span("twice", SpanContext(TRACE, sid(4)), sid(3), start_ns=1500, end_ns=1600),
    ]
    early, below = adopt(told, attempt, own)
    assert (early.name, early.parent_id, early.start_ns, early.end_ns) == ("early", sid(1), 1000, 1000)
    assert early.context == SpanContext(TRACE, sid(3), False)
    assert early.attributes == {}
    assert (below.name, below.parent_id, below.attributes) == ("below", sid(3), {"rdukit.runs": 2})


def shown(number: int, parent: int, start: float, end: float | None = None) -> TraceSpan:
    above = sid(parent) if parent else ""
    return TraceSpan(name=f"s{number}", span_id=sid(number), parent_id=above, start=start, end=end, service="x")


def test_spans_come_as_a_tree_is_read_and_rings_lie_in_the_root() -> None:
    spans = [shown(5, 4, 3.0), shown(3, 1, 2.0), shown(2, 1, 1.0), shown(4, 2, 1.5), shown(7, 8, 0.0), shown(8, 7, 0.0)]
    ordered = in_order(shown(1, 0, 0.0), spans)
    assert [span.name for span in ordered] == ["s1", "s2", "s4", "s5", "s3", "s7", "s8"]
    assert depths(ordered) == [0, 1, 2, 3, 1, 1, 1]


def test_a_waterfall_shows_each_span_under_its_parent_where_it_was() -> None:
    spans = [shown(1, 0, 10.0, 12.0), shown(2, 1, 11.0, 12.0), shown(3, 2, 11.5)]
    spans[1].attributes["rdukit.emulated.seconds"] = 0.25
    spans[1].error = "box-failed"
    rows = waterfall([span.model_dump() for span in spans])
    assert [row[:5] for row in rows] == [
        ("s1", "x", "0 s", "2 s", ""),
        ("  s2 [box-failed]", "x", "1 s", "1 s", "250 ms"),
        ("    s3", "x", "1.5 s", "500 ms …", ""),
    ]
    assert rows[0][5] == "█" * BAR
    assert rows[1][5] == " " * (BAR // 2) + "█" * (BAR // 2)


def test_what_began_before_the_clock_was_set_back_lasted_no_less_than_nothing() -> None:
    spans = [shown(1, 0, 7200.0, 60.0), shown(2, 1, 50.0, 60.0)]
    assert [row[2:4] for row in waterfall([span.model_dump() for span in spans])] == [
        ("1 h 59 min", "0 s"),
        ("0 s", "10 s"),
    ]
    assert [line.took for line in span_lines(spans, 60.0)] == ["0 s", "10 s"]


def test_a_bar_is_never_nothing_and_never_leaves_its_column() -> None:
    assert draw_bar(0.0, 0.0, 10.0) == "▏"
    assert draw_bar(10.0, 10.0, 10.0) == " " * (BAR - 1) + "▏"
    assert all(len(draw_bar(start / 10, 10.0, 10.0)) <= BAR for start in range(101))
    assert draw_bar(0.0, 0.0, 0.0) == ""


def test_the_pages_bars_lie_where_the_spans_were_and_what_goes_on_lasts_until_now() -> None:
    spans = [shown(1, 0, 10.0, 12.0), shown(2, 1, 11.0, 11.0), shown(3, 2, 11.5)]
    lines = span_lines(spans, 14.0)
    assert [(line.depth, line.left, line.width) for line in lines] == [
        (0, 0.0, WIDTH / 2), (1, WIDTH / 4, LEAST), (2, WIDTH * 1.5 / 4, WIDTH * 2.5 / 4),
    ]  # fmt: skip
    assert [(line.start, line.took) for line in lines] == [("0 s", "2 s"), ("1 s", "0 s"), ("1.5 s", "2.5 s")]

"""Latency and load of endpoints in memory: percentiles within 5 %, time spread over minutes, bounded size, pictures."""

import pytest

from rdukit_platform.console.endpoint_load import view_load
from rdukit_platform.console.playground_stream import MAX_EVENT, EventReader, show_event
from rdukit_platform.endpoints.history import MAX_ENDPOINTS, MINUTES, CallHistory, bin_of, percentile
from support import shows

pytestmark = shows("endpoints", "console")


@pytest.mark.parametrize("seconds", [2e-4, 0.0123, 1.0, 97.0, 3600.0])
def test_a_latency_is_told_within_five_percent(seconds: float) -> None:
    assert percentile([(bin_of(seconds), 1)], 0.5) == pytest.approx(seconds, rel=0.05)


def test_percentiles_count_calls() -> None:
    bins = [(bin_of(0.01), 94), (bin_of(1.0), 6)]
    assert percentile(bins, 0.5) == pytest.approx(0.01, rel=0.05)
    assert percentile(bins, 0.95) == pytest.approx(1.0, rel=0.05)
    assert percentile([], 0.5) is None


def test_the_time_of_a_call_is_spread_over_its_minutes() -> None:
    history = CallHistory()
    history.record("a", 30.0, 90.0, failed=False)
    history.occupy("a", 90.0, 150.0)
    rows = history.read("a", 179.0)
    assert [(row.number, row.calls, row.in_progress) for row in rows] == [(0, 0, 0.5), (1, 1, 1.0), (2, 0, 0.5)]
    assert history.read("b", 179.0) == []


def test_failures_have_no_latency() -> None:
    history = CallHistory()
    history.record("a", 0.0, 1.0, failed=True)
    (row,) = history.read("a", 1.0)
    assert (row.calls, row.failures, row.bins.total()) == (1, 1, 0)


def test_minutes_without_calls_are_rows_and_old_ones_go() -> None:
    history = CallHistory()
    for minute in (0, 3, MINUTES + 1):
        history.record("a", minute * 60.0, minute * 60.0 + 1.0, failed=False)
    rows = history.read("a", (MINUTES + 1) * 60.0 + 5.0)
    assert [row.number for row in rows] == list(range(3, MINUTES + 2))
    assert sum(row.calls for row in rows) == 2
    assert history.read("a", (3 * MINUTES) * 60.0) == []


def test_a_very_long_call_fills_the_kept_minutes_only() -> None:
    history = CallHistory()
    history.occupy("a", 0.0, 1e9)
    assert len(history.read("a", 1e9)) == MINUTES


def test_the_endpoint_that_was_called_least_recently_makes_room() -> None:
    history = CallHistory()
    for number in range(MAX_ENDPOINTS):
        history.record(str(number), 0.0, 1.0, failed=False)
    history.record("0", 0.0, 1.0, failed=False)
    history.record("new", 0.0, 1.0, failed=False)
    assert history.read("0", 1.0) and history.read("new", 1.0) and not history.read("1", 1.0)


def test_the_pictures_have_units_and_begin_with_two_minutes() -> None:
    history = CallHistory()
    assert view_load(history.read("a", 60.0), 1) is None
    history.record("a", 60.0, 60.02, failed=False)
    first = view_load(history.read("a", 61.0), 1)
    assert first is not None and first.latency is None and first.in_progress is None and first.calls == 1
    history.record("a", 120.0, 120.04, failed=False)
    load = view_load(history.read("a", 121.0), 2)
    assert load is not None and load.latency is not None and load.in_progress is not None
    assert load.unit == "ms" and load.lines[0].name == "median" and load.lines[0].text.endswith("ms")
    history.record("a", 120.0, 125.0, failed=False)
    slow = view_load(history.read("a", 126.0), 2)
    assert slow is not None and slow.unit == "s"


def test_events_may_be_cut_anywhere() -> None:
    stream = b'data: {"a": 1}\n\nevent: x\ndata:{"b": 2}\r\n\ndata: [DONE]\n\n'
    for cut in range(len(stream)):
        reader = EventReader()
        assert [*reader.read(stream[:cut]), *reader.read(stream[cut:])] == [{"a": 1}, {"b": 2}]
    with pytest.raises(ValueError, match=str(MAX_EVENT)):
        EventReader().read(b"x" * (MAX_EVENT + 1))


@pytest.mark.parametrize(
    "event",
    [
        {"choices": "x"}, {"choices": [3]}, {"choices": [{"delta": {"content": 3}}]}, {"usage": 3}, {},
        {"choices": [{"logprobs": {"content": [3]}}]} | {"choices": []},
    ],
)  # fmt: skip
def test_an_event_of_another_form_tells_nothing(event: dict[str, object]) -> None:
    assert show_event(event, 0) == {}


@pytest.mark.parametrize("others", [3, "x", {"a": 1}, [3, None, "x"], [{"token": None, "logprob": "x"}]])
def test_alternatives_of_another_form_are_left_out(others: object) -> None:
    entry = {"token": "x", "logprob": -1.0, "top_logprobs": others}
    told = show_event({"choices": [{"delta": {"content": "x"}, "logprobs": {"content": [entry]}}]}, 0)
    assert told["text"] == "x" and told["tokens"][0]["text"] == "x" and told["tokens"][0]["words"].startswith("36.8 %")


def test_very_many_tokens_come_as_text() -> None:
    event = {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": [{"token": "x", "logprob": -1.0}]}}]}
    assert set(show_event(event, 0)) == {"tokens", "text"}
    assert set(show_event(event, 2_000)) == {"text"}

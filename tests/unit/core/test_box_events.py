"""Server-sent events, framed and read back."""

from rdukit.box.sse import KEEP_ALIVE, frame_event, read_events
from support import shows

pytestmark = shows("operations", "wire")


def test_a_framed_event_reads_back_as_it_was() -> None:
    value = {"sequence": 3, "kind": "log", "log": "a line\nand another: ü"}
    frame = frame_event("log", 3, value)
    assert frame.startswith(b"event: log\nid: 3\ndata: {")
    assert frame.endswith(b"}\n\n")
    assert list(read_events(frame.decode().split("\n"))) == [value]


def test_comments_are_passed_over_and_an_event_that_is_cut_off_is_none() -> None:
    stream = KEEP_ALIVE + frame_event("state", 1, {"a": 1}) + b"event: result\ndata: {}\n"
    assert list(read_events(stream.decode().splitlines())) == [{"kind": "state", "sequence": "1", "a": 1}]


def test_data_lines_are_joined_and_carriage_returns_dropped() -> None:
    assert list(read_events(["data: {\r\n", 'data:"a": 1}\r\n', "\r\n"])) == [
        {"kind": "message", "sequence": "", "a": 1}
    ]

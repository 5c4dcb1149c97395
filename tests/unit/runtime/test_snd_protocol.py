"""What the node daemon accepts as a request."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit_node.daemon.protocol import OPERATIONS, read_request
from support import shows

pytestmark = shows("wire")


def line(**fields: object) -> bytes:
    return json.dumps({"protocol": 1, **fields}).encode()


def test_a_full_acquire_is_read() -> None:
    message = read_request(
        line(op="acquire", application="a", tiles=4, memory_bytes=0, tenant=None, launch="mpi", affinity="0xf0")
    )
    assert message.op == "acquire"
    assert message.arguments == {
        "application": "a", "tiles": 4, "memory_bytes": 0, "launch": "mpi", "affinity": 0xF0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"9" * 10_000, "not JSON"),
        (b"[1]", "is a list"),
        (b'{"op": "hello"}', "protocol None is not supported"),
        (line(op="hello", protocol=2), "expected 1"),
        (line(op="hello", protocol=True), "expected 1"),
        (line(op="reboot"), "unknown operation 'reboot'; expected hello, status, acquire"),
        (line(op=["hello"]), "unknown operation"),
        (line(op="hello", extra=1), "hello has no argument 'extra'; expected none"),
        (line(op="acquire", application="a", tiles=1), "acquire needs memory_bytes"),
        (line(op="acquire", application="a", tiles=0, memory_bytes=1), "tiles is 0; expected a whole number from 1"),
        (line(op="acquire", application="a", tiles=True, memory_bytes=1), "tiles is True"),
        (line(op="acquire", application="a", tiles=1.0, memory_bytes=1), "tiles is 1.0"),
        (line(op="acquire", application="a", tiles=1, memory_bytes=-1), "memory_bytes is -1"),
        (line(op="acquire", application="", tiles=1, memory_bytes=1), "printable text"),
        (line(op="acquire", application="a\nb", tiles=1, memory_bytes=1), "printable text"),
        (line(op="acquire", application="\ud800", tiles=1, memory_bytes=1), "printable text"),
        (line(op="acquire", application="a" * 257, tiles=1, memory_bytes=1), "1 to 256"),
        (line(op="acquire", application="a", tiles=1, memory_bytes=1, affinity="f"), "affinity is 'f'"),
        (line(op="report", lease="l", counters=[]), "counters is"),
        (line(op="report", lease="l", counters={"jumps": 1}), "numbers from 0 named runs"),
        (line(op="report", lease="l", counters={"runs": float("nan")}), "counters is"),
        (line(op="report", lease="l", counters={"runs": -1}), "counters is"),
        (line(op="report", lease="l", counters={"phase": "sleep"}), "phase: setup, run"),
        (line(op="events", since="x"), "since is 'x'"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_told_what_is_legal(text: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_request(text)
    assert words in caught.value.message
    assert len(caught.value.message) < 500
    json.dumps(caught.value.detail)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(sorted({name for arguments in OPERATIONS.values() for name in arguments}))


@settings(max_examples=150, deadline=None)
@given(op=st.sampled_from(sorted(OPERATIONS)) | json_values, arguments=st.dictionaries(names, json_values, max_size=5))
def test_any_json_is_either_a_message_or_an_error(op: object, arguments: dict[str, object]) -> None:
    try:
        message = read_request(line(op=op, **arguments))
    except InvalidArgument as error:
        json.dumps(error.detail)
    else:
        assert set(message.arguments) <= set(OPERATIONS[message.op])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_either_a_message_or_an_error(text: bytes) -> None:
    with contextlib.suppress(InvalidArgument):
        read_request(text)

"""Answers that are read whole: bounded, and not unpacked."""

from collections.abc import AsyncIterator, Iterator

import pytest

from rdukit.errors import OutputRefused, Unavailable
from rdukit.http.answers import read_beginning, read_bounded, read_bounded_async, refuse_packed
from support import shows

pytestmark = shows("endpoint calls", "errors", "security")


def test_no_block_beyond_the_bound_is_asked_for() -> None:
    asked = []

    def blocks() -> Iterator[bytes]:
        for number in range(100):
            asked.append(number)
            yield b"x" * 10

    with pytest.raises(OutputRefused, match="the box sent an answer of more than 25 bytes"):
        read_bounded(blocks(), 25, "the box", OutputRefused)
    assert asked == [0, 1, 2]


async def test_an_answer_within_the_bound_is_all_that_came() -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"c"

    assert read_bounded([b"ab", b"c"], 3, "it") == b"abc"
    assert await read_bounded_async(blocks(), 3, "it") == b"abc"
    assert await read_beginning(blocks(), 2) == b"ab"
    with pytest.raises(Unavailable):
        await read_bounded_async(blocks(), 2, "it")


@pytest.mark.parametrize(("headers", "is_refused"), [
    ({}, False), ({"content-encoding": "identity"}, False), ({"content-encoding": ""}, False),
    ({"content-encoding": "gzip"}, True), ({"content-encoding": "identity, br"}, True),
])  # fmt: skip
def test_a_packed_answer_is_refused(headers: dict[str, str], is_refused: bool) -> None:
    if not is_refused:
        refuse_packed(headers, "the box")
        return
    with pytest.raises(Unavailable, match="the box sent a compressed answer"):
        refuse_packed(headers, "the box")

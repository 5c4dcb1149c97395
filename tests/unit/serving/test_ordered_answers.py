"""Answers to a stream: side by side, in order, cancelled when nobody reads them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from rdukit_serving.rpc.server import answer_in_order
from support import shows

pytestmark = shows("inference")


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


async def test_answers_come_in_order_though_the_work_ends_in_another() -> None:
    async def answer(number: int) -> int:
        for _ in range(10 - number):
            await asyncio.sleep(0)
        return number * number

    assert [a async for a in answer_in_order(numbers(10), answer, 4)] == [n * n for n in range(10)]


async def test_no_more_than_so_many_are_worked_on_at_once() -> None:
    working = most = 0

    async def answer(number: int) -> int:
        nonlocal working, most
        working += 1
        most = max(most, working)
        for _ in range(5):
            await asyncio.sleep(0)
        working -= 1
        return number

    assert len([a async for a in answer_in_order(numbers(20), answer, 3)]) == 20
    assert 2 <= most <= 3


async def test_closing_it_cancels_what_is_in_work() -> None:
    cancelled = list[int]()

    async def answer(number: int) -> int:
        if number == 0:
            return 0
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    answers = answer_in_order(numbers(5), answer, 8)
    assert await anext(answers) == 0
    await asyncio.sleep(0)
    await answers.aclose()
    assert sorted(cancelled) == [1, 2, 3, 4]


async def test_a_stream_of_requests_that_breaks_ends_it_with_its_error() -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise ConnectionError("gone")

    async def answer(number: int) -> int:
        return number

    answers = answer_in_order(broken(), answer, 2)
    assert await anext(answers) == 1
    with pytest.raises(ConnectionError, match="gone"):
        await anext(answers)

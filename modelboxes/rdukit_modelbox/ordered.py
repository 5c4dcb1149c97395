"""Answers to a stream of requests: worked on side by side, given in the order of the requests."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from typing import TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


async def answer_in_order(
    requests: AsyncIterable[Request], answer: Callable[[Request], Awaitable[Answer]], at_once: int
) -> AsyncGenerator[Answer, None]:
    """``answer`` of each request, at most ``at_once`` in work; reads no further while so many wait.

    Closing the iterator cancels what is in work. Whatever ``requests`` or ``answer`` raise ends it.
    """
    slots = asyncio.Semaphore(at_once)
    tasks: asyncio.Queue[asyncio.Task[Answer] | None] = asyncio.Queue()
    working: set[asyncio.Task[Answer]] = set()

    async def work(request: Request) -> Answer:
        return await answer(request)

    async def read() -> None:
        try:
            async for request in requests:
                await slots.acquire()
                task = asyncio.create_task(work(request))
                working.add(task)
                tasks.put_nowait(task)
        finally:
            tasks.put_nowait(None)

    reader = asyncio.create_task(read())
    try:
        while (task := await tasks.get()) is not None:
            answered = await task
            working.discard(task)
            slots.release()
            yield answered
        await reader
    finally:
        reader.cancel()
        for task in working:
            task.cancel()
        await asyncio.gather(reader, *working, return_exceptions=True)

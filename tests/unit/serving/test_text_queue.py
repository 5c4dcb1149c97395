"""The queue of texts: how many may wait, and what those are told that may not."""

import asyncio

import pytest

from rdukit.errors import Overloaded, Unavailable
from rdukit_serving.text.queue import GenerationRequest, TextQueue
from rdukit_serving.text.rest import MESSAGES, OPENAI

REQUEST = GenerationRequest([1], 1, {})


async def _refused() -> Overloaded:
    """Let one text more come than may wait for a process that is not there yet."""
    queue = TextQueue(max_queue=2)
    waiting = [asyncio.create_task(anext(queue.generate(REQUEST))) for _ in range(3)]
    await asyncio.sleep(0)
    assert queue.pending == 3
    try:
        with pytest.raises(Overloaded, match=r"3 texts wait; legal: 2") as refused:
            await anext(queue.generate(REQUEST))
        queue.refuse(Unavailable("the model cannot be loaded"))
        for found in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(found, Unavailable)
        assert queue.pending == 0
        return refused.value
    finally:
        for task in waiting:
            task.cancel()


@pytest.mark.parametrize("api", [OPENAI, MESSAGES])
def test_a_text_too_many_is_told_when_to_come_again(api: object) -> None:
    error = asyncio.run(_refused())
    answer = api.refuse(error)  # type: ignore[attr-defined]
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1

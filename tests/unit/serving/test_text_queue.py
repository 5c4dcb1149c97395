"""The queue of texts: how many may wait, and what those are told that may not."""

import asyncio

import pytest

from rdukit.errors import Overloaded, Unavailable
from rdukit_serving.text.queue import GenerationRequest, TextQueue
from rdukit_serving.text.rest import MESSAGES, OPENAI
from support import shows

pytestmark = shows("inference")

REQUEST = GenerationRequest([1], 1, {})


async def _refused() -> Overloaded:
    """Let one text more come than may wait for a process that is not there yet."""
    queue = TextQueue(max_queue=2)
    waiting = [asyncio.create_task(anext(queue.generate(REQUEST))) for _ in range(2)]
    await asyncio.sleep(0)
    assert queue.pending == 2
    try:
        with pytest.raises(Overloaded, match=r"2 texts wait, which is the limit 2") as refused:
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


class _SilentDevice:
    """Device with three rows that says nothing."""

    def __init__(self) -> None:
        self.text = {"texts": 3}
        self.busy_since: float | None = None
        self.on_message = print

    def send(self, **message: object) -> None:
        """Take a message."""


async def _come(texts: int, queue: TextQueue) -> int:
    """Return how many of texts that come at once are refused."""
    queue.attach(_SilentDevice())
    coming = [asyncio.create_task(anext(queue.generate(REQUEST))) for _ in range(texts)]
    await asyncio.sleep(0)
    refused = [task for task in coming if task.done() and isinstance(task.exception(), Overloaded)]
    for task in coming:
        task.cancel()
    await asyncio.gather(*coming, return_exceptions=True)
    return len(refused)


def test_texts_that_have_a_row_do_not_wait() -> None:
    assert asyncio.run(_come(7, TextQueue(max_queue=2))) == 7 - 3 - 2

"""Greedy batches: who goes together, who gets which rows back, and what a dead process does to those on the device."""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rdukit.errors import DeadlineExceeded, Overloaded, RdukitError, RuntimeFault, Unavailable
from rdukit_serving.batching import Batcher, QueuedRequest, take_batch
from rdukit_serving.models.statistics import ModelStatistics
from rdukit_serving.signature import InferRequest, InferResponse, RawTensor, ServedSignature, ServedTensor
from support import shows

pytestmark = shows("inference")

SIGNATURE = ServedSignature((ServedTensor("x", "FP32", (1,), "x"),), (ServedTensor("y", "FP32", (1,), "y"),), 4, 4)


class DoublingLink:
    """A device that doubles each row when it is told to finish."""

    def __init__(self) -> None:
        self.signature = SIGNATURE
        self.memory = memoryview(bytearray(SIGNATURE.shared_bytes))
        self.batches: list[int] = []
        self._on_ran: Callable[[Any], None] | None = None

    def run(self, rows: int, on_ran: Callable[[Any], None]) -> None:
        self.batches.append(rows)
        self._on_ran = on_ran

    def finish(self, result: tuple[int, int, int] | RdukitError = (1000, 2000, 3000)) -> None:
        floats = self.memory.cast("f")
        start = SIGNATURE.offsets["output/y"] // 4
        for row in range(4):
            floats[start + row] = 2 * floats[row]
        on_ran, self._on_ran = self._on_ran, None
        assert on_ran is not None
        on_ran(result)


def request(*values: float) -> InferRequest:
    return InferRequest([RawTensor("x", "FP32", (len(values), 1), struct.pack(f"<{len(values)}f", *values))])


def doubled(answer: InferResponse) -> list[float]:
    return list(struct.unpack(f"<{answer.rows}f", answer.outputs[0]))


async def await_batches(link: DoublingLink, count: int) -> None:
    """Let the loop turn until the device has been given as many batches."""
    async with asyncio.timeout(60):
        while len(link.batches) < count:
            await asyncio.sleep(0)


def in_loop(run: Callable[[Batcher, DoublingLink], Any], max_queue: int = 100) -> None:
    async def main() -> None:
        batcher, link = Batcher(ModelStatistics(), max_queue), DoublingLink()
        batcher.attach(link)  # type: ignore[arg-type]
        await run(batcher, link)

    asyncio.run(main())


def test_a_request_whose_time_has_passed_is_answered_so_and_not_run() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        first = batcher.submit(request(1), 1)
        await asyncio.sleep(0)  # it is on the device, the others wait
        brief = [batcher.submit(replace(request(value), timeout_us=1), 1) for value in (2, 3)]
        patient = batcher.submit(replace(request(4), timeout_us=1 << 60), 1)
        for late in brief:
            with pytest.raises(DeadlineExceeded, match="no answer within 1 microseconds"):
                await late
        link.finish()
        link.finish()
        assert (doubled(await first), doubled(await patient)) == ([2], [8])
        assert link.batches == [1, 1]
        for result in ((1000, 2000, 3000), RuntimeFault("broken")):
            late = batcher.submit(replace(request(5), timeout_us=1), 1)  # it is on the device
            with pytest.raises(DeadlineExceeded):
                await late
            link.finish(result)
            await batcher.idle.wait()
        assert batcher._statistics.failure == 4, "each once"

    in_loop(run)


def test_what_waits_while_the_device_is_busy_goes_together() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        first = batcher.submit(request(1), 1)
        await asyncio.sleep(0)
        assert link.batches == [1]
        rest = [batcher.submit(request(*values), len(values)) for values in ([2], [3, 4], [5], [6])]
        link.finish()
        assert link.batches == [1, 4]
        link.finish()
        # Those four may come back in a moment.
        await await_batches(link, 3)
        assert link.batches == [1, 4, 1]
        link.finish()
        assert [doubled(await f) for f in (first, *rest)] == [[2], [4], [6, 8], [10], [12]]
        await asyncio.wait_for(batcher.idle.wait(), 1)

    in_loop(run)


def test_requests_of_one_moment_go_together() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        for value in (1, 2, 3):
            batcher.submit(request(value), 1)
        await asyncio.sleep(0)
        assert link.batches == [3]

    in_loop(run)


def test_a_lone_caller_of_a_quick_model_does_not_wait_for_the_loop() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        first = batcher.submit(request(1), 1)
        await asyncio.sleep(0)
        link.finish()
        await first
        second = batcher.submit(request(2), 1)
        assert link.batches == [1, 1]
        link.finish(SLOW)
        await second
        batcher.submit(request(3), 1)
        assert link.batches == [1, 1]
        await asyncio.sleep(0)
        assert link.batches == [1, 1, 1]

    in_loop(run)


def test_a_request_that_was_taken_back_is_left_out() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        batcher.submit(request(1), 1)
        await asyncio.sleep(0)
        gone, stays = batcher.submit(request(2), 1), batcher.submit(request(3), 1)
        gone.cancel()
        link.finish()
        assert link.batches == [1, 1]
        link.finish()
        assert doubled(await stays) == [6]

    in_loop(run)


def test_what_waits_survives_a_process_and_what_ran_is_tried_once_more() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        ran = batcher.submit(request(1), 1)
        await asyncio.sleep(0)
        waits = batcher.submit(request(2), 1)
        batcher.detach("was killed by SIGKILL")
        second = DoublingLink()
        batcher.attach(second)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        # Alone: it may have killed the process.
        assert second.batches == [1]
        batcher.detach("was killed by SIGKILL")
        with pytest.raises(Unavailable, match="SIGKILL"):
            await ran
        third = DoublingLink()
        batcher.attach(third)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        third.finish()
        assert doubled(await waits) == [4]

    in_loop(run)


def test_a_device_error_fails_its_batch_only() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        bad = batcher.submit(request(1), 1)
        await asyncio.sleep(0)
        good = batcher.submit(request(2), 1)
        link.finish(RuntimeFault("tile 3 hangs"))
        with pytest.raises(RuntimeFault, match="tile 3"):
            await bad
        link.finish()
        assert doubled(await good) == [4]

    in_loop(run)


def test_of_a_batch_that_fails_only_the_one_to_blame_does() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        asked = [batcher.submit(request(value), 1) for value in (1, 2, 3)]
        await asyncio.sleep(0)
        later = batcher.submit(request(4), 1)
        link.finish(RuntimeFault("index out of bounds"))
        assert link.batches == [3, 1]
        link.finish()
        link.finish(RuntimeFault("index out of bounds"))
        link.finish()
        await await_batches(link, 5)
        assert link.batches == [3, 1, 1, 1, 1]
        link.finish()
        with pytest.raises(RuntimeFault, match="index"):
            await asked[1]
        assert [doubled(await answer) for answer in (asked[0], asked[2], later)] == [[2], [6], [8]]

    in_loop(run)


SLOW = (0, 400_000_000, 0)


def test_callers_that_were_answered_together_are_waited_for_on_a_slow_device() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        for value in (1, 2, 3):
            batcher.submit(request(value), 1)
        await asyncio.sleep(0)
        late = batcher.submit(request(4), 1)
        link.finish(SLOW)
        assert link.batches == [3]
        for value in (5, 6):
            batcher.submit(request(value), 1)
        assert link.batches == [3]
        batcher.submit(request(7), 1)
        await asyncio.sleep(0)
        assert link.batches == [3, 4]
        link.finish(SLOW)
        assert doubled(await late) == [8]
        # Nobody comes back: what waits goes after the bound.
        alone = batcher.submit(request(8), 1)
        await asyncio.sleep(0)
        assert link.batches == [3, 4]
        await await_batches(link, 3)
        assert link.batches == [3, 4, 1]
        link.finish(SLOW)
        assert doubled(await alone) == [16]

    in_loop(run)


def test_a_lone_caller_is_never_held() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        for round_ in range(1, 4):
            answer = batcher.submit(request(round_), 1)
            await asyncio.sleep(0)
            assert link.batches == [1] * round_
            link.finish(SLOW)
            assert doubled(await answer) == [2 * round_]

    in_loop(run)


def test_a_full_queue_refuses() -> None:
    async def run(batcher: Batcher, link: DoublingLink) -> None:
        batcher.submit(request(1), 1)
        await asyncio.sleep(0)
        batcher.submit(request(2), 1)
        with pytest.raises(Overloaded, match="1 requests wait"):
            batcher.submit(request(3), 1)

    in_loop(run, max_queue=1)


def test_a_batch_never_exceeds_the_pef_and_keeps_the_order() -> None:
    loop = asyncio.new_event_loop()
    waiting = deque(QueuedRequest(request(*([0.0] * rows)), rows, loop.create_future()) for rows in (2, 1, 3, 1))
    assert [w.rows for w in take_batch(waiting, 4)] == [2, 1]
    assert [w.rows for w in take_batch(waiting, 4)] == [3, 1]
    assert take_batch(waiting, 4) == []
    loop.close()

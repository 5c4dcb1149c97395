"""Dynamic batching: a free device takes all waiting requests, up to the PEF's batch size.

A single request starts at once; under load, batches fill while the device computes. Only expected callers are waited
for, by ``adaptive_batching.BatchDelayPolicy``. Belongs to one event loop.

The rows of a failed batch run once more, one by one. So one caller's numbers, or a request that kills the process, do
not fail the others; the second attempt answers them. Deeper checks beforehand would not do: no check finds every input
that kills a kernel.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from rdukit.errors import DeadlineExceeded, Overloaded, RdukitError, Unavailable
from rdukit.settings import resolve
from rdukit_serving.device.client import DeviceClient
from rdukit_serving.models.statistics import ModelStatistics
from rdukit_serving.settings import MAX_QUEUE_DELAY_US
from rdukit_serving.signature import InferRequest, InferResponse, Reply, RequestTiming, ServedSignature
from rdukit_serving.tuning.adaptive_batching import make_delay_policy

#: Attempts of a request: if its batch failed or its process died, it is retried alone, because another request may be
#: the cause.
MAX_ATTEMPTS = 2


class QueuedRequest:
    """Request that was checked and waits, or is on the device."""

    __slots__ = ("arrived", "attempts", "inputs", "is_alone", "outputs", "reply", "rows", "started", "timer")

    def __init__(self, request: InferRequest, rows: int, reply: Reply) -> None:
        self.inputs = request.inputs
        self.outputs = request.outputs
        self.rows = rows
        self.reply = reply
        self.arrived = time.perf_counter_ns()
        self.started = 0
        self.attempts = 0
        #: Runs in a separate batch.
        self.is_alone = False
        #: Ends the wait of a caller who gave a timeout.
        self.timer: asyncio.TimerHandle | None = None

    def forget(self) -> None:
        """Cancel the timer: the request is answered, or its caller has left."""
        if self.timer is not None:
            self.timer.cancel()


class TensorSlice(NamedTuple):
    """Offset of a tensor's batch in shared memory, and the bytes of a row."""

    name: str
    offset: int
    row_bytes: int


def take_batch(waiting: "deque[QueuedRequest]", max_rows: int) -> list[QueuedRequest]:
    """Remove the first requests that fit together, in order of arrival; drop those whose caller has left."""
    batch: list[QueuedRequest] = []
    rows = 0
    while waiting:
        first = waiting[0]
        if first.reply.done():
            waiting.popleft().forget()
            continue
        if rows + first.rows > max_rows or (batch and first.is_alone):
            break
        rows += first.rows
        batch.append(waiting.popleft())
        if first.is_alone:
            break
    return batch


class Batcher:
    """Requests of one model version, sent to the device in batches."""

    def __init__(self, statistics: ModelStatistics, max_queue: int) -> None:
        self._statistics = statistics
        self._max_queue = max_queue
        self._waiting: deque[QueuedRequest] = deque()
        #: On the device now, and since when.
        self._running: list[QueuedRequest] = []
        self._sent = 0
        self._is_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._client: DeviceClient | None = None
        self._ins: Sequence[TensorSlice] = ()
        self._outs: Sequence[TensorSlice] = ()
        self._max_rows = 1
        self._delay = make_delay_policy(resolve(MAX_QUEUE_DELAY_US))
        self._held: asyncio.TimerHandle | None = None
        #: Set while nothing waits or runs.
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def pending(self) -> int:
        """Return the number of waiting and running requests."""
        return len(self._waiting) + len(self._running)

    def attach(self, client: DeviceClient) -> None:
        """Send batches to this process from now on."""
        signature = client.signature
        self._client = client
        self._max_rows = signature.max_batch
        self._ins, self._outs = _slices(signature)
        self._schedule()

    def detach(self, ending: str) -> None:
        """Keep waiting requests; retry running ones once, then fail them. Call when the process is gone. Call when the
        process is gone.
        """
        self._client = None
        running, self._running = self._running, []
        self._try_again(running, Unavailable(f"the inference process {ending}"))
        self._note_idle()

    def _try_again(self, batch: Sequence[QueuedRequest], error: RdukitError) -> int:
        """Queue requests with an attempt left again, each alone; fail the others. Returns how many failed."""
        failed = 0
        for waiting in reversed(batch):
            if waiting.attempts < MAX_ATTEMPTS and not waiting.reply.done():
                waiting.is_alone = True
                self._waiting.appendleft(waiting)
            else:
                failed += _fail(waiting, error)
        return failed

    def refuse(self, error: RdukitError) -> None:
        """Fail all waiting requests, as no process will come."""
        while self._waiting:
            _fail(self._waiting.popleft(), error)
        self._note_idle()

    def submit(self, request: InferRequest, rows: int) -> "asyncio.Future[InferResponse]":
        """Queue a request and return its future. Cancel the future to take the request back."""
        future: asyncio.Future[InferResponse] = self._loop.create_future()
        self.enqueue(request, rows, future)
        return future

    def enqueue(self, request: InferRequest, rows: int, reply: Reply) -> None:
        """Queue a request of ``rows`` rows that ``check_request`` allowed.

        Raises:
            Overloaded: too many wait.
        """
        if len(self._waiting) >= self._max_queue:
            raise Overloaded(
                f"{len(self._waiting)} requests wait, which is the limit {self._max_queue} (serving.max_queue); try "
                "later"
            )
        queued = QueuedRequest(request, rows, reply)
        if request.timeout_us:
            queued.timer = self._loop.call_later(request.timeout_us / 1e6, self._expire, queued, request.timeout_us)
        self._waiting.append(queued)
        self.idle.clear()
        if not self._is_scheduled and not self._running and not self._holds():
            if self._delay.is_immediate:
                self._dispatch()
            else:
                self._schedule()

    def _expire(self, queued: QueuedRequest, timeout_us: int) -> None:
        """Answer a request whose timeout has passed; it is not run, or its result is discarded."""
        error = f"no answer within {timeout_us} microseconds, the request's timeout; set a longer one"
        self._statistics.count_failed(_fail(queued, DeadlineExceeded(error)))

    def _holds(self) -> bool:
        """Return whether to wait for callers who will be there in a moment; a timer ends the wait."""
        count = len(self._waiting)
        if not self._delay.is_worth_waiting(count) or self._rows() >= self._max_rows:
            return False
        if self._held is None:
            self._held = self._loop.call_later(self._delay.begin(time.perf_counter(), time.process_time()), self._look)
        return True

    def _look(self) -> None:
        """Dispatch at the end of a wait, unless it is prolonged."""
        self._held = None
        left = self._delay.left(time.perf_counter(), time.process_time())
        if left > 0 and self._client is not None and self._rows() < self._max_rows:
            self._held = self._loop.call_later(left, self._look)
        else:
            self._dispatch()

    def _rows(self) -> int:
        return sum(waiting.rows for waiting in self._waiting)

    def _schedule(self) -> None:
        # After the present callbacks, so that requests that arrived together run together.
        self._is_scheduled = True
        self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_scheduled = False
        if self._held is not None:
            self._held.cancel()
            self._held = None
        client = self._client
        if client is None or self._running:
            return
        self._delay.end(len(self._waiting))
        batch = take_batch(self._waiting, self._max_rows)
        if not batch:
            self._note_idle()
            return
        memory = client.memory
        row = 0
        now = time.perf_counter_ns()
        for waiting in batch:
            waiting.started = now
            waiting.attempts += 1
            if len(self._ins) == 1:
                _, offset, size = self._ins[0]
                memory[offset + row * size : offset + (row + waiting.rows) * size] = waiting.inputs[0].data
            else:
                given = {tensor.name: tensor.data for tensor in waiting.inputs}
                for name, offset, size in self._ins:
                    memory[offset + row * size : offset + (row + waiting.rows) * size] = given[name]
            row += waiting.rows
        self._running = batch
        self._sent = time.perf_counter_ns()
        client.run(row, self._ran)

    def _ran(self, result: tuple[int, int, int] | RdukitError) -> None:
        batch, self._running = self._running, []
        client = self._client
        answers: Sequence[tuple[Reply, InferResponse]] = ()
        if isinstance(result, RdukitError) and len(batch) > 1:
            self._statistics.count_failed(self._try_again(batch, result))
        elif isinstance(result, RdukitError) or client is None:
            error = result if isinstance(result, RdukitError) else Unavailable("the model was unloaded")
            self._statistics.count_failed(sum(_fail(waiting, error) for waiting in batch))
        else:
            answers = self._take_answers(batch, client.memory, result)
            self._delay.answered(len(answers), len(self._waiting), sum(result) / 1e9)
        if not self._waiting or not self._holds():
            self._dispatch()
        for reply, answer in answers:  # after the next batch is under way
            if not reply.done():
                reply.set_result(answer)

    def _take_answers(
        self, batch: list[QueuedRequest], memory: memoryview, result: tuple[int, int, int]
    ) -> list[tuple[Reply, InferResponse]]:
        """Return the rows of each request that is still waited for."""
        copy_in, compute, copy_out = (ns // 1000 for ns in result)
        form, device = (self._sent - batch[0].started) // 1000, (time.perf_counter_ns() - self._sent) // 1000
        row = 0
        rows_of_batch = sum(waiting.rows for waiting in batch)
        of_batch = form, device, len(batch), rows_of_batch, self._max_rows
        queue_total = 0
        answers: list[tuple[Reply, InferResponse]] = []
        for waiting in batch:
            waiting.forget()
            count = waiting.rows
            places = self._outs
            if waiting.outputs:
                by_name = {place.name: place for place in places}
                places = [by_name[name] for name in waiting.outputs]
            if not waiting.reply.done():
                queued = (waiting.started - waiting.arrived) // 1000
                queue_total += queued
                outputs = [bytes(memory[o + row * size : o + (row + count) * size]) for _, o, size in places]
                timing = RequestTiming(queued, copy_in, compute, copy_out, *of_batch)
                answers.append((waiting.reply, InferResponse(count, outputs, [p.name for p in places], timing)))
            row += count
        self._statistics.count_batch(len(batch), rows_of_batch, queue_total, copy_in, compute, copy_out)
        return answers

    def _note_idle(self) -> None:
        if not self._waiting and not self._running:
            self.idle.set()


def _slices(signature: ServedSignature) -> tuple[list[TensorSlice], list[TensorSlice]]:
    offsets = signature.offsets
    return (
        [TensorSlice(spec.name, offsets[spec.name], spec.row_bytes) for spec in signature.inputs],
        [TensorSlice(spec.name, offsets[f"output/{spec.name}"], spec.row_bytes) for spec in signature.outputs],
    )


def _fail(waiting: QueuedRequest, error: RdukitError) -> bool:
    """Answer a request with an error. Returns whether its caller still waited."""
    waiting.forget()
    if waiting.reply.done():
        return False
    waiting.reply.set_exception(error)
    return True

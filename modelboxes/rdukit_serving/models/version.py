"""One version of a served model: its device process, kept alive, and the requests that wait for it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rdukit.errors import InvalidArgument, RdukitError, Unavailable
from rdukit.pef.checkpoint_files import picture_file, table_file
from rdukit.settings import resolve
from rdukit_serving.batching import Batcher
from rdukit_serving.checks import check_classes, check_indices, check_request
from rdukit_serving.device.client import DeviceClient, ModelFiles
from rdukit_serving.models.statistics import ModelStatistics
from rdukit_serving.settings import (
    INFER_TIMEOUT_S,
    LOAD_TIMEOUT_S,
    MAX_QUEUE,
    READY_TIMEOUT_S,
    RESTART_BACKOFF_S,
)
from rdukit_serving.signature import InferRequest, InferResponse, RawTensor, Reply, ServedSignature
from rdukit_serving.text.prompt_tokens import tokens_of
from rdukit_serving.text.queue import GenerationRequest, TextQueue

if TYPE_CHECKING:
    from rdukit_serving.raw_inputs.pictures import PicturePreprocessing
    from rdukit_serving.raw_inputs.preprocessing import TablePreprocessing

logger = logging.getLogger(__name__)


#: Names of a classifier's output.
_OF_CLASSES: Final = frozenset({"logits", "output"})


class VersionState(StrEnum):
    """States of a version. Source: the states of Triton's repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


def why_unused(signature: ServedSignature) -> str:
    """Return why a PEF with this signature does not take preprocessed rows or pictures; empty if it does."""
    first = signature.outputs[0].name
    if len(signature.inputs) == 1 and first in _OF_CLASSES:
        return ""
    inputs = ", ".join(one.name for one in signature.inputs)
    return f"its PEF has the inputs {inputs} and the first output {first!r}, not one input and the classes"


class ModelVersion:
    """Version of a model: loaded once, restarted when its process dies, drained before it goes."""

    def __init__(self, version: str, files: ModelFiles, log_file: Path) -> None:
        self.version = version
        self.files = files
        self.state = VersionState.LOADING
        #: Why it is unavailable.
        self.reason = ""
        self.statistics = ModelStatistics()
        self.loaded_at = 0.0
        self.load_seconds = 0.0
        self.restarts = 0
        self._log_file = log_file
        max_queue = files.serving.get("max_queue") or resolve(MAX_QUEUE)
        self._batcher = Batcher(self.statistics, max_queue)
        #: Queue of a text model, used instead of the batcher.
        self.texts = TextQueue(max_queue, self.statistics, tokens_of=self.prompt_tokens)
        #: Context, prompt and vocabulary of a text model in tokens, and whether it generates.
        self.text: Mapping[str, int] | None = None
        #: Preprocessing of table rows, for a model that was trained on a table.
        self.table: TablePreprocessing | None = None
        #: Preprocessing of pictures, for a model that was trained on pictures.
        self.pictures: PicturePreprocessing | None = None
        #: Reason why a preprocessing next to the checkpoint is not used; empty if none is there, or it is used.
        self.unused = ""
        self._client: DeviceClient | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._signature: ServedSignature | None = None
        #: Successful runs at the last readiness check.
        self._seen = 0

    async def load(self) -> None:
        """Start the device process.

        Raises:
            RdukitError: it cannot be loaded; the version is unavailable from now on.
        """
        began = time.perf_counter()
        try:
            await self._start()
            self._find_raw_inputs()
        except RdukitError as error:
            await self._stop_client()
            self.state, self.reason = VersionState.UNAVAILABLE, error.message
            raise
        self.load_seconds = time.perf_counter() - began
        self.loaded_at = time.time()
        self.state = VersionState.READY
        self._watching = asyncio.create_task(self._watch())

    @property
    def signature(self) -> ServedSignature:
        """Return inputs and outputs; known once it was loaded."""
        if self._signature is None:
            raise Unavailable(f"version {self.version} is not loaded: {self.reason or self.state}")
        return self._signature

    @property
    def pid(self) -> int | None:
        """Return the process id of the device process, while there is one."""
        return self._client.pid if self._client is not None else None

    @property
    def pending(self) -> int:
        """Return the number of waiting and running requests."""
        return self._batcher.pending + self.texts.pending

    def submit(self, request: InferRequest) -> "asyncio.Future[InferResponse]":
        """Queue a request and return its future. Cancel the future to take the request back."""
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        self.enqueue(request, future)
        return future

    def enqueue(self, request: InferRequest, reply: Reply) -> None:
        """Check and queue a request.

        Raises:
            InvalidArgument: the signature does not allow it. Overloaded: too many wait.
            Unavailable: the version is not loaded.
        """
        if self.text is not None:
            raise InvalidArgument("this is a text model: use /v1/completions or /v1/chat/completions")
        if self.state is not VersionState.READY:
            raise Unavailable(
                f"version {self.version} is {self.state.lower()}{': ' if self.reason else ''}{self.reason}"
            )
        try:
            rows = check_request(self.signature, request)
            if request.classes:
                check_classes(self.signature, request.classes)
            if self.signature.has_indices:
                check_indices(self.signature, request)
        except InvalidArgument:
            self.statistics.count_failed(1)
            raise
        self._batcher.enqueue(request, rows, reply)

    async def why_not_ready(self, timeout_s: float | None = None) -> str:
        """Return "" if an inference went through the device since the last call, or goes now; else why not."""
        if self.state is not VersionState.READY:
            return self.reason or f"version {self.version} is {self.state.lower()}"
        if self._client is None:
            return f"the inference process is being restarted: {self.reason}"
        return await self._why_no_answer(resolve(READY_TIMEOUT_S, timeout_s))

    async def prompt_tokens(
        self, text: str | Sequence[int], *, is_rendered: bool = False, field: str = "prompt"
    ) -> Sequence[int]:
        """Return the tokens of a prompt, or of a text to embed (``input``), in a thread.

        Raises:
            InvalidArgument: it is much too long for the context, or for the compiled prompt.
        """
        assert self.files.checkpoint is not None and self.text is not None, "a text model has both"
        longest = self.text.get("source") or self.text["context"] - 1
        most = self.text["prompt"] if field == "input" else longest
        if not isinstance(text, str):
            if len(text) > most:
                raise InvalidArgument(f"{field}: it has {len(text)} tokens; expected 1 to {most}", field=field)
            return text
        return await tokens_of(self.files.checkpoint, text, most, is_rendered=is_rendered, field=field)

    def describe(self) -> dict[str, object]:
        """Return its entry in the list of models."""
        # A prompt has at least one token.
        context = None if self.text is None else self.text["context"]
        return {} if context is None else {"context_length": context, "max_completion_tokens": context - 1}

    async def _why_no_answer(self, timeout_s: float) -> str:
        """Answer ``why_not_ready`` by an inference, unless there was one."""
        done = self.statistics.executions
        if done > self._seen:
            self._seen = done
            return ""
        if self.text is not None:
            return await self._why_no_text(timeout_s)
        rows = [
            RawTensor(spec.name, spec.datatype, (1, *spec.row_shape), bytes(spec.row_bytes))
            for spec in self.signature.inputs
        ]
        try:
            async with asyncio.timeout(timeout_s):
                await self._batcher.submit(InferRequest(rows), 1)
        except TimeoutError:
            return f"an inference did not return within {timeout_s:g} s"
        except RdukitError as error:
            return error.message
        self._seen = self.statistics.executions
        return ""

    async def _why_no_text(self, timeout_s: float) -> str:
        """Return ``why_not_ready`` for texts; a text in progress shows that the device works."""
        if self.texts.pending:
            return ""
        probe = GenerationRequest([0], 1, {"temperature": 0.0})
        try:
            async with asyncio.timeout(timeout_s):
                if self.text is not None and not self.text["generates"]:
                    await self.texts.embed([0])
                    return ""
                async with contextlib.aclosing(self.texts.generate(probe)) as events:
                    async for _ in events:
                        pass
        except TimeoutError:
            return f"an answer did not return within {timeout_s:g} s"
        except RdukitError as error:
            return error.message
        return ""

    async def unload(self, drain_s: float) -> None:
        """Accept no further requests, finish the waiting ones, and end the process."""
        self.state = VersionState.UNLOADING
        try:
            async with asyncio.timeout(drain_s):
                await self._batcher.idle.wait()
                await self.texts.idle.wait()
        except TimeoutError:
            logger.warning("not drained version=%s pending=%s", self.version, self._batcher.pending)
        for task in (self._watching, self._restarting):
            if task is not None:
                task.cancel()
        self.state, self.reason = VersionState.UNAVAILABLE, "unloaded"
        self._refuse(Unavailable(f"version {self.version} was unloaded"))
        await self._stop_client()

    async def _stop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.stop()

    def _find_raw_inputs(self) -> None:
        """Read the checkpoint's preprocessing of table rows or pictures for the model's input.

        Raises:
            InvalidArgument: a file is damaged. PefMismatch: the file belongs to another model.
        """
        checkpoint = self.files.checkpoint
        if checkpoint is None or self.text is not None:
            return
        if reason := why_unused(self.signature):  # compiled to train, or a model with a serving of its own
            self.unused = reason if table_file(checkpoint).is_file() or picture_file(checkpoint).is_file() else ""
            return
        values, classes = self.signature.inputs[0].row_elements, self.signature.outputs[0].row_elements
        if table_file(checkpoint).is_file():
            from rdukit_serving.raw_inputs.preprocessing import open_preprocessing  # numpy: 13 MB

            self.table = open_preprocessing(checkpoint, values, classes)
        if picture_file(checkpoint).is_file():
            from rdukit_serving.raw_inputs.pictures import open_picture_preprocessing

            self.pictures = open_picture_preprocessing(checkpoint, values, classes)

    async def _start(self) -> None:
        client = await DeviceClient.start(self.files, self._log_file, resolve(LOAD_TIMEOUT_S))
        client.on_end = self._on_end
        self._client, self._signature = client, client.signature
        self.text = client.text
        if client.text is None:
            self._batcher.attach(client)
        else:
            self.texts.attach(client, client.memory if client.text.get("frames") else None)

    def _on_end(self, ending: str) -> None:
        if self._client is None:
            return
        logger.warning("inference process ended version=%s how=%s", self.version, ending)
        self._client, self.reason = None, f"the inference process {ending}"
        self._batcher.detach(ending)
        self.texts.detach(ending)
        self._restarting = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        """Start it again, with growing pauses; what waits meanwhile is answered afterwards."""
        pause = 0.0
        while True:
            await asyncio.sleep(pause)
            self.restarts += 1
            try:
                await self._start()
            except RdukitError as error:
                self.reason = error.message
                self._refuse(Unavailable(f"the model cannot be loaded again: {error.message}"))
                pause = min(30.0, max(pause * 2, resolve(RESTART_BACKOFF_S)))
                continue
            self.reason = ""
            return

    def _refuse(self, error: RdukitError) -> None:
        self._batcher.refuse(error)
        self.texts.refuse(error)

    async def _watch(self) -> None:
        """Kill a process whose run takes too long; it is then started again."""
        limit = resolve(INFER_TIMEOUT_S)
        while True:
            await asyncio.sleep(min(1.0, limit / 4))
            client = self._client
            if client is not None and client.busy_since is not None and time.monotonic() - client.busy_since > limit:
                logger.error("inference hangs version=%s pid=%s seconds=%s", self.version, client.pid, limit)
                client.kill()

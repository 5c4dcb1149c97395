"""A warm child for synchronous inference: started on the first request, kept while the same model is asked for."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rdukit.errors import RdukitError, RuntimeFault, Unavailable, error_from_body
from rdukit.files import sha256_of
from rdukit.settings import resolve
from rdukit_modelbox.process import Child, describe_exit
from rdukit_modelbox.settings import CHILD_START_S, ROWS_IDLE_S, ROWS_TIMEOUT_S

logger = logging.getLogger(__name__)

#: Seconds a child has to release its tiles in order.
FINISH_GRACE_S: Final = 3.0

Answer = tuple[list[list[float]], list[int]]


class RowsWorker:
    """At most one child; requests go through it one after another."""

    def __init__(self, box_file: Path, log_file: Path) -> None:
        self._box_file = box_file
        self._log_file = log_file
        #: Set between a start that succeeded and the stop; ``_key`` says which model it has loaded.
        self._child: Child | None = None
        self._key = ""
        #: How the last child that died did.
        self._ending = ""
        self._lock = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    async def predict(self, rows: Sequence[Sequence[float]], pef: Path, checkpoint: Path) -> Answer:
        """Outputs [rows][classes] and labels [rows] for feature rows.

        Raises:
            RdukitError: what the child says, such as ``NoResources``, ``PefCorrupt`` or ``InvalidArgument``.
            Unavailable: the child died or did not answer in time; the next request starts another.
        """
        async with self._lock:
            self._disarm()
            try:
                message = await self._ask(await self._ready_child(pef, checkpoint), rows)
                if message is None:
                    # It may have died while it was idle; a fresh one decides.
                    message = await self._ask(await self._ready_child(pef, checkpoint), rows)
                if message is None:
                    raise Unavailable(f"the inference process {self._ending}")
            except asyncio.CancelledError:
                # The answer would be taken for the next request's.
                await self._drop()
                raise
            self._arm()
        if message["kind"] != "rows":
            raise error_from_body(message, RuntimeFault)
        return message["outputs"], message["labels"]

    async def stop(self) -> None:
        """End the child in order, after the request that it is busy with; its tiles are free afterwards."""
        async with self._lock:
            await self._drop(FINISH_GRACE_S)

    async def _ready_child(self, pef: Path, checkpoint: Path) -> Child:
        key = model_key(pef, checkpoint)
        if self._child is not None and self._child.is_running and key == self._key:
            return self._child
        await self._drop(FINISH_GRACE_S)
        request: Mapping[str, object] = {
            "kind": "rows", "box_file": str(self._box_file), "pef": str(pef), "checkpoint": str(checkpoint),
        }  # fmt: skip
        try:
            child = self._child = await Child.start(request, self._log_file)
        except OSError as cause:
            raise Unavailable(f"no process could be started: {cause}") from cause
        message = await self._receive(child, resolve(CHILD_START_S))
        while message is not None and message["kind"] not in {"ready", "error"}:
            message = await self._receive(child, resolve(CHILD_START_S))
        if message is None:
            raise Unavailable(f"the inference process {self._ending}")
        if message["kind"] == "error":
            await self._drop()
            raise error_from_body(message, RdukitError)
        self._key = key
        return child

    async def _ask(self, child: Child, rows: Sequence[Sequence[float]]) -> dict[str, Any] | None:
        await child.send({"rows": rows})
        return await self._receive(child, resolve(ROWS_TIMEOUT_S))

    async def _receive(self, child: Child, timeout_s: float) -> dict[str, Any] | None:
        """Its next message; None when it has ended, with ``_ending`` set."""
        try:
            message = await asyncio.wait_for(child.receive(), timeout_s)
        except TimeoutError as cause:
            await self._drop()
            raise Unavailable(f"the inference process did not answer within {timeout_s:g} s; try again") from cause
        if message is None:
            self._ending = f"{describe_exit(await child.wait())}; try again. Last words: {child.last_words()}"
            await self._drop()
        return message

    async def _drop(self, grace_s: float = 0.0) -> None:
        self._disarm()
        child, self._child, self._key = self._child, None, ""
        if child is not None:
            if grace_s:
                await child.finish(grace_s)
            child.kill()
            await child.wait()

    def _arm(self) -> None:
        def retire() -> None:
            task = asyncio.create_task(self.stop())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

        self._idle = asyncio.get_running_loop().call_later(resolve(ROWS_IDLE_S), retire)

    def _disarm(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


def model_key(pef: Path, checkpoint: Path) -> str:
    """Changes whenever the PEF or the checkpoint's latest step does."""
    stat = pef.stat()
    latest = checkpoint / "latest.json"
    digest = sha256_of(latest.read_bytes()) if latest.is_file() else ""
    return f"{pef}:{stat.st_ino}:{stat.st_mtime_ns}:{stat.st_size}:{checkpoint}:{digest}"

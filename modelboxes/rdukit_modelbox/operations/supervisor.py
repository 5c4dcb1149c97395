"""Supervision of an operation's child process, with an outcome in every case."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from rdukit.box.image import BoxEnd
from rdukit.errors import Cancelled, ChildDied, DeadlineExceeded, OutOfMemory, Stalled, Unavailable
from rdukit.strict_json import as_words
from rdukit_modelbox.operations.process import ChildProcess, kills_for_memory, peak_bytes, resident_bytes
from rdukit_modelbox.operations.values import OperationFailure
from rdukit_modelbox.verbs.context import Progress
from rdukit_serving.device.client import describe_exit

logger = logging.getLogger(__name__)

#: Seconds between checks of a child's memory and activity.
LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """The limits of a child; 0: no limit, except for ``grace_s``, the time it has between SIGTERM and SIGKILL.

    ``timeout_s`` is the rest of the operation's time; ``given_s`` is all of it, for the message.
    """

    grace_s: float = 5.0
    timeout_s: float = 0.0
    given_s: float = 0.0
    stall_s: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """The end of a child: exactly one of the three fields. ``has_started`` distinguishes a failed verb from a broken
    installation.
    """

    succeeded: tuple[Mapping[str, object], Mapping[str, str]] | None = None
    failed: OperationFailure | None = None
    is_cancelled: bool = False
    has_started: bool = True
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks for a child's messages."""

    progress: Callable[[Progress], object]
    log: Callable[[str], object]


class VerbEnd(StrEnum):
    """The supervisor's reason for ending a child."""

    CANCEL = "cancel"
    DEADLINE = "deadline"
    STALL = "stall"
    MEMORY = "memory"


class Watch:
    """State of a running child: its memory, and the time of its last activity."""

    def __init__(self) -> None:
        self.heard_at = time.monotonic()
        self.peak_bytes = 0
        #: Set once the supervisor has decided to end it.
        self.reason: VerbEnd | None = None

    def hear(self) -> None:
        """Record activity of the child."""
        self.heard_at = time.monotonic()


async def run_child(
    request: Mapping[str, object], log_file: Path, listener: Listener, cancel: asyncio.Event, limits: ChildLimits
) -> ChildOutcome:
    """Start a child for ``request``, pass its messages on, enforce ``limits``, and return its outcome.

    Setting ``cancel`` stops the child.
    """
    watch = Watch()
    kills_before = kills_for_memory()

    def on_line(line: str) -> None:
        watch.hear()
        listener.log(line)

    try:
        child = await ChildProcess.start(request, log_file, on_line)
    except OSError as cause:
        failure = OperationFailure(Unavailable.code, f"no process could be started: {cause}")
        return ChildOutcome(failed=failure, has_started=False)
    logger.info(
        "child started pid=%s verb=%s memory_bytes=%s enforced_by=%s",
        child.pid, request.get("verb"), limits.memory_bytes, "watching its memory" if limits.memory_bytes else "nobody",
    )  # fmt: skip
    keeper = asyncio.create_task(_keep(child, watch, cancel, limits))
    last: dict[str, Any] = {}
    has_started = False
    try:
        async for message in child.messages():
            watch.hear()
            match message["kind"]:
                case "started":
                    has_started = True
                case "progress":
                    listener.progress(Progress.from_json(message["progress"]))
                case "log":
                    listener.log(str(message["log"]))
                case _:
                    last = message
        watch.peak_bytes = max(watch.peak_bytes, peak_bytes(child.pid))
        status = await child.wait()
    finally:
        keeper.cancel()
        child.kill()
    logger.info("child ended pid=%s status=%s reason=%s", child.pid, status, watch.reason)
    was_short = status == -9 and kills_for_memory() > kills_before
    outcome = judge(last, status, watch, limits, child.last_words(), was_short_of_memory=was_short)
    return replace(outcome, has_started=has_started, peak_memory_bytes=watch.peak_bytes or None)


def judge(
    last: Mapping[str, Any], status: int, watch: Watch, limits: ChildLimits, words: str, *, was_short_of_memory: bool
) -> ChildOutcome:
    """Judge how a child ended from its last message, its exit status (negative: a signal) and the reason for stopping
    it.

    ``was_short_of_memory``: SIGKILL ended it while the kernel killed processes for lack of memory.
    """
    if last.get("kind") == "result":
        result = as_words(last["result"])
        assert isinstance(result, dict)
        return ChildOutcome(succeeded=(result, last["outputs"]))
    detail: dict[str, object] = {"exit": describe_exit(status), "peak_memory_bytes": watch.peak_bytes}
    if watch.reason is None and status == -signal.SIGKILL and not was_short_of_memory:
        detail["end"] = str(BoxEnd.KILLED)
    if words:
        detail["last_words"] = words
    match watch.reason:
        case VerbEnd.CANCEL:
            return ChildOutcome(is_cancelled=True)
        case VerbEnd.DEADLINE:
            message = f"the operation did not end within timeout_s = {limits.given_s:g} s and was stopped"
            return ChildOutcome(failed=OperationFailure(DeadlineExceeded.code, message, {"timeout_s": limits.given_s}))
        case VerbEnd.STALL:
            message = (
                f"the process of this operation produced no progress, log line or output for {limits.stall_s:g} s "
                "(box.stall_s) and was killed"
            )
            return ChildOutcome(failed=OperationFailure(Stalled.code, message + _with(words), detail))
        case VerbEnd.MEMORY:
            message = (
                f"the process of this operation used {watch.peak_bytes >> 20} MiB; its box allows "
                f"{limits.memory_bytes >> 20} MiB: it was killed"
            )
            return ChildOutcome(
                failed=OperationFailure(OutOfMemory.code, message, {**detail, "limit_bytes": limits.memory_bytes})
            )
        case None:
            pass
    if last.get("kind") == "error":
        error = last["error"]
        if error["code"] == Cancelled.code:
            return ChildOutcome(is_cancelled=True)
        return ChildOutcome(failed=OperationFailure(str(error["code"]), str(error["message"]), _detail_of(error)))
    reason = f"the process of this operation {describe_exit(status)}"
    if status == 0:
        reason += " and gave no result"
    if was_short_of_memory:
        reason += f" while the machine ran out of memory; the process had used {watch.peak_bytes >> 20} MiB"
    return ChildOutcome(
        failed=OperationFailure((OutOfMemory if was_short_of_memory else ChildDied).code, reason + _with(words), detail)
    )


def _detail_of(error: Mapping[str, Any]) -> dict[str, object]:
    detail = as_words(error.get("detail") or {})
    assert isinstance(detail, dict)
    return detail


def _with(words: str) -> str:
    return f"; its last words: {words}" if words else ""


async def _keep(child: ChildProcess, watch: Watch, cancel: asyncio.Event, limits: ChildLimits) -> None:
    """End the child when necessary, and record the reason."""
    cancelling = asyncio.create_task(cancel.wait())
    looking = asyncio.create_task(_look(child, watch, limits))
    tasks: set[asyncio.Task[Any]] = {cancelling, looking}
    try:
        await asyncio.wait(tasks, timeout=limits.timeout_s or None, return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            watch.reason = looking.result()
            child.kill()
            return
        watch.reason = VerbEnd.CANCEL if cancelling.done() else VerbEnd.DEADLINE
        await child.stop(limits.grace_s)
    finally:
        for task in tasks:
            task.cancel()


async def _look(child: ChildProcess, watch: Watch, limits: ChildLimits) -> VerbEnd:
    """Wait until the child exceeds a limit. Returns the limit."""
    while True:
        watch.peak_bytes = max(watch.peak_bytes, peak_bytes(child.pid))
        if limits.memory_bytes:
            used = resident_bytes(child.pid)
            watch.peak_bytes = max(watch.peak_bytes, used)
            if used > limits.memory_bytes:
                return VerbEnd.MEMORY
        if limits.stall_s and time.monotonic() - watch.heard_at > limits.stall_s:
            return VerbEnd.STALL
        await asyncio.sleep(LOOK_EVERY_S)

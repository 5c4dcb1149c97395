"""Run one operation in a child process and tell how it ended, whatever happens to the child."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdukit_modelbox.context import Progress
from rdukit_modelbox.operations import Failure
from rdukit_modelbox.process import Child, describe_exit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended: exactly one of the three. ``has_started`` tells a broken installation from a failed verb."""

    succeeded: tuple[Mapping[str, object], Mapping[str, str]] | None = None
    failed: Failure | None = None
    is_cancelled: bool = False
    has_started: bool = True


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a child's talk goes."""

    progress: Callable[[Progress], object]
    log: Callable[[str], object]


async def run_child(
    request: Mapping[str, object], log_file: Path, listener: Listener, cancel: asyncio.Event, grace_s: float
) -> Outcome:
    """Start a child for ``request``, pass its talk on, stop it when ``cancel`` is set, and say how it ended."""
    try:
        child = await Child.start(request, log_file, listener.log)
    except OSError as cause:
        return Outcome(failed=Failure("unavailable", f"no process could be started: {cause}"), has_started=False)
    logger.info("child started pid=%s verb=%s", child.pid, request.get("verb"))
    stopper = asyncio.create_task(_stop_on_cancel(child, cancel, grace_s))
    last: dict[str, Any] = {}
    has_started = False
    try:
        async for message in child.messages():
            match message["kind"]:
                case "started":
                    has_started = True
                case "progress":
                    listener.progress(Progress(**message["progress"]))
                case "log":
                    listener.log(str(message["log"]))
                case _:
                    last = message
        status = await child.wait()
    finally:
        stopper.cancel()
        child.kill()
    logger.info("child ended pid=%s status=%s", child.pid, status)
    return _judge(last, status, cancel.is_set(), has_started, child)


def _judge(last: Mapping[str, Any], status: int, is_cancelled: bool, has_started: bool, child: Child) -> Outcome:
    if last.get("kind") == "result":
        return Outcome(succeeded=(last["result"], last["outputs"]))
    if is_cancelled:
        return Outcome(is_cancelled=True)
    if last.get("kind") == "error":
        error = last["error"]
        if error["code"] == "cancelled":
            return Outcome(is_cancelled=True)
        return Outcome(failed=Failure(str(error["code"]), str(error["message"]), error.get("detail") or {}))
    words = child.last_words()
    reason = f"the process of this operation {describe_exit(status)}" + (f"; its last words: {words}" if words else "")
    return Outcome(failed=Failure("child-died", reason), has_started=has_started)


async def _stop_on_cancel(child: Child, cancel: asyncio.Event, grace_s: float) -> None:
    await cancel.wait()
    await child.stop(grace_s)

"""Native kernels of a served model, built while it answers from generated code; then it switches to them."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rdukit.errors import RdukitError
from rdukit_serving.models.repository import Repository

logger = logging.getLogger(__name__)

#: Program that builds the kernels of one PEF into another.
PROGRAM: Final = "rdukit_modelbox.artifacts.native_kernels"


async def switch_to_native(repository: Repository, to_build: Mapping[Path, Path]) -> None:
    """Build each PEF's native kernels, and replace the version that answers by one with these PEFs, under its number.

    Requests are answered all the time. What cannot be built, or finds no room, leaves the version as it is.

    Args:
        to_build: PEF → path of the PEF with native kernels.
    """
    began = time.monotonic()
    built = {pef: native for pef, native in to_build.items() if await _build(pef, native)}
    current = repository.current
    if current is None:
        return
    files = current.files
    draft = (built.get(files.draft[0], files.draft[0]), files.draft[1]) if files.draft else None
    pef = built.get(files.pef, files.pef)
    if (pef, draft) == (files.pef, files.draft):
        return
    try:
        await repository.load(pef, files.checkpoint, current.version, draft=draft)
    except RdukitError as error:
        logger.warning("native kernels are used from the next start on reason=%s", error.message)
        return
    logger.info("native kernels are used model=%s seconds=%.1f", repository.name, time.monotonic() - began)


async def _build(pef: Path, native: Path) -> bool:
    """Run the program to its end, which prints progress to stderr. Return whether the PEF is there."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", PROGRAM, str(os.getpid()), str(pef), str(native), start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as cause:
        logger.warning("no process could be started to build native kernels reason=%s", cause)
        return False
    try:
        await process.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return process.returncode == 0 and native.is_file()

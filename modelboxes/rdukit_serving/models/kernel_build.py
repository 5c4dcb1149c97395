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
    """Build each PEF's native kernels in order; each replaces its PEF in the version that answers, under its number.

    So a model has its kernels before those of its draft are built. Requests are answered all the time. What cannot be
    built, or finds no room, leaves the version unchanged.

    Args:
        to_build: PEF → path of the PEF with native kernels; of a model, of its draft, or of both.
    """
    for pef, native in to_build.items():
        began = time.monotonic()
        if await _build(pef, native):
            await _switch(repository, pef, native, began)


async def _switch(repository: Repository, pef: Path, native: Path, began: float) -> None:
    """Load the version that answers with ``native`` in place of ``pef``, if it has that."""
    current = repository.current
    if current is None:
        return
    files = current.files
    draft = files.draft and (native if files.draft[0] == pef else files.draft[0], files.draft[1])
    model = native if files.pef == pef else files.pef
    if (model, draft) == (files.pef, files.draft):
        return
    try:
        await repository.load(model, files.checkpoint, current.version, draft=draft, replaces=current)
    except RdukitError as error:
        logger.warning("native kernels are used from the next start on pef=%s reason=%s", native, error.message)
        return
    seconds = time.monotonic() - began
    logger.info("native kernels are used model=%s pef=%s seconds=%.1f", repository.name, native, seconds)


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

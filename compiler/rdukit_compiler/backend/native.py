"""Native libraries for kernels, built once per unique kernel and kept in the kernel cache.

The cache is ``$RDUKIT_HOME/kernels/<torch version>-<cpu>-<how we build>/<digest>.so``: files appear atomically, so
concurrent compiles and a ``kill -9`` leave whole files only.
"""

import json
import logging
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch

from rdukit.cpu import cpu_signature, usable_cores
from rdukit.errors import CompileError
from rdukit.pef.kernel import KernelGraph
from rdukit.settings import home_folder, resolve
from rdukit_compiler.backend.native_worker import SHARE_HEADERS
from rdukit_compiler.backend.operators import GETITEM
from rdukit_compiler.settings import WORKERS

logger = logging.getLogger(__name__)

#: Above so many kernels, precompiling the C++ headers first pays.
SHARED_HEADERS_FROM = 8

#: Counts up when kernels are built in another way, so that older libraries are not used.
BUILD: Final = 2

#: How the names of operators begin that can be compiled.
_COMPILED = ("aten.", "prims.")


def find_cpp_compiler() -> str | None:
    """Path of the C++ compiler that torch would use, or None."""
    return shutil.which(os.environ.get("CXX") or "g++")


def cache_folder() -> Path:
    """Folder of native kernels for this torch and this processor."""
    return home_folder() / "kernels" / f"{torch.__version__.replace('+', '-')}-{cpu_signature()}-{BUILD}"


def has_native_form(kernel: KernelGraph) -> bool:
    """Whether a native library makes sense: our own operators, and those of other libraries, run as they are."""
    return bool(kernel.nodes) and all(node.op == GETITEM or node.op.startswith(_COMPILED) for node in kernel.nodes)


def build_natives(kernels: Mapping[str, KernelGraph], on_built: Callable[[str, str | None], None]) -> dict[str, bytes]:
    """Native libraries by kernel digest; kernels that could not be built are left out, and run portably.

    Args:
        on_built: called with each digest as it is ready, and the error if there was one.
    """
    folder = cache_folder()
    wanted = {digest: kernel for digest, kernel in kernels.items() if has_native_form(kernel)}
    missing = {digest: kernel for digest, kernel in wanted.items() if not (folder / f"{digest}.so").exists()}
    for digest in wanted.keys() - missing.keys():
        on_built(digest, None)
    if missing:
        _build_missing(missing, folder, on_built)
    return {digest: (folder / f"{digest}.so").read_bytes() for digest in wanted if (folder / f"{digest}.so").exists()}


def _build_missing(
    missing: Mapping[str, KernelGraph], folder: Path, on_built: Callable[[str, str | None], None]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rdukit-kernels-") as scratch:
        pending: queue.SimpleQueue[str] = queue.SimpleQueue()
        # The largest first, so that no worker ends alone with a long one.
        for digest, kernel in sorted(missing.items(), key=lambda item: -len(item[1].nodes)):
            (Path(scratch) / digest).write_bytes(kernel.to_json())
            pending.put(digest)
        count = min(len(missing), resolve(WORKERS) or usable_cores())
        failures: list[BaseException] = []
        share = len(missing) > SHARED_HEADERS_FROM
        threads = [
            threading.Thread(target=_drive_worker, args=(Path(scratch), folder, pending, on_built, failures, share))
            for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise CompileError(f"building native kernels failed: {failures[0]}; RDUKIT_KERNELS=portable avoids it")


def _drive_worker(
    scratch: Path, folder: Path, pending: "queue.SimpleQueue[str]", on_built: Callable[[str, str | None], None],
    failures: list[BaseException], share_headers: bool,
) -> None:  # fmt: skip
    """Feed one worker process until nothing is pending; stop it whatever happens."""
    environ = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(home_folder() / "kernels" / "inductor"),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "rdukit_compiler.backend.native_worker", *([SHARE_HEADERS] if share_headers else [])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        while True:
            try:
                digest = pending.get_nowait()
            except queue.Empty:
                break
            process.stdin.write(f"{scratch / digest}\t{folder / (digest + '.so')}\n")
            process.stdin.flush()
            line = process.stdout.readline()
            error = json.loads(line)["error"] if line else f"the worker process ended with status {process.wait()}"
            if error:
                logger.warning("native kernel failed kernel=%s error=%s", digest[:12], error)
            on_built(digest, error)
            if not line:
                break
    except BaseException as cause:  # noqa: BLE001 - a thread's border: the caller raises it
        failures.append(cause)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.terminate()
        process.wait()

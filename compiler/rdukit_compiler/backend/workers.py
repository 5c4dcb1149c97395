"""Worker processes of a compile: forks of one process that has imported torch's compiler, which takes seconds.

``native_worker.py`` is that process's program.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from rdukit.files.home import make_folder
from rdukit.pef.units import KernelVerdict, verdict_from_json
from rdukit.system.forks import ForkServer
from rdukit_compiler.backend.kernel_cache import INDUCTOR, BuildPlace, kernels_folder
from rdukit_compiler.backend.measure_routes import load_routes
from rdukit_compiler.backend.section_library import compiler_environment

#: Program of the process that workers are forked from. Garbage collection is off: it takes a quarter of the import's
#: time and frees hardly anything.
_PROGRAM: Final = "import gc; gc.disable(); from rdukit_compiler.backend.native_worker import main; main()"


def start_worker_server() -> ForkServer:
    """Start the process that forks workers, and return at once; it imports meanwhile."""
    inductor = kernels_folder() / INDUCTOR
    with contextlib.suppress(OSError):  # the cache reports the reason
        make_folder(inductor)
    environment = {
        **compiler_environment(),
        "TORCHINDUCTOR_CACHE_DIR": str(inductor),
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    silent = os.open(os.devnull, os.O_WRONLY)
    try:
        return ForkServer.start([sys.executable, "-c", _PROGRAM], environment, silent)
    finally:
        os.close(silent)


class Worker:
    """A worker process, asked to build batches of kernels and to check units."""

    def __init__(self, server: ForkServer, place: BuildPlace) -> None:
        """Fork a worker, once the server has imported its modules.

        Raises:
            Unavailable: the server has ended.
        """
        self._folder = place.scratch
        with contextlib.ExitStack() as theirs:
            asked, ask = os.pipe2(os.O_CLOEXEC)
            theirs.callback(os.close, asked)
            self._requests = os.fdopen(ask, "w")
            answered, answer = os.pipe2(os.O_CLOEXEC)
            theirs.callback(os.close, answer)
            self._answers = os.fdopen(answered)
            silent = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            theirs.callback(os.close, silent)
            body = {"name": "rdukit-kernels", "folder": str(place.scratch), "routes": load_routes().text()}
            try:
                self.process = server.fork(body, silent, asked, (answer, place.lock))
            except BaseException:
                self._close()
                raise

    def build(self, digests: Sequence[str]) -> Iterator[tuple[str, bytes | None, str | None]]:
        """Yield each kernel with its library, or with its error, when it is ready. Ends early if the worker dies."""
        left = list(digests)
        self._ask(left)
        while left:
            line = self._answers.readline()
            if not line:
                for digest in left:
                    yield digest, None, f"the worker process ended with status {self.process.wait()}"
                return
            answer = json.loads(line)
            digest = answer["kernel"]
            left.remove(digest)
            library = self._folder / f"{digest}.so"
            yield digest, None if answer["error"] else library.read_bytes(), answer["error"]

    def check(self, digests: Sequence[str], is_full: bool) -> Iterator[tuple[str, KernelVerdict]]:
        """Yield each unit with its verdict, when it is known. Ends early if the worker dies."""
        self._ask({"units": list(digests), "is_full": is_full})
        for _ in digests:
            line = self._answers.readline()
            if not line:
                return
            answer = json.loads(line)
            yield answer["unit"], verdict_from_json(answer["verdict"])

    def stop(self) -> None:
        """Kill the process and the C++ compilers that it runs."""
        self._close()
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()

    def _ask(self, request: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # the worker has died: its answers end
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()

    def _close(self) -> None:
        for stream in (self._requests, self._answers):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

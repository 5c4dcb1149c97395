"""Native libraries for kernels, built once per unique kernel and kept in the kernel cache.

The cache is ``kernel_cache.py``'s: one process builds a kernel, others that want it wait for it.
"""

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Self

from rdukit.errors import CompileError
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.units import KernelVerdict, verdict_from_json
from rdukit.settings import resolve
from rdukit.system.cpu import NATIVE_BUILD, sanitized_suffix, splittable_threads, usable_cores
from rdukit_compiler.backend.kernel_cache import BuildPlace, KernelCache, open_kernel_cache
from rdukit_compiler.backend.measure_routes import load_routes
from rdukit_compiler.backend.section_library import NO_FORM, compiler_environment, find_cpp_compiler, sources_digest
from rdukit_compiler.operators.naming import GETITEM
from rdukit_compiler.operators.own_operators import INT4_LINEAR, INT8_LINEAR, LSTM_LAYER
from rdukit_compiler.settings import WORKERS

logger = logging.getLogger(__name__)

#: Operators of the kernels that are compiled together, at most, and what a kernel costs beside its operators.
_BATCH_OPERATORS: Final = 400
_KERNEL_OPERATORS: Final = 5

#: How the names of operators begin that can be compiled.
_COMPILED = ("aten.", "prims.", INT8_LINEAR, INT4_LINEAR, LSTM_LAYER)


def build_variant() -> str:
    """Return a word, part of a path, for the way in which libraries are built; those built otherwise are not used."""
    return f"{build_word()}-{load_routes().word()}-{splittable_threads()}t{sanitized_suffix()}"


def build_word() -> str:
    """Return the prefix of every ``build_variant`` of this version, whatever the machine."""
    return f"build-{NATIVE_BUILD}-{sources_digest()}"


def has_native_form(kernel: KernelGraph) -> bool:
    """Return whether a native library makes sense: our own operators, and those of other libraries, run as they are."""
    return bool(kernel.nodes) and all(node.op == GETITEM or node.op.startswith(_COMPILED) for node in kernel.nodes)


class NativeBuilder:
    """Native kernel builder of one compile. Used as a context: at its end nothing of it is left.

    Worker processes take seconds to import torch's compiler; ``warm`` starts them while kernels are still being found.
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._cache: KernelCache | None = None
        self._place: BuildPlace | None = None
        self._spare: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._spare:
            worker.stop()
        self._held.close()

    @property
    def cache(self) -> KernelCache:
        """Return the cache that keeps libraries."""
        if self._cache is None:
            self._cache = open_kernel_cache(build_variant())
        return self._cache

    def open(self) -> BuildPlace | None:
        """Return the place for this compile's builds; None if the cache is refused."""
        if self._place is None and self.cache.refusal is None:
            self._place = self._held.enter_context(self.cache.building())
        return self._place

    def warm(self) -> None:
        """Start the workers, if there is a compiler: new kernels are to be expected."""
        if not self._spare and find_cpp_compiler() is not None and (place := self.open()) is not None:
            self._spare = [Worker(place, str(self.cache.inductor)) for _ in range(worker_count())]

    def drive(self, place: BuildPlace, work: Callable[["Worker"], None], count: int) -> list[BaseException]:
        """Call ``work`` in so many threads at once, each with a worker of its own, and wait for all.

        Returns:
            What was raised. A worker of a call that raised is stopped; the others are kept for later work.
        """
        failures: list[BaseException] = []

        def call(worker: Worker) -> None:
            try:
                work(worker)
            except BaseException as cause:  # noqa: BLE001 - a thread's boundary: the caller raises it
                worker.stop()
                failures.append(cause)
            else:
                self._spare.append(worker)

        workers = [self._take_worker(place) for _ in range(count)]
        threads = [threading.Thread(target=call, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failures

    def _take_worker(self, place: BuildPlace) -> "Worker":
        return self._spare.pop() if self._spare else Worker(place, str(self.cache.inductor))


def worker_count() -> int:
    """Return the maximum number of processes that build at once."""
    return resolve(WORKERS) or usable_cores()


def build_natives(
    kernels: Mapping[str, KernelGraph], on_built: Callable[[str, str | None], None], has_compiler: bool = True,
    builder: NativeBuilder | None = None,
) -> dict[str, bytes]:  # fmt: skip
    """Return the native libraries by kernel digest; kernels that could not be built are left out, and run portably.

    Args:
        on_built: called with each digest as it is ready, and the error if there was one.
        has_compiler: False takes what earlier compiles kept, and builds nothing.
        builder: the compile's; None makes one for this call.
    """
    if builder is None:
        with NativeBuilder() as own:
            return build_natives(kernels, on_built, has_compiler, own)
    cache = builder.cache
    wanted = {digest: kernel for digest, kernel in kernels.items() if has_native_form(kernel)}
    libraries = {digest: library for digest in wanted if (library := cache.find(digest)) is not None}
    missing = {digest: kernel for digest, kernel in wanted.items() if digest not in libraries}
    for digest in libraries:
        on_built(digest, None)
    if missing and has_compiler:
        _build_missing(missing, builder, libraries, on_built)
    return libraries


def _build_missing(
    missing: Mapping[str, KernelGraph], builder: NativeBuilder, libraries: dict[str, bytes],
    on_built: Callable[[str, str | None], None],
) -> None:  # fmt: skip
    """Add the libraries that can be built to ``libraries``; if none can be kept, say so once."""
    cache = builder.cache
    place = builder.open()
    if place is not None:
        _build_in(place, missing, builder, libraries, on_built)
    if cache.refusal is not None:
        left = [digest for digest in missing if digest not in libraries]
        for number, digest in enumerate(left):
            on_built(digest, f"{cache.refusal}; so do {len(left) - 1} other kernels" if number == 0 else None)


def _build_in(
    place: BuildPlace, missing: Mapping[str, KernelGraph], builder: NativeBuilder, libraries: dict[str, bytes],
    on_built: Callable[[str, str | None], None],
) -> None:  # fmt: skip
    cache = builder.cache
    try:
        for digest, kernel in missing.items():
            (place.scratch / digest).write_bytes(kernel.to_json())
    except OSError as cause:
        return cache.refuse(cause)
    count = min(len(missing), worker_count())
    batches: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    for batch in divide_kernels({digest: len(kernel.nodes) for digest, kernel in missing.items()}, count):
        batches.put(batch)
    failures = builder.drive(place, lambda worker: _drive_worker(worker, cache, batches, libraries, on_built), count)
    if failures:
        raise CompileError(f"building native kernels failed: {failures[0]}; RDUKIT_KERNELS=portable avoids it")


def divide_kernels(sizes: Mapping[str, int], workers: int) -> list[list[str]]:
    """Return the batches of kernels that are compiled together: of about equal size, one for each worker, more where
    that is much.

    A batch reads torch's headers once, which takes as long as several kernels; a long batch shows no progress.

    Args:
        sizes: operators of each kernel, by digest.
    """
    count = max(workers, -(-sum(sizes.values()) // _BATCH_OPERATORS))
    batches: list[list[str]] = [[] for _ in range(min(count, len(sizes)))]
    loads = [0] * len(batches)
    # The largest first, each to the batch that has least.
    for digest in sorted(sizes, key=lambda d: (-sizes[d], d)):
        least = loads.index(min(loads))
        batches[least].append(digest)
        loads[least] += sizes[digest] + _KERNEL_OPERATORS
    return batches


class Worker:
    """A worker process, asked to build batches of kernels and to check units."""

    def __init__(self, place: BuildPlace, inductor: str) -> None:
        environ = {
            **compiler_environment(),
            "TORCHINDUCTOR_CACHE_DIR": inductor,
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        self._folder = place.scratch
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rdukit_compiler.backend.native_worker", str(place.scratch), load_routes().text(),
             str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ,
            pass_fds=(place.lock,), process_group=0,
        )  # fmt: skip

    def build(self, digests: Sequence[str]) -> Iterator[tuple[str, bytes | None, str | None]]:
        """Yield each kernel with its library, or with the error, as they are ready. Ends early if the worker dies."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        left = list(digests)
        try:
            stdin.write(json.dumps(left) + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass
        while left:
            line = stdout.readline()
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
        """Yield each unit with its verdict, as they are known. Ends early if the worker dies."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(json.dumps({"units": list(digests), "is_full": is_full}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            return
        for _ in digests:
            line = stdout.readline()
            if not line:
                return
            answer = json.loads(line)
            yield answer["unit"], verdict_from_json(answer["verdict"])

    def stop(self) -> None:
        """End the process and the C++ compilers that it runs, whatever they do."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()


def _drive_worker(
    worker: "Worker", cache: KernelCache, batches: "queue.SimpleQueue[list[str]]", libraries: dict[str, bytes],
    on_built: Callable[[str, str | None], None],
) -> None:  # fmt: skip
    """Feed one worker process until nothing is left."""

    def on_found(digest: str, library: bytes) -> None:
        libraries[digest] = library
        on_built(digest, None)

    def build(digests: Sequence[str]) -> None:
        for digest, library, error in worker.build(digests):
            if library is not None:
                libraries[digest] = library
                cache.keep(digest, library)
                on_built(digest, None)
            elif error is not None and not cache.is_refused_by(error):
                if error.startswith(NO_FORM):
                    logger.info("kernel runs portably kernel=%s reason=%s", digest[:12], error)
                else:
                    logger.warning("native kernel failed kernel=%s error=%s", digest[:12], error)
                on_built(digest, error)

    while cache.refusal is None and worker.process.poll() is None:
        try:
            batch = batches.get_nowait()
        except queue.Empty:
            break
        pending: queue.SimpleQueue[str] = queue.SimpleQueue()
        for digest in batch:
            pending.put(digest)
        with contextlib.closing(cache.unbuilt_batches(pending, len(batch), on_found)) as ours:
            for digests in ours:
                build(digests)

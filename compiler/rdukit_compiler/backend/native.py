"""Native libraries for kernels, built once per unique kernel and kept in the kernel cache.

The cache is ``kernel_cache.py``'s: one process builds a kernel, others that want it wait for it.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

from rdukit.errors import CompileError, Unavailable
from rdukit.pef.kernel import KernelGraph
from rdukit.settings import resolve
from rdukit.system.cpu import NATIVE_BUILD, sanitized_suffix, splittable_threads, usable_cores
from rdukit.system.forks import ForkServer
from rdukit_compiler.backend.kernel_cache import BuildPlace, KernelCache, open_kernel_cache
from rdukit_compiler.backend.measure_routes import load_routes
from rdukit_compiler.backend.section_library import NO_FORM, find_cpp_compiler, sources_digest
from rdukit_compiler.backend.workers import Worker, start_worker_server
from rdukit_compiler.operators.naming import GETITEM
from rdukit_compiler.operators.own_operators import INT4_LINEAR, INT8_LINEAR, LSTM_LAYER
from rdukit_compiler.operators.supported import GUARD
from rdukit_compiler.settings import WORKERS

logger = logging.getLogger(__name__)

#: Maximum operators of the kernels in one batch, and the cost of a kernel itself, in operators.
_BATCH_OPERATORS: Final = 400
_KERNEL_OPERATORS: Final = 5

#: Prefixes of the names of operators that can be compiled.
_COMPILED = ("aten.", "prims.", INT8_LINEAR, INT4_LINEAR, LSTM_LAYER)


def build_variant() -> str:
    """Return a word, part of a path, for the way in which libraries are built; those built otherwise are not used."""
    return f"{build_word()}-{load_routes().word()}-{splittable_threads()}t{sanitized_suffix()}"


def build_word() -> str:
    """Return the prefix of every ``build_variant`` of this version, whatever the machine."""
    return f"build-{NATIVE_BUILD}-{sources_digest()}"


def has_native_form(kernel: KernelGraph) -> bool:
    """Return whether a native library makes sense; our own operators, and those of other libraries, run without one.

    Neither do checks of a forward's conditions have one, which are sections of their own.
    """
    return bool(kernel.nodes) and all(
        node.op == GETITEM or (node.op.startswith(_COMPILED) and node.op != GUARD) for node in kernel.nodes
    )


class NativeBuilder:
    """Native kernel builder of one compile. A context manager that removes its files and processes at the end.

    Workers are forks of a process that takes seconds to import torch's compiler; ``warm`` starts it while kernels are
    still being found.
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._cache: KernelCache | None = None
        self._place: BuildPlace | None = None
        self._server: ForkServer | None = None
        self._spare: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._spare:
            worker.stop()
        if self._server is not None:
            self._server.close(at_once=True)
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
        """Prepare for workers, if there is a compiler: new kernels are to be expected.

        The fork server imports while this process measures the routes of a new machine.
        """
        if self._server is None and find_cpp_compiler() is not None:
            self._server = start_worker_server()
            self.open()

    def drive(self, place: BuildPlace, work: Callable[[Worker], None], count: int) -> list[BaseException]:
        """Call ``work`` in so many threads at once, each with a worker of its own, and wait for all.

        Returns:
            The exceptions that were raised. A worker of a call that raised is stopped; the others are kept for later
            work.

        Raises:
            Unavailable: there can be no workers.
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

        while len(self._spare) < count:
            self._spare.append(self._fork_worker(place))
        threads = [threading.Thread(target=call, args=(self._spare.pop(),)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failures

    def _fork_worker(self, place: BuildPlace) -> Worker:
        if self._server is None:
            self._server = start_worker_server()
        return Worker(self._server, place)


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
        has_compiler: False uses what earlier compiles kept, and builds nothing.
        builder: the compile's builder; None creates one for this call.
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
    """Add the libraries that can be built to ``libraries``; if none can be kept, report it once."""
    cache = builder.cache
    place = builder.open()
    if place is not None:
        _build_in(place, missing, builder, libraries, on_built)
    if cache.refusal is not None:
        left = [digest for digest in missing if digest not in libraries]
        for number, digest in enumerate(left):
            on_built(
                digest, f"{cache.refusal}; {len(left) - 1} other kernels also run portably" if number == 0 else None
            )


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
    try:
        failures = builder.drive(
            place, lambda worker: _drive_worker(worker, cache, batches, libraries, on_built), count
        )
    except Unavailable as cause:
        for digest in missing:
            on_built(digest, str(cause))
        return
    if failures:
        raise CompileError(f"building native kernels failed: {failures[0]}; RDUKIT_KERNELS=portable avoids it")


def divide_kernels(sizes: Mapping[str, int], workers: int) -> list[list[str]]:
    """Return the batches of kernels that are compiled together: of about equal size, one for each worker, or more if
    these would be large.

    A batch reads torch's headers once, which takes as long as several kernels; a long batch shows no progress.

    Args:
        sizes: operators of each kernel, by digest.
    """
    count = max(workers, -(-sum(sizes.values()) // _BATCH_OPERATORS))
    batches: list[list[str]] = [[] for _ in range(min(count, len(sizes)))]
    loads = [0] * len(batches)
    # The largest kernel first, each into the smallest batch.
    for digest in sorted(sizes, key=lambda d: (-sizes[d], d)):
        least = loads.index(min(loads))
        batches[least].append(digest)
        loads[least] += sizes[digest] + _KERNEL_OPERATORS
    return batches


def _drive_worker(
    worker: Worker, cache: KernelCache, batches: "queue.SimpleQueue[list[str]]", libraries: dict[str, bytes],
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

"""Cache of native libraries for all programs of a user; one process at a time builds a library.

The folder is ``$RDUKIT_HOME/kernels/<torch version>/<processor>/<variant>/<digest>.so``: a library fits only the torch
and the processor that it was built for, and the variant describes how it was built. The other folders are inductor's
own cache, ``kernels/inductor``, and files of running compiles, ``kernels/scratch``. Everything is bounded together.

Results do not depend on the cache: unreadable libraries are built again, and write errors only cost time.
Source: ours.
"""

import logging
import os
import queue
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from rdukit.files.disk_cache import (
    CachedFile,
    choose_evicted,
    list_cached,
    load_cached,
    remove_cached,
    store_cached,
    sweep_temporary,
)
from rdukit.files.home import make_folder
from rdukit.files.locks import claim_lock, shared_lock, sole_lock
from rdukit.settings import home_folder, resolve
from rdukit.system.cpu import cpu_signature
from rdukit_compiler.settings import KERNEL_CACHE

logger = logging.getLogger(__name__)

INDUCTOR: Final = "inductor"
SCRATCH: Final = "scratch"
LOCKS: Final = "locks"

#: How the files of verdicts on units end.
VERDICT: Final = ".verdict"

#: Lock that builders share, and that a sweep holds exclusively.
BUILDING: Final = "building"

#: Seconds that a process waits for a kernel that another one builds, before it builds the kernel itself.
WAIT_S: Final = 300.0

#: A build that fails with fewer free bytes on the disk counts as failed for lack of space.
_FULL_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class BuildPlace:
    """Folder and lock of one compile's builds."""

    #: A folder of this compile alone, removed when it ends.
    scratch: Path
    #: Shared lock that marks a running build. Workers inherit it, so that their files stay while they run.
    lock: int


class KernelCache:
    """The libraries of one torch, processor and variant; ``root`` and its bound are common to all of them.

    Args:
        variant: how the libraries are built; part of a folder's name.
    """

    def __init__(self, root: Path, variant: str, max_bytes: int, now: Callable[[], float] = time.time) -> None:
        self.root = root
        self.folder = root.joinpath(*own_place(), variant)
        self.inductor = root / INDUCTOR
        self._max_bytes = max_bytes
        self._now = now
        #: Why the cache cannot be written; None if it can.
        self.refusal: str | None = None

    def find(self, digest: str) -> bytes | None:
        """Find the library of a kernel; None if there is none, or only a damaged one."""
        return load_cached(self._path(digest), self._now())

    def keep(self, digest: str, library: bytes) -> None:
        """Write a library. If that fails, ``refusal`` says why, and no other kernel is built for the cache."""
        try:
            store_cached(self._path(digest), library)
        except OSError as cause:
            self.refuse(cause)

    def find_verdict(self, name: str) -> bytes | None:
        """Find the verdict of the kernel check that was kept under a name; None if there is none."""
        return load_cached(self._verdict(name), self._now())

    def keep_verdict(self, name: str, content: bytes) -> None:
        """Write a verdict; if that fails, the next compile checks again."""
        try:
            store_cached(self._verdict(name), content)
        except OSError as cause:
            logger.warning("verdict was not kept: folder=%s reason=%s", self.folder, cause)

    def refuse(self, cause: object) -> None:
        """Stop building, because the disk is full or the folder cannot be written. Logged once."""
        if self.refusal is None:
            self.refusal = f"the kernel cache {self.root} cannot be written: {cause}"
            logger.warning("native kernels are not built: reason=%s", self.refusal)

    def is_refused_by(self, error: str) -> bool:
        """Return whether a build failed with ``error`` for lack of space: then no other build is tried."""
        try:
            is_full = shutil.disk_usage(self.root).free < _FULL_BYTES
        except OSError:
            is_full = False
        if is_full or "No space left" in error or "Disk quota" in error:
            self.refuse(error)
        return self.refusal is not None

    def unbuilt_batches(
        self, pending: "queue.SimpleQueue[str]", limit: int, on_found: Callable[[str, bytes], None],
        wait_s: float = WAIT_S,
    ) -> Generator[list[str]]:  # fmt: skip
        """Yield batches of up to ``limit`` kernels of ``pending``, which only this caller builds.

        Those that another process builds come last: they are found when it has kept them, or yielded when it has died
        or taken ``wait_s``. A caller waits while it holds no kernel, so processes never wait for each other in a
        circle. Ends early when the cache is refused. Several threads may share ``pending``.

        Args:
            on_found: called with each kernel that was kept meanwhile, and its library.
        """
        busy: list[str] = []
        while self.refusal is None:
            with ExitStack() as held:
                batch: list[str] = []
                while len(batch) < limit and (digest := _find_next(pending)) is not None:
                    self._claim(held, digest, 0.0, on_found, batch, busy)
                if not batch:
                    break
                yield batch
        while busy and self.refusal is None:
            first, *others = busy
            busy, batch = [], []
            with ExitStack() as held:
                self._claim(held, first, wait_s, on_found, batch, batch)
                for digest in others:  # most likely they belong to the same process, so they are kept by now, or free
                    if len(batch) < limit:
                        self._claim(held, digest, 0.0, on_found, batch, busy)
                    else:
                        busy.append(digest)
                if batch:
                    yield batch

    def _claim(
        self, held: ExitStack, digest: str, wait_s: float, on_found: Callable[[str, bytes], None],
        ours: list[str], busy: list[str],
    ) -> None:  # fmt: skip
        """Find a kernel; otherwise lock it until ``held`` closes and add it to ``ours``, or to ``busy`` if another
        holds it.
        """
        with ExitStack() as lock:
            try:
                is_ours = lock.enter_context(sole_lock(self._lock(digest), wait_s))
            except OSError as cause:
                self.refuse(cause)
                return
            library = self.find(digest)
            if library is not None:
                on_found(digest, library)
            elif is_ours:
                ours.append(digest)
                held.push(lock.pop_all())
            else:
                busy.append(digest)

    @contextmanager
    def building(self) -> Iterator[BuildPlace | None]:
        """Yield a place for a compile's builds, or None if the cache is refused. Trims the cache at the end."""
        with ExitStack() as held:
            try:
                place = self._open_place(held)
            except OSError as cause:
                self.refuse(cause)
                place = None
            yield place
        if place is not None:
            self.trim()

    def _open_place(self, held: ExitStack) -> BuildPlace:
        make_folder(self.root / LOCKS)
        lock = held.enter_context(shared_lock(self.root / LOCKS / BUILDING))
        for folder in (self.folder, self.inductor, self.root / SCRATCH):
            folder.mkdir(parents=True, exist_ok=True)
        probe = self.folder / f".probe.{os.getpid()}.{secrets.token_hex(4)}.part"
        held.callback(probe.unlink, missing_ok=True)
        probe.write_bytes(bytes(4096))
        probe.unlink()
        scratch = self.root / SCRATCH / f"{os.getpid()}-{secrets.token_hex(4)}"
        scratch.mkdir()
        held.callback(shutil.rmtree, scratch, ignore_errors=True)
        return BuildPlace(scratch, lock)

    def trim(self) -> None:
        """Enforce the bound and remove leftovers of killed processes. Never fails."""
        try:
            trim_kernels(self.root, self._max_bytes, self._now())
        except OSError as cause:
            logger.warning("the kernel cache cannot be trimmed: reason=%s", cause)

    def _lock(self, digest: str) -> Path:
        return self.root / LOCKS / f"{digest}-{'-'.join(self.folder.parts[-3:])}.lock"

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}.so"

    def _verdict(self, name: str) -> Path:
        return self.folder / f"{name}{VERDICT}"


def open_kernel_cache(variant: str) -> KernelCache:
    """Return the user's cache, for libraries of this torch, this processor and ``variant``."""
    return KernelCache(kernels_folder(), variant, resolve(KERNEL_CACHE) << 20)


def kernels_folder() -> Path:
    """Return the folder of native kernels and their build files."""
    return home_folder() / "kernels"


def trim_kernels(
    root: Path, max_bytes: int, now_s: float,
    goes_anyway: Callable[[Path], bool] = lambda _: False, beside: Sequence[CachedFile] = (),
) -> int:  # fmt: skip
    """Remove leftovers of killed processes, files that ``goes_anyway`` selects, and the excess; return the bytes freed.

    Inductor's files go before any library: they only speed up the next build of the same kernel. While any process
    builds, they are neither removed nor counted: the last builder trims them.

    Args:
        max_bytes: bound on the remaining bytes, those of ``beside`` included: files elsewhere that are trimmed alike.
    """
    if not root.is_dir():
        return 0
    (root / LOCKS).mkdir(exist_ok=True)
    for lock in (root / LOCKS).glob("*.lock"):
        with sole_lock(lock):
            pass  # its release removes the file, if no process holds it
    sweep_temporary(root, now_s)
    with claim_lock(root / LOCKS / BUILDING) as nobody_builds:
        libraries = list_kernels(root)
        going = [file for file in libraries if goes_anyway(file.path)]
        verdicts = list_cached(sorted(root.glob(f"*/*/*/*{VERDICT}")))  # torch, processor, variant
        staying = [*beside, *verdicts, *(file for file in libraries if not goes_anyway(file.path))]
        if nobody_builds:
            for scratch in (root / SCRATCH).glob("*"):
                shutil.rmtree(scratch, ignore_errors=True)
            staying += list_inductor(root)
        freed = remove_cached([*going, *choose_evicted(staying, max_bytes)])
        if nobody_builds:
            _remove_empty_folders(root)
    return freed


def list_kernels(root: Path) -> list[CachedFile]:
    """List the libraries of the cache, including those that earlier versions kept elsewhere in it."""
    folders = {root / INDUCTOR, root / SCRATCH, root / LOCKS}
    return list_cached(
        (path for path in sorted(root.rglob("*.so")) if not folders & set(path.parents) and path.is_file()), rank=1
    )


def place_of(library: Path, root: Path) -> tuple[str, str, str]:
    """Return the torch, processor and variant that a library was built for; dashes where its path lacks one."""
    parts = library.relative_to(root).parts[:-1]
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("-", "-", "/".join(parts))


def own_place() -> tuple[str, str]:
    """Return the names of the cache's folders for this process: its torch version and its processor."""
    return torch.__version__.replace("+", "-"), cpu_signature()


def list_inductor(root: Path) -> list[CachedFile]:
    """List inductor's own files, by folder."""
    folder = root / INDUCTOR
    return list_cached(sorted(folder.iterdir())) if folder.is_dir() else []


def _find_next(pending: "queue.SimpleQueue[str]") -> str | None:
    try:
        return pending.get_nowait()
    except queue.Empty:
        return None


def _remove_empty_folders(root: Path) -> None:
    for folder in sorted((path for path in root.glob("*/**") if path.is_dir()), reverse=True):
        if folder.relative_to(root).parts[0] not in {INDUCTOR, SCRATCH, LOCKS}:
            try:
                folder.rmdir()
            except OSError:  # not empty, or not ours
                continue

"""For tests of the kernel cache: what a compile does with it, as a function that other processes can run."""

import queue
import random
import time
from pathlib import Path
from typing import Final

from rdukit_compiler.backend.kernel_cache import KernelCache

LIBRARY_BYTES: Final = 200_000


def library_of(digest: str) -> bytes:
    """Bytes that stand for the library of a kernel, the same for the same digest."""
    return random.Random(digest).randbytes(LIBRARY_BYTES)


def fill(root: Path, digests: str, max_bytes: int, build_s: float, log: Path) -> None:
    """What a compile does with the cache, with a pause for the builder; a line in ``log`` for each build."""
    cache = KernelCache(root, "v", max_bytes)
    pending: queue.SimpleQueue[str] = queue.SimpleQueue()
    for digest in digests:
        pending.put(digest)
    libraries: dict[str, bytes] = {}
    with cache.building() as place:
        assert place is not None
        for (digest,) in cache.unbuilt_batches(pending, 1, libraries.__setitem__):
            with log.open("a") as stream:
                stream.write(digest + "\n")
            (place.scratch / digest).write_bytes(library_of(digest)[: LIBRARY_BYTES // 2])
            time.sleep(build_s)
            libraries[digest] = library_of(digest)
            cache.keep(digest, libraries[digest])
    assert libraries == {digest: library_of(digest) for digest in digests}

"""The C library's allocator, if it is glibc's, and what processes ask of it.

glibc gives each thread an arena of its own, up to eight for each processor, and returns an arena's free memory to the
system only from its end. Threads that read large bodies therefore leave holes in many arenas.
"""

import ctypes
import os
from functools import cache
from typing import Any, Final

#: Parameter of ``mallopt``, of glibc's malloc.h.
_ARENA_MAX: Final = -8


@cache
def find_glibc() -> Any:
    """Return the C library with glibc's allocator; None if it is another one, or replaced by one that is preloaded."""
    if "malloc" in os.environ.get("LD_PRELOAD", ""):
        return None
    libc = ctypes.CDLL(None)
    if not all(hasattr(libc, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")):
        return None
    libc.malloc_trim.argtypes = [ctypes.c_size_t]
    return libc


def limit_arenas(count: int) -> bool:
    """Let all threads of this process share ``count`` arenas; return False if the allocator is not glibc's."""
    libc = find_glibc()
    return libc is not None and bool(libc.mallopt(_ARENA_MAX, count))

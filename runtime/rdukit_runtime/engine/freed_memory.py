"""Keep freed memory in the process while an application is open: a training step asks for the same buffers each time.

glibc gives large blocks back to the system as soon as they are freed, and each new one is filled with zeros page by
page: a fifth of a step of a model with 124 million parameters. Source: ours.
"""

import ctypes
import logging
import os
from functools import cache
from typing import Any, Final

from rdukit.settings import resolve
from rdukit_runtime.settings import KEEP_MEMORY

logger = logging.getLogger(__name__)

#: Parameters of ``mallopt``, of glibc's malloc.h.
_TRIM_THRESHOLD: Final = -1
_MMAP_MAX: Final = -4
#: Bytes of free memory at the heap's end that glibc keeps, at most: as much as ``mallopt`` takes.
_KEPT: Final = 2**31 - 1

_open_applications = 0


def application_opened() -> None:
    """From now on the process keeps what it frees, if the setting allows it and the C library is glibc."""
    global _open_applications
    _open_applications += 1
    libc = _glibc()
    if libc is not None and resolve(KEEP_MEMORY):
        kept = libc.mallopt(_TRIM_THRESHOLD, _KEPT) and libc.mallopt(_MMAP_MAX, 0)
        logger.debug("freed memory is kept accepted=%s", bool(kept))


def application_closed() -> None:
    """With the last application the freed memory goes back to the system."""
    global _open_applications
    _open_applications -= 1
    libc = _glibc()
    if _open_applications == 0 and libc is not None and resolve(KEEP_MEMORY):
        libc.malloc_trim(0)


@cache
def _glibc() -> Any:
    """The C library with glibc's allocator; None if it is another one, or replaced by one that is preloaded."""
    if "malloc" in os.environ.get("LD_PRELOAD", ""):
        return None
    libc = ctypes.CDLL(None)
    if not all(hasattr(libc, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")):
        return None
    libc.malloc_trim.argtypes = [ctypes.c_size_t]
    return libc

"""Huge pages for the memory of this process, so that its forks have less to copy. Linux 6.1 or newer."""

import ctypes
from pathlib import Path
from typing import Final

HUGE_BYTES: Final = 2 << 20
#: Source: madvise(2), include/uapi/asm-generic/mman-common.h.
_MADV_COLLAPSE: Final = 25


def collapse_memory(maps: Path = Path("/proc/self/maps")) -> int:
    """Put what this process has written to its private memory into huge pages. Returns how many bytes they hold.

    Where the kernel cannot, everything stays as it is. Pages are filled up with zeros, so a process grows by a few
    percent.
    """
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = [page for begin, end in find_private_memory(maps.read_text()) for page in huge_pages_in(begin, end)]
    return HUGE_BYTES * sum(int(advise(page, HUGE_BYTES, _MADV_COLLAPSE)) == 0 for page in pages)


def find_private_memory(maps: str) -> list[tuple[int, int]]:
    """Find the private, writable ranges without a file in the text of ``/proc/PID/maps`` (pure).

    Source: proc_pid_maps(5).
    """
    found = []
    for line in maps.splitlines():
        span, access, _, _, inode = line.split()[:5]
        if access[1] == "w" and access[3] == "p" and inode == "0":
            begin, _, end = span.partition("-")
            found.append((int(begin, 16), int(end, 16)))
    return found


def huge_pages_in(begin: int, end: int) -> range:
    """Return the addresses of the whole huge pages in a range (pure)."""
    return range(-(-begin // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES, HUGE_BYTES)

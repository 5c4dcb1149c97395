"""Device memory as the host's shared memory: zeroed, of fixed size, mapped into the application.

Closing rules: a mapping ends with its last view (a memoryview, or a tensor on one), never before. So giving up a buffer
means dropping references; memory under a tensor is never unmapped. A descriptor is needed only until it is mapped or
passed on; its holder then closes it.
"""

import ctypes
import fcntl
import functools
import mmap
import os
import weakref
from pathlib import Path
from typing import Any, Final

from rdukit.errors import OutOfDeviceMemory, RuntimeFault
from rdukit.units import format_bytes

#: From this size on, the host's free memory is checked first, and huge pages are requested.
_LARGE: Final = 64 * 1024**2
_HUGE_PAGE: Final = 2 * 1024**2
#: Return value of a failed mmap of the C library.
_FAILED: Final = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1


def create_region(name: str, region_bytes: int) -> int:
    """Return a new memfd of ``region_bytes`` zeros with a sealed size. The caller owns the descriptor.

    Raises:
        OutOfDeviceMemory: the host has no memory, or no descriptors, for it.
    """
    _check_host_memory(name, region_bytes)
    descriptor = -1
    try:
        descriptor = os.memfd_create("rdukit-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, region_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as cause:
        if descriptor >= 0:
            os.close(descriptor)
        raise _host_refuses(name, region_bytes, cause) from cause
    return descriptor


def map_region(descriptor: int, region_bytes: int) -> memoryview:
    """Map a region that ``create_region`` made; the descriptor may be closed afterwards.

    The standard library's ``mmap`` keeps a duplicate descriptor per mapping, which a program with a thousand regions
    would exhaust; so this calls the C library.

    Returns:
        ``region_bytes`` writable bytes; the memory is unmapped with its last view.
    Raises:
        RuntimeFault: the descriptor is not a region of that size.
        OutOfDeviceMemory: the host cannot map it.
    """
    size = os.fstat(descriptor).st_size
    if size != region_bytes:
        raise RuntimeFault(f"the node passed {size} bytes for a region of {region_bytes}; update the daemon")
    libc, array_of = _libc()
    address = libc.mmap(None, region_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        raise _host_refuses("", region_bytes, error) from error
    array = array_of(region_bytes).from_address(address)
    # Not at exit: tensors may outlive the interpreter's own clean-up, and the kernel unmaps everything anyway.
    weakref.finalize(array, libc.munmap, address, region_bytes).atexit = False
    return memoryview(array).cast("B")


@functools.cache
def _libc() -> tuple[Any, Any]:
    """Return the C library's calls, and a maker of array types, which ctypes itself would never forget."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc, functools.lru_cache(maxsize=64)(lambda count: ctypes.c_ubyte * count)


def map_private(name: str, region_bytes: int) -> memoryview:
    """Return ``region_bytes`` zeroed writable bytes of this process alone; unmapped when the last view goes.

    Raises:
        OutOfDeviceMemory: the host has no memory for it.
    """
    _check_host_memory(name, region_bytes)
    try:
        mapping = mmap.mmap(-1, region_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as cause:
        raise _host_refuses(name, region_bytes, cause) from cause
    if region_bytes >= _HUGE_PAGE:
        _ask_for_huge_pages(mapping)
    return memoryview(mapping)


def _ask_for_huge_pages(mapping: mmap.mmap) -> None:
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, AttributeError):
        return  # a hint: kernels without it serve small pages


def _check_host_memory(name: str, region_bytes: int) -> None:
    # The emulated memory may be larger than the host's. The kernel would grant it and kill the program at first touch.
    if region_bytes < _LARGE:
        return
    available = _host_available_bytes()
    if available is not None and region_bytes > available:
        raise OutOfDeviceMemory(
            f"region {name!r} needs {format_bytes(region_bytes)} but the host has {format_bytes(available)} of "
            "memory available; emulated memory cannot exceed it: use a smaller model or batch",
            requested=region_bytes,
            left=available,
        )


def _host_available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _host_refuses(name: str, region_bytes: int, cause: Exception) -> OutOfDeviceMemory:
    return OutOfDeviceMemory(
        f"the host cannot provide {format_bytes(region_bytes)} for region {name!r}: {cause}", requested=region_bytes
    )

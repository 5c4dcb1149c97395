"""The Linux system calls of isolation that Python has no function for. Each affects the calling process for good.

All raise ``OSError`` when the kernel refuses. Landlock's numbers are those of its user interface (ABI 1 to 8); the
numbers of its system calls are the same on all processors.
"""

import ctypes
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38

_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_ADD_RULE: Final = 445
_LANDLOCK_RESTRICT_SELF: Final = 446
_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
_RESTRICT_ALL_THREADS: Final = 1 << 3

_WRITE_FILE: Final = 1 << 1
#: Remove folders and files; make character devices, folders, files, sockets, pipes, block devices, symbolic links.
_CHANGE_FOLDER: Final = sum(1 << bit for bit in range(4, 13))
_MAKE_BLOCK_DEVICE: Final = 1 << 11
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14

#: Oldest Landlock that can leave renaming alone, oldest that knows truncation, oldest that reaches all threads.
ABI_REFER: Final = 2
ABI_TRUNCATE: Final = 3
ABI_ALL_THREADS: Final = 8


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def set_no_new_privileges() -> None:
    """From now on no program that this thread starts gains privileges (set-user-id programs run as the caller)."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(is_dumpable: bool) -> None:
    """Whether processes of the same user may inspect this one, and it leaves core dumps."""
    _prctl(_PR_SET_DUMPABLE, int(is_dumpable))


def landlock_abi() -> int:
    """Version of Landlock's interface. Raises ``OSError`` if the kernel has none or it is switched off."""
    return _system_call(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))


def enter_landlock_domain(abi: int, writable: Iterable[Path] = ()) -> None:
    """Put this thread, and what it starts, into a new Landlock domain. Wants no-new-privileges or an administrator.

    A process in a domain can inspect (``ptrace``, ``/proc/PID/mem``, ``/proc/PID/fd`` …) only processes of the same
    domain or of ones made inside it, whoever runs it.

    Args:
        abi: what ``landlock_abi`` said, at least ``ABI_REFER``.
        writable: existing folders beneath which alone files may be changed; none: no limit.
    """
    folders = list(writable)
    handled = _REFER | _MAKE_BLOCK_DEVICE  # a domain must handle something: what the rule for / gives back whole
    if folders:
        handled = _REFER | _WRITE_FILE | _CHANGE_FOLDER | (_TRUNCATE if abi >= ABI_TRUNCATE else 0)
    # Version 1 of the structure, of one field, is understood by all kernels.
    attributes = ctypes.c_uint64(handled)
    ruleset = _system_call(_LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(8), ctypes.c_uint32(0))
    try:
        for folder in folders or [Path("/")]:
            _allow_beneath(ruleset, folder, handled)
        flags = _RESTRICT_ALL_THREADS if abi >= ABI_ALL_THREADS else 0
        _system_call(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(flags))
    finally:
        os.close(ruleset)


def _allow_beneath(ruleset: int, folder: Path, access: int) -> None:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(access, descriptor)
        _system_call(
            _LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), ctypes.byref(rule),
            ctypes.c_uint32(0),
        )  # fmt: skip
    finally:
        os.close(descriptor)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


def _system_call(number: int, *arguments: object) -> int:
    result = int(_libc().syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc().prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

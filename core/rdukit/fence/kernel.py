"""Linux system calls for isolation that Python lacks. Each permanently affects the calling process.

All raise ``OSError`` when the kernel refuses. Landlock's constants are those of its user interface (ABI 1 to 8). All
numbers of system calls here are the same on all processors. The module imports little, because the launcher of a fence
imports it at the start of each box.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2

_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_RESTRICT_ALL_THREADS = 1 << 3

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ = 1 << 2 | 1 << 3
#: Rights to remove folders and files, and to create character devices, folders, files, sockets, pipes, block devices
#: and symbolic links.
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))
_MAKE_BLOCK_DEVICE = 1 << 11
_MAKE_DEVICE = 1 << 6
_REFER = 1 << 13
_TRUNCATE = 1 << 14
#: Rights that Landlock may grant for a file other than a folder.
_OF_FILES = _EXECUTE | _WRITE_FILE | 1 << 2 | _TRUNCATE
_SCOPE_ABSTRACT_SOCKETS = 1 << 0
_SCOPE_SIGNALS = 1 << 1

#: First versions of Landlock that can permit renaming, control truncation, confine signals and abstract sockets, and
#: restrict all threads.
ABI_REFER = 2
ABI_TRUNCATE = 3
ABI_SCOPE = 6
ABI_ALL_THREADS = 8

_MOUNT_SETATTR = 442
_AT_RECURSIVE = 0x8000
_AT_FDCWD = -100
#: Attributes of a mount for ``set_mount_attributes``.
READ_ONLY, NO_SET_USER_ID, NO_DEVICES, NO_EXECUTION = 1, 2, 4, 8

#: Flags of ``mount`` and ``unmount``.
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_RDONLY = 2, 4, 8, 32, 1
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

#: Namespaces of ``unshare``.
NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NETWORK = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )  # fmt: skip


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def set_no_new_privileges() -> None:
    """Deny new privileges to all programs that this thread starts (set-user-id programs run as the caller)."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(is_dumpable: bool) -> None:
    """Allow or forbid processes of the same user to inspect this one, and core dumps."""
    _prctl(_PR_SET_DUMPABLE, int(is_dumpable))


def set_process_name(name: str) -> None:
    """Name this thread, and its process if it is the main one, as ``ps -o comm`` shows it; up to 15 bytes."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(text))


def signal_on_parent_death(number: int) -> None:
    """Receive signal ``number`` when the thread that started this process ends. A change of the user resets this."""
    _prctl(_PR_SET_PDEATHSIG, number)


def drop_bounding_set() -> None:
    """Prevent programs that this thread starts from gaining capabilities, as any user. Needs CAP_SETPCAP."""
    for capability in range(64):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == 22:  # EINVAL: all capabilities are dropped
                break
            raise


def clear_capabilities() -> None:
    """Give up the capabilities of this thread."""
    header = _CapabilityHeader(0x20080522, 0)
    _checked(_LIBC.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))


def filter_system_calls(program: bytes) -> None:
    """From now on, run ``program`` (classic packet filter) before each system call of this thread.

    Needs no-new-privileges or an administrator.
    """
    packed = _Program(len(program) // 8, program)
    arguments = ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(packed), ctypes.c_ulong(0), ctypes.c_ulong(0)
    _checked(_LIBC.prctl(ctypes.c_int(_PR_SET_SECCOMP), *arguments))


def unshare(flags: int) -> None:
    """Move to new namespaces; a new one of process ids applies to processes that this one starts later."""
    _checked(_LIBC.unshare(ctypes.c_int(flags)))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount as mount(2) does; an empty string stands for NULL."""
    names = [os.fsencode(text) if text else None for text in (source, target, kind)]
    try:
        _checked(_LIBC.mount(*names, ctypes.c_ulong(flags), options.encode() or None))
    except OSError as error:
        raise OSError(error.errno, f"mounting {source or kind} at {target}: {error.strerror}") from error


def unmount(target: str, flags: int = 0) -> None:
    """Unmount as umount2(2) does."""
    _checked(_LIBC.umount2(os.fsencode(target), ctypes.c_int(flags)))


def set_mount_attributes(path: str, attributes: int) -> None:
    """Add attributes to the mount at ``path`` and all below it. Linux 5.12."""
    wanted = _MountAttributes(attributes, 0, 0, 0)
    _system_call(
        _MOUNT_SETATTR, ctypes.c_int(_AT_FDCWD), ctypes.c_char_p(os.fsencode(path)), ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(wanted), ctypes.c_size_t(ctypes.sizeof(wanted)),
    )  # fmt: skip


def set_host_name(name: str) -> None:
    """Set the host name as sethostname(2) does."""
    _checked(_LIBC.sethostname(name.encode(), ctypes.c_size_t(len(name))))


def bring_up(interface: str) -> None:
    """Activate a network interface, such as the loopback of a new namespace, which is down at first."""
    descriptor = _checked(_LIBC.socket(2, 2, 0))
    try:
        # struct ifreq: the name, then the flags; IFF_UP.
        request = ctypes.create_string_buffer(interface.encode().ljust(16, b"\0") + (1).to_bytes(2, "little"), 40)
        _checked(_LIBC.ioctl(descriptor, ctypes.c_ulong(0x8914), request))
    finally:
        os.close(descriptor)


def add_loopback_address(alias: str, address: str) -> None:
    """Give the loopback another address, as an interface named ``alias``, such as ``lo:1``."""
    descriptor = _checked(_LIBC.socket(2, 2, 0))
    try:
        # struct ifreq: the name, then a struct sockaddr_in: AF_INET, port 0, the address.
        numbers = bytes(map(int, address.split(".")))
        sockaddr = (2).to_bytes(2, sys.byteorder) + b"\0\0" + numbers
        request = ctypes.create_string_buffer(alias.encode().ljust(16, b"\0") + sockaddr, 40)
        _checked(_LIBC.ioctl(descriptor, ctypes.c_ulong(0x8916), request))
    finally:
        os.close(descriptor)


def pivot_root(new_root: str, put_old: str) -> None:
    """Change the root folder as pivot_root(2) does."""
    number = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    _system_call(number, ctypes.c_char_p(os.fsencode(new_root)), ctypes.c_char_p(os.fsencode(put_old)))


def landlock_abi() -> int:
    """Return the version of Landlock's interface. Raises ``OSError`` if the kernel has none or it is switched off."""
    return _system_call(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))


def enter_landlock_domain(abi: int, writable: Iterable[os.PathLike[str]] = ()) -> None:
    """Put this thread and its later children into a new Landlock domain. Needs no-new-privileges or an administrator.

    A process in a domain can inspect (``ptrace``, ``/proc/PID/mem``, ``/proc/PID/fd`` …) only processes of the same
    domain or of domains created inside it, as any user.

    Args:
        abi: result of ``landlock_abi``, at least ``ABI_REFER``.
        writable: existing folders; only files beneath them may be changed. Empty: no limit.
    """
    folders = [os.fspath(folder) for folder in writable]
    handled = _REFER | _MAKE_BLOCK_DEVICE  # a domain must handle a right; the rule for / allows this one everywhere
    if folders:
        handled = _REFER | _WRITE_FILE | _CHANGE_FOLDER | (_TRUNCATE if abi >= ABI_TRUNCATE else 0)
    _enter(abi, handled, 0, dict.fromkeys(folders or ["/"], handled))


def enter_landlock_fence(abi: int, writable: Iterable[str]) -> None:
    """Put this thread and its later children into a domain that may read and execute, and write only to ``writable``.

    ``writable`` are existing files and folders. Devices cannot be created. From ``ABI_SCOPE`` on, signals and abstract
    sockets are confined to the domain.
    """
    change = _WRITE_FILE | _CHANGE_FOLDER | _REFER | (_TRUNCATE if abi >= ABI_TRUNCATE else 0)
    allowed = {"/": _EXECUTE | _READ}
    for path in writable:
        mask = ~(_MAKE_BLOCK_DEVICE | _MAKE_DEVICE) if os.path.isdir(path) else _OF_FILES
        allowed[path] = (allowed["/"] | change) & mask
    _enter(abi, _EXECUTE | _READ | change, _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if abi >= ABI_SCOPE else 0, allowed)


def _enter(abi: int, handled: int, scoped: int, allowed: dict[str, int]) -> None:
    # All kernels accept version 1 of the structure, which has one field.
    attributes = _Ruleset(handled, 0, scoped)
    size = ctypes.sizeof(attributes) if scoped else 8
    ruleset = _system_call(
        _LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0)
    )
    try:
        for path, access in allowed.items():
            _allow_beneath(ruleset, path, access & handled)
        flags = _RESTRICT_ALL_THREADS if abi >= ABI_ALL_THREADS else 0
        _system_call(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(flags))
    finally:
        os.close(ruleset)


def _allow_beneath(ruleset: int, path: str, access: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(access, descriptor)
        _system_call(
            _LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), ctypes.byref(rule),
            ctypes.c_uint32(0),
        )  # fmt: skip
    finally:
        os.close(descriptor)


def _system_call(number: int, *arguments: object) -> int:
    return _checked(int(_LIBC.syscall(ctypes.c_long(number), *arguments)))


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    _checked(_LIBC.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

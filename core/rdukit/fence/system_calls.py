"""Which system calls a fence refuses, and how. Data.

What a program computes with, reads and writes with, or starts processes and threads with is not here: it goes on as it
does outside, and the kernel decides about it once. What is here administers the machine, looks into other processes,
or opens parts of the kernel that no model needs and that its faults are often found in.

Source: ours; the choice is near that of container engines' default profiles. Numbers: the kernel's tables.
"""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Test(StrEnum):
    """What a rule asks of the low 32 bits of an argument."""

    #: It is one of the values.
    IN = "in"
    #: It is none of them.
    NOT_IN = "not-in"
    #: It has one of the values' bits.
    HAS_BITS = "has-bits"


@dataclass(frozen=True, slots=True)
class Rule:
    """A system call that is refused with ``error``: always, or if an argument is so."""

    call: str
    error: int = errno.EPERM
    argument: int | None = None
    test: Test = Test.IN
    values: tuple[int, ...] = ()
    #: Only if this argument has this value.
    where: tuple[int, int] | None = None


_NAMESPACES: Final = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
#: The one protocol of netlink sockets by which gloo and the C library ask for the interfaces: those of the fence.
_ROUTE: Final = 0
#: ``ioctl``: put characters into a terminal's input; the Linux console's own.
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

#: Refused whatever the arguments, by what they are for.
REFUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "looking into other processes": (
        "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "move_pages",
        "migrate_pages", "perf_event_open", "lookup_dcookie",
    ),
    "mounts and roots": (
        "mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig",
        "fsmount", "fspick", "mount_setattr", "statmount", "listmount", "quotactl", "quotactl_fd", "swapon", "swapoff",
    ),
    "namespaces": ("unshare", "setns", "sethostname", "setdomainname"),
    "files beside their paths": ("name_to_handle_at", "open_by_handle_at", "fanotify_init", "fanotify_mark"),
    "the kernel's own programs and keys": (
        "bpf", "add_key", "request_key", "keyctl", "userfaultfd", "io_uring_setup", "io_uring_enter",
        "io_uring_register",
    ),
    "the machine": (
        "reboot", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "acct", "syslog",
        "vhangup", "iopl", "ioperm", "modify_ldt", "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl",
    ),
    "clocks": ("clock_settime", "clock_adjtime", "adjtimex", "settimeofday"),
}  # fmt: skip

RULES: Final = (
    *(Rule(call) for calls in REFUSED.values() for call in calls),
    # Its flags are in memory, where no filter sees them; a C library that hears "no such call" takes clone.
    Rule("clone3", errno.ENOSYS),
    Rule("clone", argument=0, test=Test.HAS_BITS, values=(_NAMESPACES,)),
    Rule("socket", errno.EAFNOSUPPORT, 0, Test.NOT_IN, (_UNIX, _INET, _INET6, _NETLINK)),
    Rule("socket", errno.EPROTONOSUPPORT, 2, Test.NOT_IN, (_ROUTE,), where=(0, _NETLINK)),
    Rule("socketpair", errno.EAFNOSUPPORT, 0, Test.NOT_IN, (_UNIX, _INET, _INET6)),
    Rule("ioctl", argument=1, test=Test.IN, values=(_TIOCSTI, _TIOCLINUX)),
    Rule("personality", argument=0, test=Test.NOT_IN, values=(0, 0xFFFF_FFFF)),
)

#: The same on all processors.
_COMMON: Final = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "statmount": 457, "listmount": 458,
    "open_tree_attr": 467,
}  # fmt: skip

#: Numbers by processor, as ``os.uname().machine`` calls it. A call that is not there does not exist on it.
NUMBERS: Final[Mapping[str, Mapping[str, int]]] = {
    "x86_64": {
        **_COMMON,
        "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "ptrace": 101, "syslog": 103, "uselib": 134,
        "personality": 135, "ustat": 136, "sysfs": 139, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155,
        "_sysctl": 156, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
        "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172,
        "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179, "nfsservctl": 180,
        "lookup_dcookie": 212, "clock_settime": 227, "kexec_load": 246, "add_key": 248, "request_key": 249,
        "keyctl": 250, "migrate_pages": 256, "unshare": 272, "move_pages": 279, "perf_event_open": 298,
        "fanotify_init": 300, "fanotify_mark": 301, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
        "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    },
    "aarch64": {
        **_COMMON,
        "lookup_dcookie": 18, "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51,
        "vhangup": 58, "quotactl": 60, "acct": 89, "personality": 92, "unshare": 97, "kexec_load": 104,
        "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142,
        "sethostname": 161, "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "socket": 198,
        "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224,
        "swapoff": 225, "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262,
        "fanotify_mark": 263, "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "bpf": 280,
        "userfaultfd": 282, "kexec_file_load": 294,
    },
}  # fmt: skip

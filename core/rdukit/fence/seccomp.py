"""The system calls that a fence refuses, and the filters made from that list. Pure.

Calls to compute, read, write, and start processes and threads are not listed, and work as outside. The listed calls
administer the machine, inspect other processes, or open parts of the kernel that models do not need and that often have
faults.

Source: ours; the choice is similar to container engines' default profiles. Numbers: the kernel's tables.

``make_filter`` compiles the rules into a program of the classic packet filter, which sees the processor, the call's
number and its arguments. Calls that are always refused come first, as comparisons with constants: the kernel caches
decisions that do not depend on arguments, so these cost nothing. ``engine_profile`` has the same rules for container
engines.
"""

import errno
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rdukit.errors import InvalidArgument


class ArgumentTest(StrEnum):
    """Tests of the low 32 bits of an argument."""

    #: The argument is one of the values.
    IN = "in"
    #: The argument is not one of the values.
    NOT_IN = "not-in"
    #: The argument has one of the values' bits.
    HAS_BITS = "has-bits"


@dataclass(frozen=True, slots=True)
class SyscallRule:
    """A system call that is refused with ``error``: always, or if an argument passes the test."""

    call: str
    error: int = errno.EPERM
    argument: int | None = None
    test: ArgumentTest = ArgumentTest.IN
    values: tuple[int, ...] = ()
    #: (argument, value): the rule applies only if this argument has this value.
    where: tuple[int, int] | None = None


_NAMESPACES: Final = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
#: The allowed protocol of netlink sockets, by which gloo and the C library list the interfaces of the fence.
_ROUTE: Final = 0
#: ``ioctl``: requests that insert characters into a terminal's input, and those of the Linux console.
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

#: Purpose → calls that are refused with any arguments.
REFUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "reading other processes' memory": (
        "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "move_pages",
        "migrate_pages", "perf_event_open", "lookup_dcookie",
    ),
    "mounts and roots": (
        "mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig",
        "fsmount", "fspick", "mount_setattr", "statmount", "listmount", "quotactl", "quotactl_fd", "swapon", "swapoff",
    ),
    "namespaces": ("unshare", "setns", "sethostname", "setdomainname"),
    "files by handle instead of path": ("name_to_handle_at", "open_by_handle_at", "fanotify_init", "fanotify_mark"),
    "the kernel's BPF programs and keys": (
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
    *(SyscallRule(call) for calls in REFUSED.values() for call in calls),
    # Its flags are in memory, which a filter cannot read; the C library then uses clone instead.
    SyscallRule("clone3", errno.ENOSYS),
    SyscallRule("clone", argument=0, test=ArgumentTest.HAS_BITS, values=(_NAMESPACES,)),
    SyscallRule("socket", errno.EAFNOSUPPORT, 0, ArgumentTest.NOT_IN, (_UNIX, _INET, _INET6, _NETLINK)),
    SyscallRule("socket", errno.EPROTONOSUPPORT, 2, ArgumentTest.NOT_IN, (_ROUTE,), where=(0, _NETLINK)),
    SyscallRule("socketpair", errno.EAFNOSUPPORT, 0, ArgumentTest.NOT_IN, (_UNIX, _INET, _INET6)),
    SyscallRule("ioctl", argument=1, test=ArgumentTest.IN, values=(_TIOCSTI, _TIOCLINUX)),
    SyscallRule("personality", argument=0, test=ArgumentTest.NOT_IN, values=(0, 0xFFFF_FFFF)),
)

#: Numbers that are the same on all processors.
_COMMON: Final = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "statmount": 457, "listmount": 458,
    "open_tree_attr": 467,
}  # fmt: skip

#: ``os.uname().machine`` → number of each call. A processor lacks the calls that are missing here.
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


_LOAD_WORD: Final = 0x20
_JUMP_IF_EQUAL, _JUMP_IF_GREATER_OR_EQUAL, _JUMP_IF_BITS = 0x15, 0x35, 0x45
_RETURN: Final = 0x06

_ALLOW: Final = 0x7FFF_0000
_KILL_PROCESS: Final = 0x8000_0000
_ERROR: Final = 0x0005_0000

#: Offsets in ``struct seccomp_data``: the call's number, the processor, the low half of the first argument.
_NUMBER_AT, _PROCESSOR_AT, _ARGUMENTS_AT = 0, 4, 16
#: Processors' codes of ``linux/audit.h``.
_PROCESSORS: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
#: Bit of x32 calls, by which a 64-bit program makes the same calls under other numbers.
_X32: Final = 0x4000_0000
_WORD: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of the filter; jumps count from the next one."""

    code: int
    if_true: int
    if_false: int
    value: int

    def pack(self) -> bytes:
        """Pack the instruction as ``struct sock_filter``."""
        return struct.pack("=HBBI", self.code, self.if_true, self.if_false, self.value)


def make_filter(
    machine: str, rules: Sequence[SyscallRule] = RULES, numbers: Mapping[str, Mapping[str, int]] = NUMBERS
) -> tuple[Instruction, ...]:
    """Compile the rules into a filter for a processor.

    Raises:
        InvalidArgument: the processor's numbers are not known.
    """
    if machine not in numbers:
        raise InvalidArgument(
            f"the system call numbers of {machine!r} are unknown; expected one of {', '.join(numbers)}"
        )
    known = numbers[machine]
    program = [
        Instruction(_LOAD_WORD, 0, 0, _PROCESSOR_AT),
        # A program for another kind of processor would use other numbers.
        Instruction(_JUMP_IF_EQUAL, 1, 0, _PROCESSORS[machine]),
        Instruction(_RETURN, 0, 0, _KILL_PROCESS),
        Instruction(_LOAD_WORD, 0, 0, _NUMBER_AT),
        Instruction(_JUMP_IF_GREATER_OR_EQUAL, 0, 1, _X32),
        Instruction(_RETURN, 0, 0, _KILL_PROCESS),
    ]
    present = [rule for rule in rules if rule.call in known]
    for rule in sorted(present, key=lambda rule: rule.argument is not None):
        program += _refuse(known[rule.call], rule)
    return (*program, Instruction(_RETURN, 0, 0, _ALLOW))


def pack_filter(program: Sequence[Instruction]) -> bytes:
    """Pack a filter in the kernel's format."""
    return b"".join(instruction.pack() for instruction in program)


def _refuse(number: int, rule: SyscallRule) -> list[Instruction]:
    refusal = Instruction(_RETURN, 0, 0, _ERROR | rule.error)
    if rule.argument is None:
        return [Instruction(_JUMP_IF_EQUAL, 0, 1, number), refusal]
    jump = _JUMP_IF_BITS if rule.test is ArgumentTest.HAS_BITS else _JUMP_IF_EQUAL
    count = len(rule.values)
    tests = [Instruction(_LOAD_WORD, 0, 0, _ARGUMENTS_AT + 8 * rule.argument)]
    for place, value in enumerate(rule.values):
        # Jumps after a match, and after a mismatch with the last value: to the refusal, or past it.
        to_refusal, is_last = count - 1 - place, place == count - 1
        is_refused = rule.test is not ArgumentTest.NOT_IN
        if_true = to_refusal if is_refused else to_refusal + 1
        if_false = 1 if is_last and is_refused else 0
        tests.append(Instruction(jump, if_true, if_false, value))
    tests.append(refusal)
    if rule.where is not None:
        argument, value = rule.where
        load = Instruction(_LOAD_WORD, 0, 0, _ARGUMENTS_AT + 8 * argument)
        tests = [load, Instruction(_JUMP_IF_EQUAL, 0, len(tests), value), *tests]
    # Load the call's number again, because other rules may be for the same call.
    again = Instruction(_LOAD_WORD, 0, 0, _NUMBER_AT)
    return [Instruction(_JUMP_IF_EQUAL, 0, len(tests) + 1, number), *tests, again]


def engine_profile(rules: Sequence[SyscallRule] = RULES) -> dict[str, object]:
    """Return the rules as a seccomp profile for container engines, in the terms of the OCI runtime.

    Conditions there compare 64 bits, where the kernel reads 32. Larger values are refused, or compared under a mask.
    """
    calls = [
        {"names": [rule.call], "action": "SCMP_ACT_ERRNO", "errnoRet": rule.error, "args": conditions}
        for rule in rules
        for conditions in _conditions(rule)
    ]
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": calls}


def _conditions(rule: SyscallRule) -> Iterator[list[dict[str, object]]]:
    """Yield the alternative conditions of a refusal; all tests of one condition must hold."""
    if rule.argument is None:
        yield []
        return
    tests: list[tuple[str, int, int]]
    if rule.test is ArgumentTest.IN:
        tests = [("SCMP_CMP_MASKED_EQ", _WORD, value) for value in rule.values]
    elif rule.test is ArgumentTest.HAS_BITS:
        bits = [1 << place for value in rule.values for place in range(32) if value & 1 << place]
        tests = [("SCMP_CMP_MASKED_EQ", bit, bit) for bit in bits]
    elif rule.values == (0, _WORD):
        # All bits are the same if none differs from its neighbour.
        pairs = [(1 << place, 2 << place) for place in range(31)]
        tests = [("SCMP_CMP_MASKED_EQ", low | high, one) for low, high in pairs for one in (low, high)]
    else:
        others = sorted(set(range(max(rule.values))) - set(rule.values))
        tests = [("SCMP_CMP_EQ", value, 0) for value in others] + [("SCMP_CMP_GT", max(rule.values), 0)]
    where = [] if rule.where is None else [_condition(rule.where[0], "SCMP_CMP_EQ", rule.where[1])]
    for test in tests:
        yield [*where, _condition(rule.argument, *test)]


def _condition(argument: int, test: str, value: int, second: int = 0) -> dict[str, object]:
    return {"index": argument, "op": test, "value": value, "valueTwo": second}

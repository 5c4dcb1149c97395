"""The program that the kernel runs before a fenced program's system calls, run here instruction by instruction."""

import errno
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit.fence.seccomp import NUMBERS, REFUSED, RULES, Instruction, engine_profile, make_filter, pack_filter
from support import shows

pytestmark = shows("job-boxes", "security", "fence")

ALLOW, KILL, ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
PROCESSORS = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
CLONE_NEWUSER, SIGCHLD, CLONE_VM_AND_THREAD = 0x1000_0000, 17, 0x3D_0F00


def run(program: Sequence[Instruction], processor: int, number: int, arguments: Sequence[int] = ()) -> int:
    """What the kernel would answer. Source: Linux's documentation, networking/filter."""
    padded = [*arguments, *[0] * 6][:6]
    data = struct.pack("=iIQ6Q", number if number < 1 << 31 else number - (1 << 32), processor, 0, *padded)
    accumulator, at = 0, 0
    while True:
        step = program[at]
        at += 1
        if step.code == 0x06:
            return step.value
        if step.code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, step.value)
            continue
        holds = {
            0x15: accumulator == step.value,
            0x35: accumulator >= step.value,
            0x45: bool(accumulator & step.value),
        }[step.code]
        at += step.if_true if holds else step.if_false


def answer(machine: str, call: str, *arguments: int) -> int:
    return run(make_filter(machine), PROCESSORS[machine], NUMBERS[machine][call], arguments)


@pytest.mark.parametrize("machine", NUMBERS)
def test_what_is_listed_is_refused_whatever_its_arguments(machine: str) -> None:
    for calls in REFUSED.values():
        for call in calls:
            if call in NUMBERS[machine]:
                assert answer(machine, call, 1, 2, 3) == ERROR | errno.EPERM, call
    assert answer(machine, "clone3") == ERROR | errno.ENOSYS


@pytest.mark.parametrize("machine", NUMBERS)
def test_processes_and_threads_may_be_made_but_no_namespaces(machine: str) -> None:
    assert answer(machine, "clone", SIGCHLD) == answer(machine, "clone", CLONE_VM_AND_THREAD) == ALLOW
    assert answer(machine, "clone", CLONE_NEWUSER | SIGCHLD) == ERROR | errno.EPERM


@pytest.mark.parametrize("machine", NUMBERS)
def test_sockets_are_local_or_of_the_internet_only(machine: str) -> None:
    for family in range(64):
        refused = ERROR | errno.EAFNOSUPPORT
        assert answer(machine, "socket", family, 1, 0) == (ALLOW if family in {1, 2, 10, 16} else refused)
        assert answer(machine, "socketpair", family, 1, 0) == (ALLOW if family in {1, 2, 10} else refused)


@pytest.mark.parametrize("machine", NUMBERS)
def test_netlink_tells_of_interfaces_and_nothing_else(machine: str) -> None:
    for protocol in range(1, 32):
        assert answer(machine, "socket", 16, 3, protocol) == ERROR | errno.EPROTONOSUPPORT
    assert answer(machine, "socket", 1, 1, 7) == answer(machine, "socket", 2, 1, 6) == ALLOW


@pytest.mark.parametrize("machine", NUMBERS)
def test_terminals_get_no_input_and_personalities_stay(machine: str) -> None:
    assert answer(machine, "ioctl", 0, 0x5412) == ERROR | errno.EPERM
    assert answer(machine, "ioctl", 0, 0x5401) == ALLOW
    assert answer(machine, "personality", 0xFFFF_FFFF) == answer(machine, "personality", 0) == ALLOW
    assert answer(machine, "personality", 0x004_0000) == ERROR | errno.EPERM


@pytest.mark.parametrize("machine", NUMBERS)
def test_another_processors_calls_and_x32_end_the_program(machine: str) -> None:
    program = make_filter(machine)
    others = {0x4000_0003, *PROCESSORS.values()} - {PROCESSORS[machine]}
    assert all(run(program, other, 1) == KILL for other in others)
    assert run(program, PROCESSORS[machine], 0x4000_0000 | 165) == KILL


@given(number=st.integers(0, 0x3FFF_FFFF), arguments=st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_what_is_not_listed_is_allowed(number: int, arguments: list[int]) -> None:
    for machine, numbers in NUMBERS.items():
        if number not in numbers.values():
            assert run(make_filter(machine), PROCESSORS[machine], number, arguments) == ALLOW


@pytest.mark.parametrize("machine", NUMBERS)
def test_numbers_are_those_of_the_systems_headers(machine: str) -> None:
    header = Path("/usr/include") / HEADERS[machine]
    if not header.exists():
        pytest.skip(f"the kernel's header {header} is not installed")
    text = header.read_text()
    found = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", text)}
    for call, number in NUMBERS[machine].items():
        assert found.get(call, number) == number, call
    missing = {call for call in NUMBERS[machine] if call not in found} - {"statmount", "listmount", "open_tree_attr"}
    assert not missing - {"fanotify_mark", "quotactl_fd", "process_madvise", "mount_setattr"}


def test_a_rule_names_a_call_of_some_processor() -> None:
    known = {call for numbers in NUMBERS.values() for call in numbers}
    assert {rule.call for rule in RULES} == known | {"pivot_root"}


def test_a_processor_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="mips"):
        make_filter("mips")


def test_an_instruction_is_eight_bytes() -> None:
    program = make_filter("x86_64")
    assert len(pack_filter(program)) == 8 * len(program)
    assert all(0 <= step.if_true < 256 and 0 <= step.if_false < 256 for step in program)


def told(call: str, *arguments: int) -> int:
    """What an engine's filter answers by the profile. Source: libseccomp, ``seccomp_rule_add``."""
    padded = [*arguments, *[0] * 6][:6]
    compared: dict[str, Callable[[int, int, int], bool]] = {
        "SCMP_CMP_EQ": lambda found, value, _: found == value,
        "SCMP_CMP_GT": lambda found, value, _: found > value,
        "SCMP_CMP_MASKED_EQ": lambda found, mask, value: found & mask == value,
    }
    profile: Any = engine_profile()
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    answers = set()
    for rule in profile["syscalls"]:
        # More than one condition on an argument would mean either, not both.
        assert len({part["index"] for part in rule["args"]}) == len(rule["args"])
        holds = (compared[a["op"]](padded[a["index"]], a["value"], a["valueTwo"]) for a in rule["args"])
        if call in rule["names"] and all(holds):
            answers.add(ERROR | rule["errnoRet"])
    assert len(answers) <= 1
    return answers.pop() if answers else ALLOW


WORDS = st.one_of(st.integers(0, 50), st.sampled_from([0x5412, 0x541C, 0xFFFF_FFFF]), st.integers(0, (1 << 32) - 1))


@given(st.sampled_from(sorted({rule.call for rule in RULES})), st.lists(WORDS, min_size=3, max_size=3))
def test_engines_are_told_the_same(call: str, arguments: list[int]) -> None:
    assume(call in NUMBERS["x86_64"])
    assert told(call, *arguments) == answer("x86_64", call, *arguments)


@given(
    st.sampled_from(["clone", "socket", "socketpair", "ioctl", "personality"]),
    st.lists(st.integers(0, (1 << 64) - 1) | WORDS.map(lambda word: word | 1 << 40), min_size=3, max_size=3),
)
def test_what_the_kernel_does_not_read_of_an_argument_opens_no_door(call: str, arguments: list[int]) -> None:
    refused = answer("x86_64", call, *arguments) != ALLOW
    assert not refused or told(call, *arguments) != ALLOW

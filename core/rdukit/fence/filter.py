"""From the rules of ``system_calls.py`` to the program that the kernel runs before each system call. Pure.

And to the profile by which a container engine makes such a program. The program is one of the classic packet filter's:
it sees the processor, the call's number and its arguments, and answers. What is refused whatever its arguments
comes first, as comparisons with constants; the kernel remembers calls that no argument can change the answer to, so
that these cost nothing.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.fence.system_calls import NUMBERS, RULES, Rule, Test

_LOAD_WORD: Final = 0x20
_JUMP_IF_EQUAL, _JUMP_IF_GREATER_OR_EQUAL, _JUMP_IF_BITS = 0x15, 0x35, 0x45
_RETURN: Final = 0x06

_ALLOW: Final = 0x7FFF_0000
_KILL_PROCESS: Final = 0x8000_0000
_ERROR: Final = 0x0005_0000

#: In ``struct seccomp_data``: the call's number, the processor, the low half of the first argument.
_NUMBER_AT, _PROCESSOR_AT, _ARGUMENTS_AT = 0, 4, 16
#: As ``linux/audit.h`` names processors.
_PROCESSORS: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
#: Calls of a 64-bit program that say they are of the 32-bit kind (x32): other numbers for the same calls.
_X32: Final = 0x4000_0000
_WORD: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; jumps count from the next one."""

    code: int
    if_true: int
    if_false: int
    value: int

    def pack(self) -> bytes:
        """As ``struct sock_filter``."""
        return struct.pack("=HBBI", self.code, self.if_true, self.if_false, self.value)


def make_filter(
    machine: str, rules: Sequence[Rule] = RULES, numbers: Mapping[str, Mapping[str, int]] = NUMBERS
) -> tuple[Instruction, ...]:
    """The program for a processor.

    Raises:
        InvalidArgument: its numbers are not known.
    """
    if machine not in numbers:
        raise InvalidArgument(f"system calls of {machine!r} are not known; known: {', '.join(numbers)}")
    known = numbers[machine]
    program = [
        Instruction(_LOAD_WORD, 0, 0, _PROCESSOR_AT),
        # A program of another processor's kind would have other numbers.
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
    """The program as the kernel takes it."""
    return b"".join(instruction.pack() for instruction in program)


def _refuse(number: int, rule: Rule) -> list[Instruction]:
    refusal = Instruction(_RETURN, 0, 0, _ERROR | rule.error)
    if rule.argument is None:
        return [Instruction(_JUMP_IF_EQUAL, 0, 1, number), refusal]
    jump = _JUMP_IF_BITS if rule.test is Test.HAS_BITS else _JUMP_IF_EQUAL
    count = len(rule.values)
    tests = [Instruction(_LOAD_WORD, 0, 0, _ARGUMENTS_AT + 8 * rule.argument)]
    for place, value in enumerate(rule.values):
        # Where it goes if this value is it, and if it was the last and is not: to the refusal, or past it.
        to_refusal, is_last = count - 1 - place, place == count - 1
        is_refused = rule.test is not Test.NOT_IN
        if_true = to_refusal if is_refused else to_refusal + 1
        if_false = 1 if is_last and is_refused else 0
        tests.append(Instruction(jump, if_true, if_false, value))
    tests.append(refusal)
    if rule.where is not None:
        argument, value = rule.where
        load = Instruction(_LOAD_WORD, 0, 0, _ARGUMENTS_AT + 8 * argument)
        tests = [load, Instruction(_JUMP_IF_EQUAL, 0, len(tests), value), *tests]
    # Other rules may be of the same call: they begin with its number.
    again = Instruction(_LOAD_WORD, 0, 0, _NUMBER_AT)
    return [Instruction(_JUMP_IF_EQUAL, 0, len(tests) + 1, number), *tests, again]


def engine_profile(rules: Sequence[Rule] = RULES) -> dict[str, object]:
    """The same rules as container engines take them: a profile of seccomp, in the terms of the OCI's runtime.

    Conditions there are of 64 bits where the kernel reads 32. Whatever has more is refused, or looked at without it.
    """
    calls = [
        {"names": [rule.call], "action": "SCMP_ACT_ERRNO", "errnoRet": rule.error, "args": conditions}
        for rule in rules
        for conditions in _conditions(rule)
    ]
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": calls}


def _conditions(rule: Rule) -> Iterator[list[dict[str, object]]]:
    """Of a refusal, the conditions that each are enough; all of one hold together, of different arguments."""
    if rule.argument is None:
        yield []
        return
    tests: list[tuple[str, int, int]]
    if rule.test is Test.IN:
        tests = [("SCMP_CMP_MASKED_EQ", _WORD, value) for value in rule.values]
    elif rule.test is Test.HAS_BITS:
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

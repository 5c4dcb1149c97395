"""Make a failing program smaller, as long as it fails in the same way."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from fuzzing.programs import Program, Step, rename, without_unused

#: Programs that are tried at most.
_MAX_TRIALS: Final = 400


def shrink(program: Program, fails: Callable[[Program], bool], max_trials: int = _MAX_TRIALS) -> Program:
    """Return the smallest program found that ``fails``, by taking pieces away one after the other until none can go."""
    trials = 0
    seen = {program.to_json()}
    improved = True
    while improved:
        improved = False
        for candidate in candidates(program):
            text = candidate.to_json()
            if text in seen or _weight(candidate) >= _weight(program):
                continue
            seen.add(text)
            trials += 1
            if trials > max_trials:
                return program
            if fails(candidate):
                program, improved = candidate, True
                break
    return program


def candidates(program: Program) -> Iterator[Program]:
    """Yield programs that are a little smaller, the boldest first. Not all of them are legal."""
    if len(program.outputs) > 1:
        for output in program.outputs:
            yield without_unused(replace(program, outputs=(output,)))
    yield from _shorter(program)
    for position in range(len(program.outputs)):
        left = program.outputs[:position] + program.outputs[position + 1 :]
        if left:
            yield without_unused(replace(program, outputs=left))
    for position in reversed(range(len(program.steps))):
        yield from _without_step(program, position)
    if any(step.block for step in program.steps):
        yield replace(program, steps=tuple(replace(step, block="") for step in program.steps))
    yield from _fewer_names(program)
    yield from _smaller_sizes(program)


def _shorter(program: Program) -> Iterator[Program]:
    """Yield programs with an earlier result as the only output, and nothing after it."""
    for position, step in enumerate(program.steps[:-1]):
        for name in step.made:
            yield without_unused(replace(program, outputs=(name,), steps=program.steps[: position + 1]))


def _without_step(program: Program, position: int) -> Iterator[Program]:
    """Yield programs without one step; what read its result reads one of its operands instead."""
    step, rest = program.steps[position], program.steps[:position] + program.steps[position + 1 :]
    if not step.made:
        yield without_unused(replace(program, steps=rest))
        return
    operands = dict.fromkeys(name for name in step.names() if not name.startswith("self.m"))
    for operand in (*operands, *(item.name for item in program.inputs)):
        renamed = replace(program, steps=rest)
        for name in step.made:
            renamed = _renamed(renamed, name, operand)
        yield without_unused(renamed)


def _renamed(program: Program, old: str, new: str) -> Program:
    return replace(
        program,
        steps=tuple(
            Step(step.made, rename(step.text, old, new), rename(step.block, old, new)) for step in program.steps
        ),
        outputs=tuple(dict.fromkeys(rename(output, old, new) for output in program.outputs)),
    )


def _fewer_names(program: Program) -> Iterator[Program]:
    """Yield programs with one parameter, input or result in place of another."""
    names = [m.name for m in (*program.inputs, *program.members) if not m.name.startswith("self.m")]
    for position, step in enumerate(program.steps):
        for name in dict.fromkeys(step.names()):
            for other in names:
                if (
                    other == name
                    or name.startswith("self.m")
                    or (name in names and names.index(name) < names.index(other))
                ):
                    continue
                changed = Step(step.made, rename(step.text, name, other), step.block)
                yield without_unused(
                    replace(program, steps=(*program.steps[:position], changed, *program.steps[position + 1 :]))
                )


def _smaller_sizes(program: Program) -> Iterator[Program]:
    """Yield programs with all sizes of one number made another, wherever it is written."""
    pattern = re.compile(r"(?<![\w.])\d+(?![\w.])")
    sizes = sorted({int(word) for text in program.texts() for word in pattern.findall(text)}, reverse=True)
    for size in sizes:
        for smaller in dict.fromkeys((1, 2, 3, size // 2, size - 1)):
            if 0 < smaller < size:
                yield _resized(program, re.compile(rf"(?<![\w.]){size}(?![\w.])"), str(smaller))


def _resized(program: Program, old: re.Pattern[str], new: str) -> Program:
    return replace(
        program,
        inputs=tuple(replace(item, text=old.sub(new, item.text)) for item in program.inputs),
        members=tuple(replace(item, text=old.sub(new, item.text)) for item in program.members),
        steps=tuple(replace(step, text=old.sub(new, step.text)) for step in program.steps),
    )


def _weight(program: Program) -> tuple[int, int, int, int]:
    """Weigh a program by its steps first, then what else there is, then the sizes."""
    text = " ".join(program.texts())
    sizes = sum(int(word) for word in re.findall(r"(?<![\w.])\d+(?![\w.])", text))
    pieces = (
        len(program.inputs) + len(program.members) + len(program.outputs) + sum(bool(s.block) for s in program.steps)
    )
    names = len(set(re.findall(r"\b[xpvb]\d+\b", text)))
    return len(program.steps), pieces, names, sizes

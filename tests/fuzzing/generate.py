"""Compose a program from a seed: declare inputs, draw proposals until enough steps are legal, choose outputs."""

from typing import Final

import torch

from fuzzing import structures
from fuzzing.programs import Program, without_unused
from fuzzing.proposals import PROPOSALS
from fuzzing.scene import Scene, Unfit

_STEPS: Final = (3, 18)
_MAX_TRIALS: Final = 200


def generate(seed: int) -> Program:
    """Return the program of a seed: the same on every machine that has the same torch."""
    s = Scene(seed)
    _declare(s)
    proposals, weights = [p for _, p in PROPOSALS], [w for w, _ in PROPOSALS]
    wanted, trials = s.random.randint(*_STEPS), 0
    while len(s.steps) < wanted and trials < _MAX_TRIALS:
        trials += 1
        (propose,) = s.random.choices(proposals, weights)
        opens = s.chance(0.07)
        try:
            if opens:
                s.block = s.one_of(structures.BLOCKS).format(a=s.pick())
            propose(s)
            if opens and s.chance(0.5):
                s.random.choices(proposals, weights)[0](s)
        except (Unfit, RuntimeError):  # torch forbids to look at some views
            pass
        s.block = ""
    return without_unused(s.program(_choose_outputs(s)))


def _declare(s: Scene) -> None:
    """Declare one to three inputs, mostly of numbers that fit each other; now and then a parameter and a buffer."""
    shape = [s.size() for _ in range(s.one_of([1, 2, 2, 3, 3, 4, 4, 5]))]
    while torch.Size(shape).numel() > 1500:
        shape[s.random.randrange(len(shape))] = s.one_of([1, 2, 3])
    s.input(f"torch.randn{tuple(shape)}")
    for _ in range(s.one_of([0, 0, 1, 1, 2])):
        other = [size if s.chance(0.85) else s.size() for size in shape[: s.one_of([len(shape), len(shape), 1])]]
        text = s.one_of(
            [
                "torch.randn{}",
                "torch.rand{}",
                "torch.randint(0, 5, {})",
                "torch.randint(0, 9, {})",
                "torch.rand{} > 0.4",
            ]
        )
        s.input(text.format(tuple(other)))
    weight = s.parameter(shape if s.chance(0.7) else shape[-1:])
    if s.chance(0.8):
        s.add(s.one_of((f"{s.inputs[0].name} * {weight}", f"{weight} + {s.inputs[0].name}", f"{weight} * 0.5")))
    if s.chance(0.2):
        s.buffer(shape[-1:])


def _choose_outputs(s: Scene) -> list[str]:
    """Return some of what was made, the last one always; now and then an input, a parameter or a buffer."""
    made = [name for name in s.values if name.startswith("v")] or list(s.values)[:1]
    chosen = {made[-1]: None}
    for _ in range(s.one_of([0, 1, 1, 2, 3, 4])):
        chosen[s.one_of(made[-8:])] = None
    if s.chance(0.03):
        chosen[s.one_of(list(s.values))] = None
    names = list(chosen)
    s.random.shuffle(names)
    return names

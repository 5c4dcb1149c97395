"""Torch's results of a program, how much of them rounding decides, and whether other numbers agree with them.

Rounding is measured, not guessed: the program runs several times in torch with each operator's result moved by a
random part of the precision's last bit, backward's operators included. What differs between these runs by as much as
the device differs from torch is no fault of the device.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fuzzing.programs import REFUSALS, Program, build_module, draw_inputs, draw_seeds
from rdukit_runtime.check.alternatives import Elsewhere, Inside
from rdukit_runtime.check.compare import FACTOR, Portable, find_fault, finite_in_both, settle_places
from rdukit_runtime.check.rounding import AGREES, MOVES, Rounding

_PRODUCTS: Final = frozenset({torch.ops.aten.mm.default, torch.ops.aten.bmm.default})
#: Learning rate of the steps that are compared, and how many there are.
LEARNING_RATE: Final = 0.05
STEPS: Final = 2

#: How often the program runs moved.
_RUNS: Final = 6
#: In bf16, how often a program runs once more that seems wrong.
_MORE_RUNS: Final = 24

#: What a step leaves, by a name such as ``step 1 gradient p0``; None: no gradient reached it.
Results = dict[str, torch.Tensor | None]


class IllegalProgram(Exception):
    """torch itself refuses the program, or gives no finite numbers."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One result that is wrong: by how much at most, where rounding moves it by ``spread``, of magnitude ``scale``."""

    name: str
    error: float
    spread: float
    scale: float

    def __str__(self) -> str:
        return f"{self.name}: off by {self.error:.3g} of {self.scale:.3g}; rounding moves it by {self.spread:.3g}"


def run_torch(program: Program, move: float | None = None, number: int = 0, rounds: bool = False) -> Results:
    """Make two training steps in torch, in the program's own dtypes.

    Raises:
        IllegalProgram: torch refuses the program.
    """
    return _run_torch(program, None if move is None else Rounding(move, rounds, torch.Generator().manual_seed(number)))


class Unread(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Multiplies no rows of zeros: the compiler leaves out unread rows, whose gradients torch makes zero times NaN."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in _PRODUCTS:
            return made
        rows, columns = ((args[number] == 0).all(axis, keepdim=True) for number, axis in ((0, -1), (1, -2)))
        return made.masked_fill(rows | columns, 0.0)


def _run_torch(program: Program, around: TorchDispatchMode | None, dtype: torch.dtype | None = None) -> Results:
    try:
        module, inputs = build_module(program).to(dtype), draw_inputs(program)
        if dtype is not None:
            inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
        with nullcontext() if around is None else around:
            return _train(program, module, inputs)
    except (*REFUSALS, UnboundLocalError) as cause:
        raise IllegalProgram(str(cause)) from cause


def _train(program: Program, module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Results:
    found: Results = {}
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE) if parameters else None
    seeds: list[torch.Tensor | None] | None = None
    for step in range(count_steps(program)):
        module.zero_grad()
        outputs = module(**{name: value.clone() for name, value in inputs.items()})
        if not all(isinstance(output, torch.Tensor) for output in outputs):
            raise IllegalProgram("an output is no tensor")
        if seeds is None:
            with _disable_current_modes():
                seeds = draw_seeds(program, outputs)
        for position, output in enumerate(outputs):
            found[f"step {step + 1} output {position}"] = output.detach().clone()
        started = [(output, seed) for output, seed in zip(outputs, seeds, strict=True) if seed is not None]
        if started:
            torch.autograd.backward([output for output, _ in started], [seed for _, seed in started])
        for name, parameter in module.named_parameters():
            gradient = parameter.grad
            found[f"step {step + 1} gradient {name}"] = None if gradient is None else gradient.detach().clone()
        if optimizer is not None and started:
            optimizer.step()
        found.update(read_state(module, step))
    return found


def count_steps(program: Program) -> int:
    """Return how many steps are compared: after one, special numbers are in all parameters."""
    return 1 if program.special else STEPS


def read_state(module: nn.Module, step: int) -> Results:
    """Return parameters and buffers as they are after a step."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {f"step {step + 1} value {name}": value.detach().clone() for name, value in state.items()}


def expected_results(program: Program) -> Results:
    """Return what torch makes of a program.

    Raises:
        IllegalProgram: torch refuses it, its numbers are not finite, or it does not give the same twice.
    """
    found = run_torch(program)
    for name, value in found.items():
        is_floating = value is not None and value.is_floating_point()
        if not program.special and value is not None and is_floating and not torch.isfinite(value).all():
            raise IllegalProgram(f"{name} is not finite")
    again = run_torch(program)
    for name, value in found.items():
        other = again[name]
        if value is not None and (other is None or not _is_equal(value, other)):
            raise IllegalProgram(f"{name} is random")
    return found


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def find_special_fault(program: Program, expected: Results, found: Results, precision: str) -> str | None:
    """Return what is wrong with results of special numbers, by the kernel check's own comparison; None: nothing.

    Torch in bf16 is another reference: its convolutions spread NaN to neighbours, and its attention takes infinity for
    a number.
    Of extreme numbers only finite results count: which sums overflow depends on the order of additions.
    """
    names = [name for name, value in expected.items() if value is not None and found.get(name) is not None]
    for name in expected:
        if name not in names and _distance(expected[name], found.get(name)) > 0:
            return f"{name}: lost"

    def listed(results: Results) -> Sequence[torch.Tensor]:
        return [torch.zeros(()) if (value := results[name]) is None else value for name in names]

    ours, theirs = listed(found), listed(expected)
    if program.special == "extreme":
        ours, theirs = finite_in_both(ours, theirs)
    portable = Portable(theirs, lambda: [listed(run) for run in _moved_runs(program, precision)])
    fault = find_fault(ours, portable, is_exact=False)
    if fault is not None:
        for other in (Elsewhere(), Inside(), Unread()):
            ours = settle_places(ours, theirs, listed(_run_torch(program, other)), precision)
        fault = find_fault(ours, portable, is_exact=False)
    if fault is not None and precision == "bf16":
        with suppress(IllegalProgram):  # torch may refuse bf16
            narrow = listed(_run_torch(program, None, torch.bfloat16))
            fault = find_fault(_settle_narrow(ours, theirs, narrow), portable, is_exact=False)
    if fault is None:
        return None
    number, _, text = fault.removeprefix("output ").partition(":")
    return f"{names[int(number)]}:{text}"


def _settle_narrow(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], narrow: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Return ``ours`` with ``theirs`` where ours is what torch gives in bf16."""
    settled = []
    for a, b, c in zip(ours, theirs, narrow, strict=True):
        if a.shape == b.shape == c.shape and not a.is_floating_point():
            a = torch.where(a == c, b, a)
        elif a.shape == b.shape == c.shape:
            is_near = torch.isclose(a.double(), c.double(), AGREES["bf16"], _least(c.nan_to_num(0, 0, 0), "bf16"), True)
            a = torch.where(is_near, b.to(a.dtype), a)
        settled.append(a)
    return settled


def find_differences(program: Program, expected: Results, found: Results, precision: str) -> list[Difference]:
    """Return whatever of ``found`` is further from torch than rounding explains; in the order of the program."""
    suspects = [
        name for name, value in expected.items() if _distance(value, found.get(name)) > _least(value, precision)
    ]
    if not suspects:
        return []
    spreads = dict.fromkeys(suspects, 0.0)
    for moved in _moved_runs(program, precision):
        for name in suspects:
            spreads[name] = max(spreads[name], _distance(expected[name], moved[name]))
    doubtful = [name for name in suspects if not _distance(expected[name], found.get(name)) <= FACTOR * spreads[name]]
    if doubtful and precision == "bf16":  # what ties decide, such as the order of equal numbers, few runs may miss
        for number in range(_MORE_RUNS):
            moved = run_torch(program, (0.0, 0.25, 1.0)[number % 3] * MOVES[precision], _RUNS + number, rounds=True)
            for name in doubtful:
                spreads[name] = max(spreads[name], _distance(expected[name], moved[name]))
    wrong = []
    for name in doubtful:
        error, value = _distance(expected[name], found.get(name)), expected[name]
        if not error <= FACTOR * spreads[name]:
            scale = 0.0 if value is None or value.numel() == 0 else float(value.double().abs().max())
            wrong.append(Difference(name, error, spreads[name], scale))
    return wrong


def _moved_runs(program: Program, precision: str) -> Iterator[Results]:
    move = MOVES[precision]
    for number in range(_RUNS):
        yield run_torch(program, move, number)
    # Halves of a bit meet ties that whole bits step over.
    yield run_torch(program, move / 4, _RUNS)
    if precision == "bf16":
        for number, size in enumerate((0.0, move / 4, move / 2)):
            yield run_torch(program, size, number, rounds=True)


def _least(value: torch.Tensor | None, precision: str) -> float:
    if value is None or not value.is_floating_point() or value.numel() == 0:
        return 0.0
    return AGREES[precision] * float(value.double().abs().max())


def _distance(value: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """Return the largest difference, of integers too; infinite if shapes differ or one is missing (and not zero)."""
    if value is None or other is None:
        there = other if value is None else value
        return 0.0 if there is None or not there.any() else float("inf")
    if value.shape != other.shape:
        return float("inf")
    if value.numel() == 0:
        return 0.0
    distance = float((value.double() - other.double()).abs().max())
    return float("inf") if distance != distance else distance

"""Pieces of a program that is being composed, and their values in torch, which decide what is legal."""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from fuzzing.programs import FUNCTIONS, REFUSALS, Declared, Program, Step, scope

#: Elements of a result, and its magnitude, beyond which a step is not taken.
_MAX_ELEMENTS: Final = 6000
_MAX_MAGNITUDE: Final = 200.0
_SIZES: Final = (1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)

Condition = Callable[[torch.Tensor], bool]


class Unfit(Exception):
    """The scene has nothing that a proposal could work on."""


class Scene:
    """A program under way. Whatever is added has been run, so a program is legal up to its backward."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.seed = seed
        self.inputs: list[Declared] = []
        self.members: list[Declared] = []
        self.steps: list[Step] = []
        self.module = nn.Module()
        self._held: dict[str, Any] = {**scope(), "self": self.module}
        for source in FUNCTIONS.values():
            exec(source, self._held)
        #: Name → value of whatever may be an operand.
        self.values: dict[str, torch.Tensor] = {}
        self._count = 0
        #: The block in which steps are put.
        self.block = ""

    # -- drawing -----------------------------------------------------------------------------------------------------

    def size(self) -> int:
        return self.random.choice(_SIZES)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def one_of(self, options: Sequence[Any]) -> Any:
        if not options:
            raise Unfit
        return self.random.choice(options)

    def dim(self, name: str) -> int:
        """Return an axis of a value, from the front or from the back."""
        count = self.values[name].dim()
        if count == 0:
            raise Unfit
        return self.random.randrange(-count, count)

    def pick(self, condition: Condition | None = None) -> str:
        """Return a value's name; late ones are likelier."""
        fitting = [name for name, value in self.values.items() if condition is None or condition(value)]
        if not fitting:
            raise Unfit
        if self.chance(0.6):
            made = [name for name in fitting if name.startswith("v")]
            fitting = made[-4:] or fitting
        return self.random.choice(fitting)

    def floating(self, dims: Sequence[int] = range(9), where: Condition | None = None) -> str:
        return self.pick(lambda t: t.is_floating_point() and t.dim() in dims and (where is None or where(t)))

    def integer(self, where: Condition | None = None) -> str:
        return self.pick(lambda t: t.dtype in {torch.int64, torch.int32} and (where is None or where(t)))

    def boolean(self) -> str:
        return self.pick(lambda t: t.dtype == torch.bool)

    def shape(self, name: str) -> list[int]:
        return list(self.values[name].shape)

    def partner(self, name: str) -> str:
        """Return a floating value that broadcasts with ``name``: an earlier one, or a new parameter."""
        shape = self.shape(name)

        def fits(other: torch.Tensor) -> bool:
            try:
                made = torch.broadcast_shapes(shape, other.shape)  # type: ignore[no-untyped-call]
            except RuntimeError:
                return False
            return len(made) <= 5

        if self.chance(0.6):
            return self.floating(where=fits)
        wanted = [size if self.chance(0.75) else 1 for size in shape]
        return self.parameter(wanted[self.random.choice([0, 0, 0, *range(len(wanted) + 1)]) :])

    # -- adding ------------------------------------------------------------------------------------------------------

    def fresh(self, letter: str = "v") -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def input(self, text: str) -> str:
        name = self.fresh("x")
        self.inputs.append(Declared(name, text))
        self._held[name] = self.values[name] = eval(text, self._held)
        return name

    def member(self, letter: str, text: str) -> str:
        """Run ``self.<name> = <text>``, or another statement in which ``{}`` stands for the name."""
        word = self.fresh(letter)
        statement = text.format(word) if "{}" in text else f"self.{word} = {text}"
        exec(statement, self._held)
        name = f"self.{word}"
        self.members.append(Declared(name, statement))
        if letter != "m":
            self.values[name] = getattr(self.module, word)
        return name

    def parameter(self, shape: Sequence[int]) -> str:
        known = [n for n, t in self.values.items() if n.startswith("self.p") and list(t.shape) == list(shape)]
        if known and self.chance(0.4):
            return str(self.random.choice(known))
        sizes = ", ".join(map(str, shape))
        return self.member("p", f"nn.Parameter(torch.randn({sizes}))" if shape else "nn.Parameter(torch.randn(()))")

    def buffer(self, shape: Sequence[int], dtype: str = "") -> str:
        what = "randn" if not dtype else "zeros"
        return self.member("b", f'self.register_buffer("{{}}", torch.{what}({tuple(shape)}{dtype}))')

    def layer(self, text: str) -> str:
        return self.member("m", text)

    def add(self, text: str, results: int = 1) -> list[str]:
        """Add a step; one of no results is a statement. Returns the names of its results."""
        return self.put(Step(tuple(self.fresh() for _ in range(results)), text, self.block))

    def put(self, step: Step) -> list[str]:
        """Run a step and add it.

        Raises:
            Unfit: torch refuses it, or a result is too large, empty or no number.
        """
        line = f"{step.block}\n    {step.line()}" if step.block else step.line()
        before = {name: value._version for name, value in self.values.items()}
        try:
            exec(line, self._held)
        except REFUSALS as cause:
            raise Unfit from cause
        results = {name: self._held.get(name) for name in step.made}
        changed = [v for n, v in self.values.items() if v._version != before[n]]
        for value in (*results.values(), *changed):
            if not isinstance(value, torch.Tensor) or not _is_tame(value):
                raise Unfit
        for name in [n for n in self.values if n.startswith("self.b")]:  # a buffer may be another tensor now
            self.values[name] = getattr(self.module, name.removeprefix("self."))
        self.values.update(results)  # type: ignore[arg-type]
        self.steps.append(step)
        return list(step.made)

    def program(self, outputs: Sequence[str]) -> Program:
        return Program(self.seed, tuple(self.inputs), tuple(self.members), tuple(self.steps), tuple(outputs))


def _is_tame(value: torch.Tensor) -> bool:
    if value.numel() > _MAX_ELEMENTS or value.numel() == 0 or value.layout is not torch.strided:
        return False
    if value.is_complex():
        return False
    if not value.is_floating_point():
        return True
    try:
        return bool(torch.isfinite(value).all()) and bool(value.abs().max() < _MAX_MAGNITUDE)
    except RuntimeError:  # a view that another mode of gradients forbids to be read
        return False

"""A random module as a value: its text in pieces, so that it can be kept, printed, run and made smaller.

A program's names are words that stand for one thing each: inputs ``x0``, members ``self.p0`` (parameters), ``self.b0``
(buffers) and ``self.m0`` (modules), results ``v0``. Pieces name each other by these words, and by nothing else.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional as F

from rdukit_runtime.check.draws import SPECIALS

#: Special numbers by the name of their kind: one kind at a time stands in a program's inputs.
KINDS: Final = {
    **SPECIALS,
    "zeros": (0.0, -0.0),
    "large": (3e7, -123456789.0, 1e12, 7e9, -2.5e15),
    "ties": (0.5, 1.5, 2.5, -0.5, -1.5, 1.0, -1.0),
}
#: At most one of so many places holds a special number.
_SPARSE: Final = 16

#: What torch raises of a program that it refuses.
REFUSALS: Final = (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError)

_NAME: Final = re.compile(r"\b(?:self\.[pbm]\d+|[xv]\d+)\b")

#: Functions with gradients of their own that programs may use, by the word that a step calls them by.
FUNCTIONS: Final = {
    "StraightThrough": """
class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad
""",
    "Reverse": """
class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.scale * grad, None
""",
    "Product": """
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, first, second):
        x, y = ctx.saved_tensors
        return first * y * 0.5 + second, first * x + second if ctx.needs_input_grad[1] else None
""",
    "SavedResult": """
class SavedResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        made = torch.tanh(x)
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx, grad):
        (made,) = ctx.saved_tensors
        return grad * (1 - made) * 0.5
""",
}


@dataclass(frozen=True, slots=True)
class Declared:
    """An input, with the expression that makes its values; or a member, with the statement that makes it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Step:
    """One line of forward: ``made = text``, or the statement ``text``; inside the block that ``block`` opens."""

    made: tuple[str, ...]
    text: str
    block: str = ""

    def line(self) -> str:
        return f"{', '.join(self.made)} = {self.text}" if self.made else self.text

    def names(self) -> list[str]:
        """Return what it reads, and what its block's condition reads."""
        return _NAME.findall(f"{self.text} {self.block}")


@dataclass(frozen=True, slots=True)
class Program:
    """A module and what it is called with. ``seed`` draws parameters, inputs and the gradients of outputs.

    ``special``: the kind of special numbers among its floating inputs, of ``KINDS``; empty: none.
    """

    seed: int
    inputs: tuple[Declared, ...]
    members: tuple[Declared, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    special: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Program":
        found = json.loads(text)
        return cls(
            found["seed"],
            tuple(Declared(**item) for item in found["inputs"]),
            tuple(Declared(**item) for item in found["members"]),
            tuple(Step(tuple(item["made"]), item["text"], item["block"]) for item in found["steps"]),
            tuple(found["outputs"]),
            found["special"],
        )

    def texts(self) -> Iterable[str]:
        for piece in (*self.inputs, *self.members):
            yield piece.text
        for step in self.steps:
            yield f"{step.block} {step.text}"
        yield " ".join(self.outputs)


def rename(text: str, old: str, new: str) -> str:
    """Return ``text`` with ``new`` wherever it says ``old``."""
    return re.sub(rf"(?<![\w.]){re.escape(old)}\b", new, text)


def without_unused(program: Program) -> Program:
    """Return the program without results that nothing reads, and without members and inputs that nothing names."""
    steps = list(program.steps)
    needed = set(program.outputs)
    for position in range(len(steps) - 1, -1, -1):
        step = steps[position]
        if step.made and not needed.intersection(step.made):
            del steps[position]
        else:
            needed.update(step.names())
    members = list(program.members)
    for position in range(len(members) - 1, -1, -1):
        if members[position].name in needed:
            needed.update(_NAME.findall(members[position].text))
    return replace(
        program,
        steps=tuple(steps),
        members=tuple(member for member in members if member.name in needed),
        inputs=tuple(item for item in program.inputs if item.name in needed) or program.inputs[:1],
    )


def class_text(program: Program, name: str = "Module") -> str:
    """Return the module's class, with the functions that it uses, as a developer would write them."""
    text = "\n".join(program.texts())
    lines = [source.strip() + "\n\n" for word, source in FUNCTIONS.items() if f"{word}." in text]
    lines += [f"class {name}(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        {member.text}" for member in program.members]
    lines += ["", f"    def forward(self, {', '.join(item.name for item in program.inputs)}):"]
    opened = ""
    for step in program.steps:
        if step.block and step.block != opened:
            lines.append(f"        {step.block}")
        opened = step.block
        lines.append(f"        {'    ' if step.block else ''}{step.line()}")
    lines.append(f"        return {', '.join(program.outputs)}{',' if len(program.outputs) == 1 else ''}")
    return "\n".join(lines) + "\n"


def scope() -> dict[str, Any]:
    """Return what a program's text may name in addition to its own words."""
    return {"torch": torch, "nn": nn, "F": F}


def build_module(program: Program, name: str = "Module") -> nn.Module:
    """Return a module with the weights that the seed draws; all of them are numbers that bf16 has."""
    defined = scope()
    exec(compile(class_text(program, name), f"<program {program.seed}>", "exec"), defined)
    torch.manual_seed(program.seed)
    module: nn.Module = defined[name]()
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(tensor.bfloat16())
    return module


def draw_inputs(program: Program) -> dict[str, torch.Tensor]:
    """Return the inputs by name; numbers are those that bf16 has."""
    torch.manual_seed(program.seed + 1)
    made = {item.name: eval(item.text, scope()) for item in program.inputs}
    if program.special:
        for tensor in made.values():
            if tensor.is_floating_point():
                _strew(tensor, KINDS[program.special])
    return {n: t.bfloat16().to(t.dtype) if t.is_floating_point() else t for n, t in made.items()}


def _strew(tensor: torch.Tensor, numbers: Sequence[float]) -> None:
    """Put some of ``numbers`` into a few places of a tensor."""
    count = max(1, tensor.numel() // _SPARSE)
    places = torch.randperm(tensor.numel())[:count]
    tensor.view(-1)[places] = torch.tensor(numbers, dtype=torch.float64)[torch.randint(len(numbers), (count,))].float()


def draw_seeds(program: Program, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradient that each output starts backward with; None where no gradient flows."""
    torch.manual_seed(program.seed + 2)
    drawn = [torch.randn(output.shape).bfloat16().to(output.dtype) if output.is_floating_point() else None
             for output in outputs]  # fmt: skip
    return [seed if output.requires_grad else None for seed, output in zip(drawn, outputs, strict=True)]


def script_text(program: Program, mode: str, kernels: str, precision: str) -> str:
    """Return a whole program that shows what the device and torch make of the module, to be pasted into a file."""
    inputs = "\n".join(f"{item.name} = {item.text}" for item in program.inputs)
    named = ", ".join(f'samba.from_torch_tensor({item.name}, name="{item.name}")' for item in program.inputs)
    given = ", ".join(item.name for item in program.inputs)
    return f'''# RDUKIT_KERNELS={kernels} RDUKIT_NODE=private python this.py
import copy
import torch
from torch import nn
from torch.nn import functional as F
from sambaflow import samba

{class_text(program)}

torch.manual_seed({program.seed})
model = Module()
torch.manual_seed({program.seed + 1})
{inputs}
torch_model = copy.deepcopy(model)
outputs = torch_model({given})
differentiable = [output for output in outputs if output.requires_grad]
if differentiable:
    torch.autograd.backward(differentiable, [torch.ones_like(output) for output in differentiable])

samba.from_torch_model_(model)
inputs = ({named},)
optimizer = samba.optim.SGD(model.parameters(), lr=0.0) if differentiable else None
pef = samba.session.compile(model, inputs, optimizer, config_dict={{"{mode}": True, "precision": "{precision}"}})
traced = samba.utils.trace_graph(model, inputs, optimizer, pef=pef)
for expected, found in zip(outputs, samba.session.run(inputs, traced)):
    print("output", (expected.float() - found.data.float()).abs().max().item())
for (name, expected), found in zip(torch_model.named_parameters(), model.parameters()):
    if expected.grad is not None:
        print("gradient", name, (expected.grad - found.sn_grad.data).abs().max().item())
'''

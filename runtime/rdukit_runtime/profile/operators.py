"""Timing of the operators inside portable kernels: each is called alone.

Source: ours.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from rdukit.pef.kernel import KernelGraph, TensorSpec, references
from rdukit.pef.model import Pef
from rdukit_runtime.engine.device import CPU, synchronise
from rdukit_runtime.engine.portable import Kernel, build_portable


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operator with one set of operand shapes, in all sections of one kernel. Figures are of one step, measured."""

    section: str
    operator: str
    shapes: str
    calls: float
    host_s: float
    #: Part of the time of all operators.
    share: float


@dataclass(slots=True)
class _Spent:
    calls: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class OperatorClock:
    """Builds kernels that time their operators, and adds up their times."""

    device: torch.device = CPU
    #: (kernel digest, operator, shapes) → time spent since the last ``reset``.
    _spent: dict[tuple[str, str, str], _Spent] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget all times."""
        self._spent.clear()

    def build(self, graph: KernelGraph) -> Kernel:
        """Return a kernel like ``build_portable``'s, slower, whose operators are timed.

        Raises:
            PefCorrupt: an operator or argument does not exist in this torch.
        """
        digest = graph.digest()
        steps = operator_steps(graph, self.device)
        names = [spec.name for spec in graph.inputs]

        def kernel(inputs: Sequence[torch.Tensor], scalars: Mapping[str, float]) -> Sequence[torch.Tensor]:
            values: dict[str, Any] = dict(zip(names, inputs, strict=True))
            if isinstance(inputs, list):  # ours to empty, see ``Kernel``
                inputs.clear()
            for step in steps:
                operands: list[Any] = [values[name] for name in step.operands]
                shapes = _shapes_of(operands)
                synchronise(self.device)
                began = time.perf_counter()
                (made,) = step.call(operands, scalars)
                synchronise(self.device)
                taken = time.perf_counter() - began
                if step.operator != "getitem":  # takes one of several results; no operator of its own
                    spent = self._spent.setdefault((digest, step.operator, shapes), _Spent())
                    spent.calls += 1
                    spent.seconds += taken
                values[step.name] = made
                for name in step.dead:
                    del values[name]
            return [None if name is None else values[name] for name in graph.outputs]  # type: ignore[misc]

        return kernel

    def rows(self, pef: Pef, runs: int) -> tuple[OperatorRow, ...]:
        """List the operators' time in ``runs`` runs, the longest first."""
        total = sum(spent.seconds for spent in self._spent.values())
        found = [
            OperatorRow(
                _sections_of(pef, digest), operator, shapes, spent.calls / runs, spent.seconds / runs,
                spent.seconds / total if total else 0.0,
            )
            for (digest, operator, shapes), spent in self._spent.items()
        ]  # fmt: skip
        return tuple(sorted(found, key=lambda row: -row.host_s))


def operators_to_dicts(rows: Sequence[OperatorRow]) -> list[dict[str, Any]]:
    """Return plain values, for JSON."""
    return [asdict(row) for row in rows]


@dataclass(frozen=True, slots=True)
class OperatorStep:
    """An operator as a kernel of its own. ``dead``: values that nothing reads after it."""

    name: str
    operator: str
    operands: tuple[str, ...]
    call: Callable[[Sequence[Any], Mapping[str, float]], Sequence[Any]]
    dead: tuple[str, ...]


def operator_steps(graph: KernelGraph, device: torch.device = CPU) -> list[OperatorStep]:
    """Return a kernel's operators, each as a kernel of its own, in order.

    Raises:
        PefCorrupt: an operator or argument does not exist in this torch.
    """
    last_use: dict[str, int] = {}
    read: list[tuple[str, ...]] = []
    for position, node in enumerate(graph.nodes):
        read.append(tuple(dict.fromkeys(references([*node.args, *node.kwargs.values()]))))
        last_use.update(dict.fromkeys((*read[-1], node.name), position))
    kept = set(graph.outputs)
    steps = []
    for position, node in enumerate(graph.nodes):
        alone = KernelGraph(
            tuple(TensorSpec(name, "float32", (), ()) for name in read[position]), (node,), (node.name,)
        )
        dead = tuple(n for n in (*read[position], node.name) if last_use[n] == position and n not in kept)
        operator = node.op.removeprefix("aten.").removesuffix(".default")
        steps.append(OperatorStep(node.name, operator, read[position], build_portable(alone, device), dead))
    return steps


def _shapes_of(operands: Sequence[object]) -> str:
    """Return ``128×768 768×768`` for the first three tensors; scalars are left out."""
    shapes = ["×".join(map(str, v.shape)) or "scalar" for v in operands if isinstance(v, torch.Tensor)]
    return " ".join(shapes[:3]) + (f" … {len(shapes)}" if len(shapes) > 3 else "")


def _sections_of(pef: Pef, digest: str) -> str:
    names = [section.name for section in pef.sections if section.kernel == digest]
    return names[0] if len(names) == 1 else f"{names[0]} ×{len(names)}"

"""Host memory that one run of a kernel takes beyond its inputs and outputs, and the outputs that are views.

The operators run one after the other, a value is freed after its last use, views have no memory of their own. Generated
operator code runs so. A native library fuses operators and reuses buffers, and takes about the same. An operator's own
allocations, such as packed weights of a matrix product, are not counted. Pure. Source: ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from rdukit.pef.kernel import Argument, KernelGraph, KernelNode, Ref, parse_operator, references
from rdukit.pef.model import ITEM_BYTES
from rdukit_compiler.cost.work import VIEW_OPS, Shape, base_name

#: Our own operators that return tensors, each as large as one of their operands' list.
_MAKERS: Final = frozenset({"rdukit.clip_grad_norm", "rdukit.all_reduce_mean"})

#: Temporary tensors, as large as the largest parameter, of an optimizer's update. Fused updates need none, and AdamW's
#: stepwise update needs almost none, because it processes large tensors piece by piece.
_UPDATE_TENSORS: Final[Mapping[str, int]] = {
    "rdukit.adam": 3, "rdukit.adamamsgrad": 3, "rdukit.adamwamsgrad": 3,
    "rdukit.sparseadamw": 6, "rdukit.adagrad": 3,
}  # fmt: skip

#: Operators whose result torch computes in memory as large as their operands, such as losses: a scalar keeps all of it.
_REDUCED_INSIDE: Final = frozenset({
    "col2im", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "soft_margin_loss",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """Bytes inside a kernel, and outputs by position.

    ``shares``: output → the input ("i", position) or earlier output ("o", position) whose memory it shares. ``holds``:
    output → the bytes that it keeps, if it is a view of more or fewer bytes than its own.
    """

    scratch_bytes: int
    shares: Mapping[int, tuple[str, int]]
    holds: Mapping[int, int]


def kernel_memory(kernel: KernelGraph, work: Sequence[Sequence[Shape]]) -> KernelMemory:
    """Walk through the kernel once.

    Args:
        work: shapes and dtypes of each call's results, without calls of ``getitem``; empty for kernels of our own
            operators and sums.
    """
    run = _Run(kernel)
    made = iter(work)
    last = _last_uses(kernel)
    for position, node in enumerate(kernel.nodes):
        run.call(node, made if work else None)
        run.forget(last.get(position, ()))
    return run.result()


@dataclass(slots=True)
class _Memory:
    """Allocation: bytes, and the number of values in it; ``source`` is set for a kernel's inputs."""

    bytes: int
    users: int = 0
    source: tuple[str, int] | None = None


@dataclass(slots=True)
class _Value:
    """A tensor, or several as an operator returned them, with its bytes of the allocation."""

    memories: tuple[_Memory, ...]
    shown: tuple[int, ...]


@dataclass(slots=True)
class _Run:
    kernel: KernelGraph
    values: dict[str, _Value] = field(default_factory=dict)
    alive: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        for position, spec in enumerate(self.kernel.inputs):
            size = prod(spec.shape) * ITEM_BYTES[spec.dtype]
            self.values[spec.name] = _Value((_Memory(0, 1, ("i", position)),), (size,))

    def call(self, node: KernelNode, made: Iterator[Sequence[Shape]] | None) -> None:
        """Add the node's value."""
        if node.op == "getitem":
            value, index = node.args
            assert isinstance(value, Ref) and isinstance(index, int)
            whole = self.values[value.name]
            place = min(index, len(whole.memories) - 1)
            found = _Value(whole.memories[place : place + 1], whole.shown[place : place + 1])
        else:
            sizes = self._sizes(node) if made is None else _with_absent(node, [_bytes(shape) for shape in next(made)])
            first = next((self.values[name] for name in references([*node.args])), None)
            if first is not None and _is_in_first(node.op):
                found = _Value(first.memories[:1] * max(len(sizes), 1), tuple(sizes) or first.shown[:1])
            else:
                least = first.shown[0] if first is not None and base_name(node.op) in _REDUCED_INSIDE else 0
                found = _Value(tuple(_Memory(max(size, least)) for size in sizes), tuple(sizes))
        for memory in found.memories:
            if not memory.users:
                self.alive += memory.bytes
            memory.users += 1
        self.values[node.name] = found
        self.peak = max(self.peak, self.alive + self._workspace(node))

    def forget(self, names: Sequence[str]) -> None:
        """Free values after their last use."""
        for name in names:
            for memory in self.values[name].memories:
                memory.users -= 1
                if not memory.users:
                    self.alive -= memory.bytes

    def result(self) -> KernelMemory:
        """Return the findings; outputs are not part of the scratch."""
        total = 0
        shares: dict[int, tuple[str, int]] = {}
        holds: dict[int, int] = {}
        first_in: dict[int, int] = {}
        for position, name in enumerate(self.kernel.outputs):
            if name is None:
                continue
            value = self.values[name]
            memory, shown = value.memories[0], value.shown[0]
            if memory.source is not None:
                shares[position] = memory.source
            elif id(memory) in first_in:
                shares[position] = ("o", first_in[id(memory)])
            else:
                first_in[id(memory)] = position
                total += memory.bytes
                if memory.bytes != shown:
                    holds[position] = memory.bytes
        return KernelMemory(max(self.peak - total, 0), shares, holds)

    def _sizes(self, node: KernelNode) -> list[int]:
        """Return the bytes of a node's results if ``work`` lacks it: one of our own operators, or a sum."""
        read = [self.values[name].shown[0] for name in references([*node.args])]
        if node.op in _MAKERS:
            return read
        return [] if parse_operator(node.op).namespace == "rdukit" else read[:1]

    def _workspace(self, node: KernelNode) -> int:
        if parse_operator(node.op).namespace != "rdukit":
            return 0
        if node.op == "rdukit.all_reduce_mean":  # an upper bound: the memory of the gradients
            return sum(self.values[node.name].shown)
        first = node.args[0] if node.args else None
        read = references(first) if isinstance(first, list) else []
        return _UPDATE_TENSORS.get(node.op, 0) * max((self.values[name].shown[0] for name in read), default=0)


def _last_uses(kernel: KernelGraph) -> dict[int, list[str]]:
    """Return position → values of the kernel whose last use it is."""
    last: dict[str, int] = {}
    for position, node in enumerate(kernel.nodes):
        last[node.name] = position
        last.update(dict.fromkeys(references([*node.args, *node.kwargs.values()]), position))
    kept = {*kernel.outputs, *(spec.name for spec in kernel.inputs)}
    found: dict[int, list[str]] = {}
    for name, position in last.items():
        if name not in kept:
            found.setdefault(position, []).append(name)
    return found


def _is_in_first(op: str) -> bool:
    """Return whether the operator's result shares the memory of its first tensor: views, and in-place updates."""
    return parse_operator(op).is_in_place or base_name(op) in VIEW_OPS


def _with_absent(node: KernelNode, sizes: list[int]) -> list[int]:
    """Return the sizes with a 0 for each output that a mask of three leaves out, the last argument of backward
    operators.
    """
    mask: Argument = node.args[-1] if node.args else None
    if not isinstance(mask, list) or not all(isinstance(item, bool) for item in mask) or mask.count(True) != len(sizes):
        return sizes
    given = iter(sizes)
    return [next(given) if item else 0 for item in mask]


def _bytes(shape: Shape) -> int:
    return prod(shape[0]) * ITEM_BYTES[shape[1]]

"""Functionalization: in-place operators in a record of torch become operators that make new values.

A model graph has values that never change. An in-place operator makes a new value, and from then on the tensor that it
overwrote, and the tensor that this one is a view of, stand for new values. Other views of that memory are made again
when they are read: see ``views``. One that cannot be is refused, never silently wrong.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from rdukit.errors import UnsupportedOperator
from rdukit.pef.kernel import Argument, parse_operator
from rdukit_compiler.capture.record_nodes import memory_of, shares_memory
from rdukit_compiler.capture.views import Emit, leaves_gradient, write_back
from rdukit_compiler.torch_private import OpOverload

#: (view, its base, the base's current value) → the view's value; None if it cannot be recomputed.
ShowAgain = Callable[[fx.Node, fx.Node, str], str | None]
#: (new value, former value) → the new value with the gradient of the former.
Keep = Callable[[str, str], str]

#: In-place operators on floating tensors whose result has another dtype than the tensor; it is converted.
_OTHER_DTYPE: Final = frozenset(
    "eq ne lt le gt ge not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not "
    "float_power".split()
)


@dataclass(frozen=True, slots=True)
class Overwritten:
    """Effect of an in-place operator: the tensor that owns the memory, and its new value."""

    root: fx.Node
    value: str


class Aliases:
    """Nodes of a record that share memory, and the current value of each."""

    def __init__(self, show_again: ShowAgain) -> None:
        self._show_again = show_again
        #: Node → name of its value. Nodes that in-place operators returned are in ``_same`` instead.
        self._names: dict[fx.Node, str] = {}
        #: Node that an in-place operator returned → the node that it overwrote.
        self._same: dict[fx.Node, fx.Node] = {}
        #: View → its base.
        self._base: dict[fx.Node, fx.Node] = {}
        self._stale: dict[fx.Node, str] = {}
        #: Result of a custom function → the result of its forward, which may be a view.
        self._tied: dict[fx.Node, fx.Node] = {}

    def define(self, node: fx.Node, name: str, base: object = None) -> None:
        """Note that ``node`` stands for value ``name``; it is a view of ``base`` if both share memory."""
        self._names[node] = name
        if isinstance(base, fx.Node) and shares_memory(node, base):
            self._base[node] = self._own(base)

    def identify(self, node: fx.Node, other: fx.Node) -> None:
        """Note that ``node`` is the same tensor as ``other``."""
        self._same[node] = self._own(other)

    def name(self, node: fx.Node) -> str:
        """Return the value that ``node`` stands for now.

        Raises:
            UnsupportedOperator: its base has been overwritten since, and the view cannot be recomputed.
        """
        own = self._own(node)
        if (reason := self._stale.get(own)) is not None:
            base = self._base.get(own)
            made = None if base is None else self._show_again(own, base, self.name(base))
            if made is None:
                raise UnsupportedOperator(reason)
            self._names[own] = made
            del self._stale[own]
        return self._names[own]

    def tie(self, node: fx.Node, shown: fx.Node) -> None:
        """Note that ``node``, a separate tensor in the record, shares the memory of ``shown``."""
        self._tied[node] = shown

    def _places(self, node: fx.Node) -> set[int | None]:
        """Return the memory of ``node``, under all names that the record has for it."""
        found = {memory_of(node)}
        for tied, shown in self._tied.items():
            if not found.isdisjoint({memory_of(tied), memory_of(shown)}):
                found |= {memory_of(tied), memory_of(shown)}
        return found - {None}

    def knows(self, node: fx.Node) -> bool:
        """Return whether ``node`` stands for a value."""
        return self._own(node) in self._names

    def find_same(self, node: fx.Node) -> fx.Node | None:
        """Find the first tensor that shows the same elements of the same memory as ``node``, if there is one."""
        return next(
            (other for other in self._names if shares_memory(other, node) and _form(other) == _form(node)), None
        )

    def root(self, node: fx.Node) -> fx.Node:
        """Return the tensor that owns the memory of ``node``."""
        own = self._own(node)
        while own in self._base:
            own = self._base[own]
        return own

    def is_root(self, node: fx.Node) -> bool:
        """Return whether ``node`` owns its memory, so that it is not a view."""
        return self._own(node) is self.root(node)

    def overwrite(
        self, node: fx.Node, value: str, emit: Emit, what: str, keep: Keep, is_untracked: bool
    ) -> Overwritten:  # fmt: skip
        """Note that ``node`` was overwritten and stands for ``value``; update the tensor that it is a view of.

        Autograd does not see a write while gradients are off, nor a write through the result of ``detach`` or
        ``.data``. A tensor that was overwritten so keeps the gradient that it had.

        Args:
            what: names the operator in messages. is_untracked: whether gradients were off.
        """
        current = self._own(node)
        if is_untracked:
            value = keep(value, self._names[current])
        self._names[current] = value
        fresh = {current}
        while current in self._base:
            base = self._base[current]
            made = write_back(current, base, value, self._names[base], emit)
            if made is None:
                break
            is_untracked = is_untracked or leaves_gradient(current)
            if is_untracked:
                made = keep(made, self._names[base])
            self._names[base] = value = made
            fresh.add(base)
            current = base
        places = self._places(node)
        for other in self._names:
            if other not in fresh and memory_of(other) in places:
                self._stale[other] = (
                    f"{what} overwrites memory shared with {other.name!r}, which is read afterwards; use the operator "
                    "without the underscore, or read the overwritten tensor"
                )
        return Overwritten(current, value)

    def _own(self, node: fx.Node) -> fx.Node:
        while node in self._same:
            node = self._same[node]
        return node


def _form(node: fx.Node) -> tuple[object, ...]:
    value: torch.Tensor = node.meta["val"]
    return value.dtype, value.shape, value.stride(), value.storage_offset()


def overwritten_argument(node: fx.Node) -> fx.Node | None:
    """Return the value that an in-place operator overwrites and returns; None for an operator without writes.

    Raises:
        UnsupportedOperator: the operator overwrites anything else.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return None
    written = [argument.name for argument in schema.arguments if argument.is_write]
    is_first = written == [schema.arguments[0].name] and node.args and isinstance(node.args[0], fx.Node)
    returned = [item.alias_info for item in schema.returns]
    if is_first and len(returned) == 1 and returned[0] is not None and returned[0].is_write:
        assert isinstance(node.args[0], fx.Node)
        return node.args[0]
    namespace, _, name = schema.name.partition("::")
    if namespace == "aten":
        raise UnsupportedOperator(
            f"{name} overwrites its arguments {', '.join(written)}; use the function of torch.nn.functional instead"
        )
    raise UnsupportedOperator(
        f"{schema.name} overwrites its arguments {', '.join(written)}; let it return new tensors (mutates_args=()) and "
        "compile with --host-fallback or RDUKIT_HOST_FALLBACK=1, which runs it on the host"
    )


def keeps_dtype(node: fx.Node, op: str) -> bool:
    """Return whether the functional form of an in-place operator certainly returns the dtype of the overwritten
    tensor.
    """
    dtypes = {n.meta["val"].dtype for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)}
    is_floating = all(dtype.is_floating_point for dtype in dtypes)
    return len(dtypes) == 1 and is_floating and parse_operator(op).word.removesuffix("_") not in _OTHER_DTYPE


def functional_form(node: fx.Node, op: str, arguments: Mapping[str, Any]) -> tuple[str, list[Argument]] | None:
    """Return name and arguments of the functional form of an in-place operator, where it has another name.

    Args:
        arguments: ``target`` and ``source``, encoded; the latter may be absent.
    """
    target: Argument = arguments["target"]
    if op == "aten.copy_.default":
        shape: list[Argument] = [int(size) for size in node.meta["val"].shape]
        return "aten.expand.default", [arguments["source"], shape]
    if op == "aten.zero_.default":
        return "aten.zeros_like.default", [target]
    numbers: list[Argument] = [a for a in node.args[1:] if isinstance(a, int | float)]
    if op == "aten.polygamma_.default":
        return "aten.polygamma.default", [*numbers, target]
    if op == "aten.bernoulli_.float":
        return "aten.bernoulli.p", [target, *(numbers or [0.5])]
    if op == "aten.normal_.default":
        return "aten.normal_functional.default", [target, *numbers]
    if op == "aten.random_.from" and len(numbers) == 2:
        return "aten.randint_like.low_dtype", [target, *numbers]
    return None


def refuse_view_of_constant(node: fx.Node, what: str) -> None:
    """Refuse to overwrite a view of a tensor that is neither an input nor a buffer: the trace does not link the two.

    Raises:
        UnsupportedOperator: ``node`` is such a view.
    """
    while isinstance(node.target, OpOverload) and node.target.is_view and node.args:
        viewed = node.args[0]
        assert isinstance(viewed, fx.Node)
        node = viewed
        if node.op == "get_attr":
            raise UnsupportedOperator(
                f"{what} overwrites a part of a tensor from outside forward's arguments, parameters and buffers; keep "
                "such state in a buffer (register_buffer)"
            )

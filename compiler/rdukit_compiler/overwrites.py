"""In-place operators in a record of torch: what each tensor stands for after one, and which views became stale.

A model graph has values that never change. An in-place operator makes a new value, and from then on the tensor that it
overwrote, and the tensor that this one is a view of, stand for new values. Another view of those is taken again when
it is read afterwards; one that cannot be, through which an older value would be read, is refused, never silently wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any, Final

import torch
from torch import fx

from rdukit.errors import UnsupportedOperator
from rdukit.pef.kernel import Argument, Ref, Special

#: Makes an operator: (ATen name, arguments) → name of its value.
Emit = Callable[[str, list[Argument]], str]
#: (new value, former value) → the new value with the gradient of the former.
Keep = Callable[[str, str], str]
#: (view, value of what it is a view of) → the view of that; None if there is no operator for it.
Renew = Callable[[fx.Node, str], str | None]

_RESHAPES: Final = frozenset(
    {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "view_as", "detach",
     "alias", "contiguous"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Overwritten:
    """What an in-place operator changed: the tensor that owns the memory, and the value that it stands for now."""

    root: fx.Node
    value: str


class Aliases:
    """Which nodes of a record share memory, and what each stands for now."""

    def __init__(self, renew: Renew) -> None:
        self._renew = renew
        #: Node → name of its value; a node that an in-place operator returned is not here but in ``_same``.
        self._names: dict[fx.Node, str] = {}
        #: What an in-place operator returned → the node that it overwrote.
        self._same: dict[fx.Node, fx.Node] = {}
        #: View → what it is a view of.
        self._base: dict[fx.Node, fx.Node] = {}
        self._stale: dict[fx.Node, str] = {}
        #: What a custom function gave → what its forward gave, which may be a view.
        self._tied: dict[fx.Node, fx.Node] = {}

    def define(self, node: fx.Node, name: str, base: object = None) -> None:
        """``node`` stands for value ``name``; it is a view of ``base`` if both share memory."""
        self._names[node] = name
        if isinstance(base, fx.Node) and shares_memory(node, base):
            self._base[node] = self._own(base)

    def identify(self, node: fx.Node, other: fx.Node) -> None:
        """``node`` is the same tensor as ``other``."""
        self._same[node] = self._own(other)

    def name(self, node: fx.Node) -> str:
        """The value that ``node`` stands for now.

        Raises:
            UnsupportedOperator: it is a view of what has been overwritten since.
        """
        own = self._own(node)
        if (reason := self._stale.get(own)) is not None:
            base = self._base.get(own)
            renewed = self._renew(own, self.name(base)) if base is not None else None
            if renewed is None:
                raise UnsupportedOperator(reason)
            self._names[own] = renewed
            del self._stale[own]
        return self._names[own]

    def tie(self, node: fx.Node, shown: fx.Node) -> None:
        """``node``, which the record takes for a tensor of its own, lies where ``shown`` lies."""
        self._tied[node] = shown

    def _places(self, node: fx.Node) -> set[int | None]:
        """The memory of ``node``, under all names that the record has for it."""
        found = {_memory(node)}
        for tied, shown in self._tied.items():
            if not found.isdisjoint({_memory(tied), _memory(shown)}):
                found |= {_memory(tied), _memory(shown)}
        return found - {None}

    def knows(self, node: fx.Node) -> bool:
        """Whether ``node`` stands for a value."""
        return self._own(node) in self._names

    def find_same(self, node: fx.Node) -> fx.Node | None:
        """The first tensor that shows the same elements of the same memory as ``node``, if there is one."""
        return next(
            (other for other in self._names if shares_memory(other, node) and _form(other) == _form(node)), None
        )

    def root(self, node: fx.Node) -> fx.Node:
        """The tensor that owns the memory of ``node``."""
        own = self._own(node)
        while own in self._base:
            own = self._base[own]
        return own

    def overwrite(
        self, node: fx.Node, value: str, emit: Emit, what: str, keep: Keep, is_untracked: bool
    ) -> Overwritten:  # fmt: skip
        """``node`` was overwritten and now stands for ``value``; brings up to date what it is a view of.

        Autograd sees nothing of a write that was made while gradients were off, nor a tensor of one that was made
        through what ``detach`` or ``.data`` gave of it: such a tensor keeps the gradient that it had.

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
            made = _written_back(current, base, value, self._names[base], emit)
            if made is None:
                break
            is_untracked = is_untracked or _leaves_gradient(current)
            if is_untracked:
                made = keep(made, self._names[base])
            self._names[base] = value = made
            fresh.add(base)
            current = base
        places = self._places(node)
        for other in self._names:
            if other not in fresh and _memory(other) in places:
                self._stale[other] = (
                    f"{what} overwrites memory that {other.name!r} also shows, and that is read afterwards; use the "
                    "operator without the underscore, or read through the tensor that was overwritten"
                )
        return Overwritten(current, value)

    def _own(self, node: fx.Node) -> fx.Node:
        while node in self._same:
            node = self._same[node]
        return node


def _leaves_gradient(view: fx.Node) -> bool:
    """Whether autograd does not follow ``view``: it comes from ``detach`` or, as an attribute, from ``.data``."""
    return view.op == "get_attr" or str(view.target) == "aten.detach.default"


def _form(node: fx.Node) -> tuple[object, ...]:
    value: torch.Tensor = node.meta["val"]
    return value.dtype, value.shape, value.stride(), value.storage_offset()


def shares_memory(node: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes are tensors over the same memory."""
    return (memory := _memory(node)) is not None and memory == _memory(other)


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _written_back(view: fx.Node, base: fx.Node, value: str, base_value: str, emit: Emit) -> str | None:
    """The value of ``base`` after its ``view`` became ``value``; None if there is no operator for that."""
    op, args = str(view.target), list(view.args[1:])
    word = op.split(".")[1].rstrip("_") if op.startswith("aten.") else ""
    shape: list[Argument] = [int(size) for size in base.meta["val"].shape]
    plain: list[Argument] = [a for a in args if isinstance(a, int) or a is None]
    if word in {"select", "slice"} and len(plain) == len(args):
        return emit(f"aten.{word}_scatter.default", [Ref(base_value), Ref(value), *plain])
    if word == "diagonal" and len(plain) == len(args):
        return emit("aten.diagonal_scatter.default", [Ref(base_value), Ref(value), *plain])
    if word in _RESHAPES or view.op == "get_attr":
        return emit("aten.reshape.default", [Ref(value), shape])
    if word in {
        "to",
        "type_as",
    }:  # to the dtype that the base had when traced: the device may hold the two in different ones
        return emit("aten.to.dtype", [Ref(value), _dtype_of(base)])
    if word == "t":
        return emit("aten.t.default", [Ref(value)])
    if word == "transpose" and len(plain) == len(args) == 2:
        return emit("aten.transpose.int", [Ref(value), *plain])
    if word == "permute" and isinstance(args[0], list | tuple):
        dims = [int(d) % len(shape) for d in args[0] if isinstance(d, int)]
        return emit("aten.permute.default", [Ref(value), [dims.index(d) for d in range(len(dims))]])
    if (chosen := _numbers_of(view, base, emit)) is not None:
        return emit("aten.put.default", [Ref(base_value), Ref(chosen), Ref(value)])
    return None


def taken_again(view: fx.Node, base_value: str, emit: Emit) -> str | None:
    """The value of a ``view`` now that what it is a view of is ``base_value``; None if no operator gives it."""
    if not view.args or not isinstance(base := view.args[0], fx.Node) or view.kwargs:
        return None
    if view.target is getitem:  # of what ``split`` and its like gave
        base = base.args[0] if base.args else None
        if not isinstance(base, fx.Node) or (chosen := _numbers_of(view, base, emit)) is None:
            return None
        return emit("aten.take.default", [Ref(base_value), Ref(chosen)])
    op, rest = str(view.target), _numbers_in(view.args[1:])
    if op == "aten.type_as.default":
        return emit("aten.to.dtype", [Ref(base_value), _dtype_of(base)])
    return emit(op, [Ref(base_value), *rest]) if op.startswith("aten.") and rest is not None else None


def _numbers_in(args: Sequence[Any]) -> list[Argument] | None:
    """Arguments that are sizes, dimensions and the like; None if another is among them."""
    found: list[Argument] = []
    for argument in args:
        if isinstance(argument, list | tuple):
            if (inside := _numbers_in(argument)) is None:
                return None
            found.append(inside)
        elif argument is None or isinstance(argument, int):
            found.append(argument)
        else:
            return None
    return found


def _numbers_of(view: fx.Node, base: fx.Node, emit: Emit) -> str | None:
    """Which elements of ``base``, as torch counts them, ``view`` shows: values may lie otherwise than in the record."""
    if (place := _place_within(view, base)) is None:
        return None
    numbers = emit("aten.arange.default", [base.meta["val"].numel()])
    return emit("aten.as_strided.default", [Ref(numbers), *place])


def _dtype_of(node: fx.Node) -> Special:
    return Special("dtype", str(node.meta["val"].dtype).removeprefix("torch."))


def _place_within(view: fx.Node, base: fx.Node) -> list[Argument] | None:
    """Shape, stride and offset of any other view, such as a part that ``split`` gave, in a ``base`` without gaps."""
    shown, held = view.meta["val"], base.meta["val"]
    if shown.dtype != held.dtype or not held.is_contiguous() or 0 in shown.stride():
        return None
    offset = int(shown.storage_offset()) - int(held.storage_offset())
    last = offset + sum((size - 1) * stride for size, stride in zip(shown.shape, shown.stride(), strict=True))
    if shown.numel() == 0 or offset < 0 or last >= held.numel():
        return None
    return [list(map(int, shown.shape)), list(map(int, shown.stride())), offset]


def functional_form(node: fx.Node, op: str, arguments: Mapping[str, Any]) -> tuple[str, list[Argument]] | None:
    """In-place operators whose form without the underscore has another name: that name and its arguments.

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
    if op == "aten.bernoulli_.float":
        return "aten.bernoulli.p", [target, *(numbers or [0.5])]
    if op == "aten.normal_.default":
        return "aten.normal_functional.default", [target, *numbers]
    return None

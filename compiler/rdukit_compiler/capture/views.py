"""Views in a record of torch: each is recomputed from its base, and a write through it is carried back to the base.

torch's views depend on strides. Values of a model graph have none, and a cut changes their layout. Therefore a view is
its operator's result for a value of any layout, and ``as_strided``, which names positions in memory, becomes a lookup
of elements.
"""

from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import fx

from rdukit.errors import UnsupportedOperator
from rdukit.pef.kernel import Argument, Ref, Special, parse_operator
from rdukit_compiler.operators.custom_gradients import CUSTOM_FUNCTION
from rdukit_compiler.operators.naming import aten_word, callable_of, dtype_name, encode, find_functional, name_of

#: Node → name of its value; None for an argument that is not a node.
NameOf = Callable[[Any], str | None]

DETACH: Final = "aten.detach.default"
_AS_STRIDED: Final = ("as_strided", "as_strided_")
#: Operators that divide a tensor into consecutive parts.
_PARTS: Final = frozenset({
    "split", "split_with_sizes", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit",
})  # fmt: skip


class Emit(Protocol):
    """Adds an operator, (ATen name, arguments) → name of its value."""

    def __call__(self, op: str, args: list[Argument], kwargs: Mapping[str, Argument] = ...) -> str: ...


class Call(NamedTuple):
    """The call that makes a view of its base: an operator with one result, and its arguments after the base."""

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def word(self) -> str:
        return parse_operator(self.op).word


#: Operators that return their operand with a part replaced.
_SCATTERS: Final = frozenset({"select_scatter", "slice_scatter", "diagonal_scatter"})
#: Operators whose result is new memory in the order of the axes.
_PRODUCTS: Final = frozenset({"linear", "mm", "addmm", "bmm", "baddbmm"})
_NO_SCATTER_GRADIENT: Final = (
    "torch's gradient of as_strided_scatter depends on its layout in memory; use slice_scatter, "
    "diagonal_scatter or scatter"
)


class MemoryLayout(NamedTuple):
    """Positions of elements, in elements from the start of the memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def asks_for_places(node: fx.Node) -> bool:
    """Return whether a node is ``as_strided``: its result depends on its operand's layout in memory."""
    return word_of(node) in _AS_STRIDED


def word_of(node: fx.Node) -> str:
    return aten_word(node.target)


def leaves_gradient(view: fx.Node) -> bool:
    """Return whether autograd does not follow ``view``, which comes from ``detach`` or ``.data`` (an attribute)."""
    return view.op == "get_attr" or str(view.target) == DETACH


def show_again(view: fx.Node, base: fx.Node, base_value: str, name_of_value: NameOf, emit: Emit) -> str | None:
    """Return the value of ``view`` after its base became ``base_value``; None if it cannot be computed."""
    if view.op == "get_attr":
        return emit(DETACH, [Ref(base_value)])
    if asks_for_places(view):
        return look_up_places(view, base, base_value, emit)
    if (call := _call_of(view, base)) is None:
        return None
    if call.word in {"to", "type_as"}:
        return emit("aten.to.dtype", [Ref(base_value), _dtype_of(view)])
    args = [encode(argument, name_of_value) for argument in call.args]
    return emit(call.op, [Ref(base_value), *args], {k: encode(v, name_of_value) for k, v in call.kwargs.items()})


def write_back(view: fx.Node, base: fx.Node, value: str, base_value: str, emit: Emit) -> str | None:
    """Return the value of ``base`` after its ``view`` became ``value``; None if that cannot be computed."""
    shape = _sizes(base)
    if view.op == "get_attr":
        return emit("aten.reshape.default", [Ref(value), shape])
    lies = base.meta["val"]
    if _overlaps(MemoryLayout(tuple(lies.shape), tuple(lies.stride()), 0)):
        return None  # rows of an expanded tensor share memory: a write into one changes all
    if asks_for_places(view):
        flat = _in_memory_order(base, base_value, emit)
        placed = _placed(flat, _numel(base), _relative(view, base), value, emit)
        return _from_memory_order(base, placed, emit)
    if (call := _call_of(view, base)) is None:
        return None
    if call.word in {
        "to",
        "type_as",
    }:  # to the base's dtype in the trace: on the device, the two dtypes may differ
        return emit("aten.to.dtype", [Ref(value), _dtype_of(base)])
    plain: list[Argument] = [a for a in call.args if isinstance(a, int) or a is None]
    if call.word in {"select", "slice", "diagonal"} and len(plain) == len(call.args) and not call.kwargs:
        overload = "default"
        return emit(f"aten.{call.word}_scatter.{overload}", [Ref(base_value), Ref(value), *plain])
    if call.word == "narrow" and len(plain) == len(call.args) == 3:
        dim, start, length = call.args
        start += shape[dim] if start < 0 else 0
        return emit("aten.slice_scatter.default", [Ref(base_value), Ref(value), dim, start, start + length])
    if (layout := _layout(call, base)) is None or _overlaps(layout):
        return None
    if torch.Size(layout.shape).numel() == _numel(base):
        order = _order(layout)
        turned = value if order == sorted(order) else emit("aten.permute.default", [Ref(value), list(order)])
        same = [layout.shape[d] for d in order] == shape
        return turned if same and turned != value else emit("aten.reshape.default", [Ref(turned), shape])
    flat = emit("aten.reshape.default", [Ref(base_value), [-1]])
    return emit("aten.reshape.default", [Ref(_placed(flat, _numel(base), layout, value, emit)), shape])


def shown_places(node: fx.Node, root: fx.Node, carries: bool) -> fx.Node:
    """Return the tensor whose elements ``as_strided`` shows: its operand, or ``root``, which owns the operand's memory.

    Args:
        carries: whether a gradient flows.
    Raises:
        UnsupportedOperator: it shows elements outside the operand, to which torch passes no gradient.
    """
    base = node.args[0]
    assert isinstance(base, fx.Node)
    if not _lies_as_recorded(root):
        raise UnsupportedOperator(
            f"as_strided reads the memory of {root.name!r}, whose layout torch chooses; make it contiguous first"
        )
    if _memory_order(base) is not None and _fits(_relative(node, base), _numel(base)):
        return base
    if carries:
        raise UnsupportedOperator(
            f"as_strided reads memory beyond its tensor, {base.name!r}, and torch loses the gradient of that memory; "
            "use it on the whole tensor, or on a detached one"
        )
    return root


def look_up_places(node: fx.Node, root: fx.Node, root_value: str, emit: Emit) -> str:
    """Write ``as_strided`` as a lookup of its positions in the memory of ``root``.

    Raises:
        UnsupportedOperator: ``root`` does not fill its memory.
    """
    flat = _in_memory_order(root, root_value, emit)
    return emit("aten.index.Tensor", [Ref(flat), [Ref(_positions(_numel(root), _relative(node, root), emit))]])


def scatter_places(node: fx.Node, value: str, source: str, emit: Emit) -> str:
    """Write ``as_strided_scatter``: a copy of its first operand, ``value``, with ``source`` at its positions.

    The result has no gradient. torch's formula depends on the gradient's layout in memory: it passes a gradient to
    overwritten elements, and reads wrong elements of a slice, as after ``cat`` (torch 2.13).

    Raises:
        UnsupportedOperator: the operand does not fill its memory, lacks these positions, or has two elements in one.
    """
    base, given = node.args[0], node.args[1]
    assert isinstance(base, fx.Node) and isinstance(given, fx.Node)
    own: torch.Tensor = base.meta["val"]
    sizes: list[Any] = [*node.args[2:], *node.kwargs.values()]
    size, stride, *rest = sizes
    start = int(own.storage_offset())
    offset = 0 if not rest or rest[0] is None else int(rest[0]) - start
    layout = MemoryLayout(tuple(map(int, size)), tuple(map(int, stride)), offset)
    flat = _in_memory_order(base, value, emit)
    if not _fits(layout, _numel(base)):
        raise UnsupportedOperator(
            f"as_strided_scatter writes beyond its operand, which has {_numel(base)} elements: use it on the "
            "whole tensor"
        )
    if _overlaps(layout):
        raise UnsupportedOperator(
            f"as_strided_scatter writes several elements to one place: size {list(layout.shape)}, stride "
            f"{list(layout.stride)}; expected strides that keep them apart"
        )
    made = _from_memory_order(base, _placed(flat, _numel(base), layout, source, emit), emit)
    return emit(CUSTOM_FUNCTION, [[Ref(made)], [Ref(value), Ref(source)], [], "", _NO_SCATTER_GRADIENT])


def check_scattered(node: fx.Node) -> None:
    """Refuse to replace a part of a tensor whose elements share memory, such as the result of ``unfold``.

    Torch's ``select_scatter``, ``slice_scatter`` and ``diagonal_scatter`` copy such a tensor with its overlapping
    memory, and so overwrite elements outside the part (torch 2.13). They copy an expanded tensor element by element.

    Raises:
        UnsupportedOperator: the operand is such a tensor.
    """
    base = node.args[0] if node.args else None
    if word_of(node) not in _SCATTERS or not isinstance(base, fx.Node):
        return
    lies = base.meta["val"]
    is_expanded = any(size > 1 and not stride for size, stride in zip(lies.shape, lies.stride(), strict=True))
    if not is_expanded and _overlaps(MemoryLayout(tuple(lies.shape), lies.stride(), 0)):
        raise UnsupportedOperator(
            f"{word_of(node)} replaces a part of {base.name!r}, several elements of which share memory: torch would "
            "also overwrite other elements; use contiguous() first"
        )


def _call_of(view: fx.Node, base: fx.Node) -> Call | None:
    if view.target is getitem:
        return _part(view, base)
    try:
        op = name_of(view.target)
    except UnsupportedOperator:
        return None
    if parse_operator(op).namespace != "aten" or not view.args or not isinstance(view.args[0], fx.Node):
        return None
    turns = torch.Tag.inplace_view in getattr(view.target, "tags", ())
    found = find_functional(op) if turns else op
    return None if found is None else Call(found, view.args[1:], view.kwargs)


def _part(view: fx.Node, base: fx.Node) -> Call | None:
    """Return the call that makes one of several results that are views."""
    source, index = view.args
    assert isinstance(source, fx.Node) and isinstance(index, int)
    word = word_of(source)
    if word == "unbind":
        dim = source.args[1] if len(source.args) > 1 else source.kwargs.get("dim", 0)
        return Call("aten.select.int", (dim, index), {})
    if word == "broadcast_tensors":
        return Call("aten.expand.default", (list(view.meta["val"].shape),), {})
    if word not in _PARTS:
        return None
    whole, part = base.meta["val"].shape, view.meta["val"].shape
    dim = next((d for d, (one, other) in enumerate(zip(whole, part, strict=True)) if one != other), 0)
    start = sum(int(tensor.shape[dim]) for tensor in source.meta["val"][:index])
    return Call("aten.slice.Tensor", (dim, start, start + int(part[dim])), {})


def _layout(call: Call, base: fx.Node) -> MemoryLayout | None:
    """Return the layout of the view of a contiguous base; None if the result would not be a view."""
    whole = torch.empty(_sizes(base), dtype=base.meta["val"].dtype, device="meta")  # type: ignore[arg-type]

    def example(argument: Any) -> Any:
        if not isinstance(argument, fx.Node):
            return argument
        return torch.empty(argument.meta["val"].shape, dtype=argument.meta["val"].dtype, device="meta")

    function = callable_of(call.op)
    args = fx.node.map_aggregate(call.args, example)
    try:
        made = function(whole, *args, **call.kwargs)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    if (
        not isinstance(made, torch.Tensor)
        or made.dtype != whole.dtype
        or made.untyped_storage()._cdata != whole.untyped_storage()._cdata
    ):
        return None
    return MemoryLayout(tuple(made.shape), made.stride(), int(made.storage_offset()))


def _overlaps(layout: MemoryLayout) -> bool:
    """Return whether two elements may share a position."""
    reach = 0
    for stride, size in sorted((st, n) for st, n in zip(layout.stride, layout.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _fits(layout: MemoryLayout, count: int) -> bool:
    reach = sum((size - 1) * stride for size, stride in zip(layout.shape, layout.stride, strict=True))
    return layout.offset >= 0 and layout.offset + reach < count


def _order(layout: MemoryLayout) -> list[int]:
    """Return the axes by their strides, the largest first; axes of one element keep their position."""
    large = [d for d, size in enumerate(layout.shape) if size > 1]
    turned = iter(sorted(large, key=lambda d: -layout.stride[d]))
    return [next(turned) if size > 1 else d for d, size in enumerate(layout.shape)]


def _positions(count: int, layout: MemoryLayout, emit: Emit) -> str:
    """Return the positions of a layout's elements, as integers in its shape."""
    if not _fits(layout, count):
        raise UnsupportedOperator(f"as_strided reads memory beyond its tensor, which has {count} elements")
    numbers = emit("aten.arange.default", [count])
    return emit("aten.as_strided.default", [Ref(numbers), list(layout.shape), list(layout.stride), layout.offset])


def _placed(flat: str, count: int, layout: MemoryLayout, value: str, emit: Emit) -> str:
    """Write the elements of ``value`` to the positions of ``layout`` in ``flat``."""
    places = emit("aten.reshape.default", [Ref(_positions(count, layout, emit)), [-1]])
    return emit("aten.scatter.src", [Ref(flat), 0, Ref(places), Ref(emit("aten.reshape.default", [Ref(value), [-1]]))])


def _in_memory_order(node: fx.Node, value: str, emit: Emit) -> str:
    """Return a tensor's elements in the order of its recorded memory, as one row."""
    order = _checked_order(node)
    if order != sorted(order):
        value = emit("aten.permute.default", [Ref(value), list(order)])
    return emit("aten.reshape.default", [Ref(value), [-1]])


def _from_memory_order(node: fx.Node, flat: str, emit: Emit) -> str:
    order, shape = _checked_order(node), _sizes(node)
    made = emit("aten.reshape.default", [Ref(flat), [shape[d] for d in order]])
    if order == sorted(order):
        return made
    return emit("aten.permute.default", [Ref(made), [order.index(d) for d in range(len(order))]])


def _checked_order(node: fx.Node) -> list[int]:
    if (order := _memory_order(node)) is None:
        value: torch.Tensor = node.meta["val"]
        raise UnsupportedOperator(
            f"as_strided reads the memory of {node.name!r}, which has gaps: strides {list(value.stride())} for "
            f"sizes {list(value.shape)}; make it contiguous first"
        )
    return order


def _memory_order(node: fx.Node) -> list[int] | None:
    """Return a tensor's axes in memory order, the outermost first; None if there are gaps between elements."""
    value: torch.Tensor = node.meta["val"]
    order = _order(MemoryLayout(tuple(value.shape), value.stride(), 0))
    expected = 1
    for d in reversed(order):
        if value.shape[d] > 1 and value.stride(d) != expected:
            return None
        expected *= int(value.shape[d])
    return order


def _lies_as_recorded(root: fx.Node) -> bool:
    """Return whether the real layout of a tensor that owns memory is surely the recorded one.

    For results that are not in the order of their axes, torch's record is certain only for elementwise operators, and
    for copies into an order that the program names.
    """
    if root.op != "call_function" or word_of(root) in {"clone", "contiguous", "to", "_to_copy"}:
        return True
    if torch.Tag.pointwise in getattr(root.target, "tags", ()):
        return True
    sources = [] if _lies_in_order(root) else root.all_input_nodes
    values = [n.meta.get("val") for n in (root, *sources)]
    return all(value.is_contiguous() for value in values if isinstance(value, torch.Tensor))


def _lies_in_order(node: fx.Node) -> bool:
    """Return whether a result is contiguous for any layout of its operands, as products and padded values are.

    Padded images may keep the order of channels last.
    """
    is_constant = node.args[2:3] in {(), ("constant",)}
    return word_of(node) in _PRODUCTS or (
        word_of(node) == "pad" and is_constant and node.meta["val"].dim() not in {4, 5}
    )


def _relative(node: fx.Node, root: fx.Node) -> MemoryLayout:
    value: torch.Tensor = node.meta["val"]
    offset = int(value.storage_offset()) - int(root.meta["val"].storage_offset())
    return MemoryLayout(tuple(map(int, value.shape)), tuple(map(int, value.stride())), offset)


def _dtype_of(node: fx.Node) -> Special:
    return Special("dtype", dtype_name(node.meta["val"].dtype))


def _sizes(node: fx.Node) -> list[Argument]:
    return [int(size) for size in node.meta["val"].shape]


def _numel(node: fx.Node) -> int:
    return int(node.meta["val"].numel())

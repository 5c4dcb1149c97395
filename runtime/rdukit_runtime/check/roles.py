"""Legal values of a kernel's inputs, by the operators that read them: an index lies in its range, a variance is
positive.

One table gives the role of each operator's argument. A value that is only rearranged before it is read has the same
role. Numbers stay positive when positive ones are added or multiplied.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, parse_operator


@dataclass(frozen=True, slots=True)
class InputRole:
    """Values that an input may have.

    ``kind``: ``index`` (whole, from ``least`` up to below ``limit``), ``probability``, ``positive``, ``sorted``,
    ``divisor`` (not zero, if whole).
    """

    kind: str
    limit: int = 0
    least: int = 0
    #: A further legal index: that of targets that a loss ignores.
    ignored: int | None = None


Shapes = Mapping[str, Sequence[int]]
Find = Callable[[KernelNode, Shapes], InputRole | None]


def _size(node: KernelNode, position: int, axis: int, shapes: Shapes) -> int | None:
    value = node.args[position]
    shape = shapes.get(value.name) if isinstance(value, Ref) else None
    if shape is None:
        return None
    return shape[axis] if shape else 1


def _index(of: int, axis: int | None = None, axis_at: int = 1, is_signed: bool = False) -> Find:
    """Return the role of an index of argument ``of``, along ``axis`` or along the one in argument ``axis_at``."""

    def find(node: KernelNode, shapes: Shapes) -> InputRole | None:
        along = node.args[axis_at] if axis is None else axis
        size = _size(node, of, along, shapes) if isinstance(along, int) else None
        return None if size is None else InputRole("index", size, -size if is_signed else 0)

    return find


def _number_at(position: int) -> Find:
    """Return the role of an index below the number in an argument."""

    def find(node: KernelNode, _: Shapes) -> InputRole | None:
        limit = node.args[position]
        return InputRole("index", limit) if isinstance(limit, int) else None

    return find


def _target(classes_of: int, ignored_at: int) -> Find:
    def find(node: KernelNode, shapes: Shapes) -> InputRole | None:
        value = node.args[classes_of]
        shape = shapes.get(value.name) if isinstance(value, Ref) else None
        ignored = node.args[ignored_at] if len(node.args) > ignored_at else -100
        if shape is None or not isinstance(ignored, int):
            return None
        return InputRole("index", shape[0] if len(shape) == 1 else shape[1], 0, ignored)

    return find


def _labels(node: KernelNode, shapes: Shapes) -> InputRole | None:
    size = _size(node, 0, -1, shapes)
    return None if size is None else InputRole("index", size, -1)


def _of_all(node: KernelNode, shapes: Shapes) -> InputRole | None:
    value = node.args[0]
    if not isinstance(value, Ref) or value.name not in shapes:
        return None
    count = prod(shapes[value.name])
    return InputRole("index", count, -count)


def _in_window(of: int, axes: int) -> Find:
    """Return the role of a place in the last ``axes`` of an argument, flat."""

    def find(node: KernelNode, shapes: Shapes) -> InputRole | None:
        value = node.args[of]
        shape = shapes.get(value.name) if isinstance(value, Ref) else None
        return None if shape is None else InputRole("index", prod(shape[-axes:]))

    return find


def _always(kind: str) -> Find:
    return lambda node, shapes: InputRole(kind)


#: Operator without its overload, position of the argument → role.
READERS: Final[Mapping[tuple[str, int], Find]] = {
    ("aten.embedding", 1): _index(0, 0),
    ("aten.embedding_dense_backward", 1): _number_at(2),
    ("aten.index_select", 2): _index(0),
    ("aten.index_add", 2): _index(0), ("aten.index_copy", 2): _index(0), ("aten.index_fill", 2): _index(0),
    ("aten.index_reduce", 2): _index(0),
    ("aten.gather", 2): _index(0),
    ("aten.scatter", 2): _index(0), ("aten.scatter_add", 2): _index(0), ("aten.scatter_reduce", 2): _index(0),
    ("aten.take", 1): _of_all,
    ("aten.put", 1): _of_all,
    ("aten.nll_loss_forward", 1): _target(0, 4), ("aten.nll_loss2d_forward", 1): _target(0, 4),
    ("aten.nll_loss_backward", 2): _target(1, 5), ("aten.nll_loss2d_backward", 2): _target(1, 5),
    ("aten.multi_margin_loss", 1): _target(0, 9), ("aten.multi_margin_loss_backward", 2): _target(1, 9),
    ("aten.multilabel_margin_loss_forward", 1): _labels, ("aten.multilabel_margin_loss_backward", 2): _labels,
    **{(f"aten.{word}", 1): _always("divisor") for word in ("div", "floor_divide", "remainder", "fmod")},
    ("aten.max_pool2d_with_indices_backward", 7): _in_window(1, 2),
    ("aten.max_pool3d_with_indices_backward", 7): _in_window(1, 3),
    ("aten.adaptive_max_pool2d_backward", 2): _in_window(1, 2),
    ("aten.adaptive_max_pool3d_backward", 2): _in_window(1, 3),
    ("aten.one_hot", 0): _number_at(1),
    ("aten.bernoulli", 0): _always("probability"), ("aten.multinomial", 0): _always("probability"),
    ("aten.binary_cross_entropy", 0): _always("probability"), ("aten.binary_cross_entropy", 1): _always("probability"),
    ("aten.binary_cross_entropy_backward", 1): _always("probability"),
    ("aten.binary_cross_entropy_backward", 2): _always("probability"),
    ("aten.logit", 0): _always("probability"), ("aten.erfinv", 0): _always("probability"),
    ("aten.searchsorted", 0): _always("sorted"), ("aten.bucketize", 1): _always("sorted"),
    ("aten.sqrt", 0): _always("positive"), ("aten.rsqrt", 0): _always("positive"),
    ("aten.log", 0): _always("positive"), ("aten.log2", 0): _always("positive"), ("aten.log10", 0): _always("positive"),
    ("aten.lgamma", 0): _always("positive"), ("aten.digamma", 0): _always("positive"),
    ("aten.native_batch_norm", 4): _always("positive"),
    ("aten._native_batch_norm_legit", 4): _always("positive"),
    ("aten._native_batch_norm_legit_no_training", 4): _always("positive"),
    ("aten.native_batch_norm_backward", 4): _always("positive"),
    ("aten.native_batch_norm_backward", 6): _always("positive"),
    ("aten.native_layer_norm_backward", 4): _always("positive"),
    ("aten.native_group_norm_backward", 3): _always("positive"),
}  # fmt: skip


#: Operators that pass on the elements of their first argument unchanged.
LAYOUTS: Final = frozenset(
    f"aten.{name}"
    for name in (
        "view _unsafe_view reshape expand unsqueeze squeeze permute transpose t clone _to_copy slice select contiguous "
        "alias detach flatten unflatten movedim flip roll repeat diagonal as_strided unfold"
    ).split()
)
#: Operators whose results are positive where all of their operands are.
_KEEP_POSITIVE: Final = frozenset({"aten.add", "aten.mul", "aten.div", "aten.maximum", "aten.sqrt"})


def word_of(op: str) -> str:
    """Return an operator's name without its overload, and in place or not: ``aten.add`` of ``aten.add_.Tensor``."""
    name = parse_operator(op)
    return f"{name.namespace}.{name.word.removesuffix('_')}"


def find_roles(kernel: KernelGraph, shapes: Shapes) -> dict[str, InputRole]:
    """Return the roles of those inputs that have one.

    Args:
        shapes: of all values of the kernel.
    """
    roles: dict[str, InputRole] = {}
    for node in reversed(kernel.nodes):
        own = roles.get(node.name)
        word = word_of(node.op)
        for position, argument in enumerate(node.args):
            role = _role_of(word, position, node, shapes, own)
            if role is not None and isinstance(argument, Ref):
                roles[argument.name] = meet(roles.get(argument.name), role)
        if word in {"aten.index", "aten._unsafe_index", "aten.index_put", "aten._unsafe_index_put"}:
            _note_places(node, shapes, roles)
    return {spec.name: roles[spec.name] for spec in kernel.inputs if spec.name in roles}


def meet(known: InputRole | None, role: InputRole) -> InputRole:
    """Return the role of a value with two readers: an index suits both, otherwise the first known role counts."""
    if known is None or (known.kind, role.kind) != ("index", "index"):
        return known or role
    ignored = known.ignored if known.ignored == role.ignored else None
    return InputRole("index", min(known.limit, role.limit), max(known.least, role.least), ignored)


def _role_of(word: str, position: int, node: KernelNode, shapes: Shapes, own: InputRole | None) -> InputRole | None:
    if (find := READERS.get((word, position))) is not None:
        return find(node, shapes)
    if own is None:
        return None
    if word in LAYOUTS:
        return own if position == 0 else None
    if own.kind == "positive" and word in _KEEP_POSITIVE:
        return own
    return None


def _note_places(node: KernelNode, shapes: Shapes, roles: dict[str, InputRole]) -> None:
    """Record the indices of ``x[i, j]``: each along its own axis."""
    indexed, places = node.args[0], node.args[1]
    if not isinstance(indexed, Ref) or not isinstance(places, list) or indexed.name not in shapes:
        return
    for axis, place in enumerate(places):
        if isinstance(place, Ref) and axis < len(shapes[indexed.name]):
            size = shapes[indexed.name][axis]
            roles[place.name] = meet(roles.get(place.name), InputRole("index", size, -size))

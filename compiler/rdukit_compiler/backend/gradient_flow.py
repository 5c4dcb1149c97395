"""What autograd would say of the tensors of a record: it is not asked, as a record needs no gradients.

A tensor and its views require a gradient together, from the write on that brought one; so what is kept here belongs to
the tensor that owns the memory, and follows the record in order. What ``detach`` gives is a tensor of its own.
"""

from collections.abc import Sequence
from operator import getitem
from typing import Any, Final, NoReturn

import torch
from torch import fx

from rdukit.errors import UnsupportedOperator
from rdukit_compiler.backend.record_marks import NO_GRAD_META

_DETACHED: Final = frozenset({"aten.detach.default", "aten.detach_.default"})
#: Operators that look at a tensor's form alone.
_UNFOLLOWED: Final = frozenset(
    "zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full new_empty "
    "new_empty_strided".split()
)


class GradientFlow:
    """Follows a record while it grows.

    Args:
        followed: which of the record's placeholders stand for tensors that require a gradient.
    """

    def __init__(self, followed: Sequence[bool]) -> None:
        self._followed = followed
        self._placeholders = 0
        self._last: fx.Node | None = None
        #: Node → the node that owns its memory, as autograd sees it.
        self._owners: dict[fx.Node, fx.Node] = {}
        #: Owners that require a gradient now.
        self._carrying: set[fx.Node] = set()

    def requires_gradient(self, node: fx.Node) -> bool:
        """Whether the tensor of ``node`` requires a gradient now."""
        self._read_on(node.graph)
        return self._owners.get(node) in self._carrying and _is_differentiable(node)

    def is_leaf(self, node: fx.Node) -> bool:
        """Whether no operator made the tensor of ``node``, as far as autograd knows."""
        while _is_in_place(node) and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        return node.op == "placeholder" or NO_GRAD_META in node.meta or not self.requires_gradient(node)

    def _read_on(self, graph: fx.Graph) -> None:
        node = next(iter(graph.nodes), None) if self._last is None else self._last.next
        while node is not None and node.op != "root":
            self._read(node)
            self._last, node = node, node.next

    def _read(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._owners[node] = node
            if self._placeholders < len(self._followed) and self._followed[self._placeholders]:
                self._carrying.add(node)
            self._placeholders += 1
            return
        base, op, is_untracked = _base_of(node), str(node.target), NO_GRAD_META in node.meta
        if base is None or ((op in _DETACHED or is_untracked) and not _is_in_place(node)):
            self._owners[node] = node
            is_cut = op in _DETACHED or (is_untracked and base is None)
            if not is_cut and self._any_carries(node, None) and _is_followed(node):
                self._carrying.add(node)  # of a view that was taken while gradients were off, torch says so too
            return
        owner = self._owners[node] = self._owners[base]
        if op in _DETACHED:
            self._carrying.discard(owner)
        elif _is_in_place(node) and not is_untracked and self._any_carries(node, base) and _is_differentiable(node):
            self._carrying.add(owner)

    def _any_carries(self, node: fx.Node, but: fx.Node | None) -> bool:
        return any(
            self._owners.get(n) in self._carrying and _is_differentiable(n) for n in node.all_input_nodes if n != but
        )


class UnknownFunction:
    """In the place of ``grad_fn`` of a tensor that an operator made: there is one, and nothing can be asked of it."""

    def _refuse(self, name: str) -> NoReturn:
        raise UnsupportedOperator(
            f"forward looks at grad_fn.{name}: autograd's own graph is not made while a model is traced; compare "
            "grad_fn with None, ask requires_grad or is_leaf, or hook the tensor itself (register_hook)"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(name)


def _base_of(node: fx.Node) -> fx.Node | None:
    """What ``node`` is a view of, or overwrites; None if it has memory of its own."""
    if node.op != "call_function" or not node.args or not isinstance(source := node.args[0], fx.Node):
        return None
    if node.target is getitem:
        held_by = source.args[0] if source.args else None
        if not isinstance(source := held_by, fx.Node):
            return None
    made, held = node.meta.get("val"), source.meta.get("val")
    if not isinstance(made, torch.Tensor) or not isinstance(held, torch.Tensor):
        return None
    return source if made.untyped_storage()._cdata == held.untyped_storage()._cdata else None


def _is_in_place(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable) and bool(node.args)


def _is_followed(node: fx.Node) -> bool:
    word = str(node.target).partition(".")[2].partition(".")[0]
    return word not in _UNFOLLOWED and (_is_differentiable(node) or not isinstance(node.meta.get("val"), torch.Tensor))


def _is_differentiable(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex()

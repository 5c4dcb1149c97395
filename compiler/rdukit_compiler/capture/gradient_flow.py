"""Derives from a record which tensors require a gradient: autograd is off while the record is made.

A tensor and its views share one flag, which belongs to the tensor that owns the memory. A write of a value that
requires a gradient sets it; calls are read in order. A detached tensor has a flag of its own. Parameters may be frozen
for a while: ``requires_grad_`` and the attribute ``requires_grad`` call this module, and a value read from a frozen
parameter has no gradient.

Autograd is on where forward computes a gradient itself. It keeps tensors from inside composite operators, so these are
recorded as the calls that they consist of. Source: ours.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from operator import getitem
from typing import Any, Final, NoReturn

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from rdukit.errors import TraceError, UnsupportedOperator
from rdukit.pef.kernel import parse_operator
from rdukit_compiler.capture.record_nodes import NO_GRAD_META, shares_memory
from rdukit_compiler.torch_private import OpOverload, has_kernel_for_key

_DETACHED: Final = frozenset({"aten.detach.default", "aten.detach_.default"})
#: Operators that read only a tensor's shape and dtype.
_UNFOLLOWED: Final = frozenset(
    "zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full new_empty "
    "new_empty_strided".split()
)

#: torch's functions that set whether a tensor requires a gradient: (tensor, value).
SAYS_REQUIRES_GRAD: Final = frozenset({
    torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
})  # fmt: skip
#: Metadata of the node that a frozen tensor stands for: the tensor's former entry in the tracker, and torch's own flag.
_FROZEN_META: Final = "rdukit_frozen"
#: Composite operators that the record keeps undivided: they update statistics, have a rate that a run may change,
#: decide about precision by their arguments, or read values.
_WHOLE: Final = frozenset({
    "aten::batch_norm", "aten::instance_norm", "aten::dropout", "aten::feature_dropout", "aten::to", "aten::type_as",
    "aten::ctc_loss", "aten::is_nonzero", "aten::item", "aten::data", "aten::set_data",
})  # fmt: skip
#: Operators of autograd whose last argument selects the gradients. A graph has no results that are None, so it computes
#: all gradients; unread ones are dropped later.
MASKED: Final = frozenset({
    torch.ops.aten.convolution_backward.default, torch.ops.aten.native_layer_norm_backward.default,
})  # fmt: skip


class GradientFlow:
    """Tracks which tensors of a growing record require a gradient.

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
        """Return whether the tensor of ``node`` requires a gradient now."""
        self._read_on(node.graph)
        return self._owners.get(node) in self._carrying and _is_differentiable(node)

    def is_leaf(self, node: fx.Node) -> bool:
        """Return whether no operator made the tensor of ``node``, as far as autograd knows."""
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
                self._carrying.add(node)  # also a view that was taken while gradients were off, as in torch
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
    """Stand-in for ``grad_fn`` of a tensor that an operator made: it exists, but has no attributes."""

    def _refuse(self, name: str) -> NoReturn:
        raise UnsupportedOperator(
            f"forward reads grad_fn.{name}, but autograd builds no graph during a trace; compare grad_fn with None, "
            "read requires_grad or is_leaf, or hook the tensor itself (register_hook)"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(name)


def _base_of(node: fx.Node) -> fx.Node | None:
    """Find the node that ``node`` is a view of, or overwrites; None if it has memory of its own."""
    if node.op != "call_function" or not node.args or not isinstance(source := node.args[0], fx.Node):
        return None
    if node.target is getitem:
        held_by = source.args[0] if source.args else None
        if not isinstance(source := held_by, fx.Node):
            return None
    return source if shares_memory(node, source) else None


def _is_in_place(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable) and bool(node.args)


def _is_followed(node: fx.Node) -> bool:
    word = parse_operator(str(node.target)).word
    return word not in _UNFOLLOWED and (_is_differentiable(node) or not isinstance(node.meta.get("val"), torch.Tensor))


def _is_differentiable(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex()


def set_requires_grad(tracker: Any, flow: GradientFlow, tensor: Any, value: bool = True) -> bool:
    """Record whether ``tensor`` requires a gradient from now on. Returns False where torch has to record it.

    Args:
        flow: gradient flow of the record.
    Raises:
        RuntimeError: ``value`` is False, but ``tensor`` is computed from tensors that require a gradient.
        UnsupportedOperator: ``value`` is True for a parameter that was frozen when the record began.
    """
    entry = tracker.get(tensor)
    if entry is None:
        return False
    node = entry.proxy.node
    if _FROZEN_META in node.meta:
        if value:
            tracker[tensor], flag = node.meta[_FROZEN_META]
            torch.Tensor.requires_grad_(tensor, flag)
        return True
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    carries = flow.requires_gradient(node)
    if node.op != "placeholder" and not is_parameter:
        if carries and not value and not tensor.requires_grad:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables; use detach() for a value without gradient"
            )
        return carries
    if not carries:
        if is_parameter and value:
            name = getattr(tensor, "sn_name", "")
            raise UnsupportedOperator(
                f"forward unfreezes parameter {name!r}, which was frozen when the model was traced; call "
                "requires_grad_(True) before compile and trace"
            )
        return False
    if not value:
        flag = bool(tensor.requires_grad)
        frozen = tracker[tensor.detach()]
        frozen.proxy.node.meta[_FROZEN_META] = entry, flag
        torch.Tensor.requires_grad_(tensor, False)
        tracker[tensor] = frozen
    return True


def check_frozen(stand_ins: Mapping[str, torch.Tensor]) -> None:
    """Check that forward leaves no parameter frozen that it read unfrozen.

    Args:
        stand_ins: path of a parameter → the tensor that stands for it.
    Raises:
        TraceError: forward read a parameter and then froze it until its end: the next call would read it frozen.
    """
    mode = get_proxy_mode()
    assert mode is not None
    for path, tensor in stand_ins.items():
        entry = mode.tracer.tensor_tracker.get(tensor)
        frozen = entry.proxy.node.meta.get(_FROZEN_META) if entry is not None else None
        if frozen is not None and any(_FROZEN_META not in user.meta for user in frozen[0].proxy.node.users):
            raise TraceError(
                f"forward freezes parameter {path!r} after its use and leaves it frozen, so the next call would have "
                "other gradients; call requires_grad_(True) before forward ends, or freeze it before it is used"
            )


@cache
def is_composite(func: Any) -> bool:
    """Return whether torch composes the operator of others, whose gradients autograd knows."""
    return (
        isinstance(func, OpOverload)
        and not func._schema.is_mutable
        and func._schema.name not in _WHOLE
        and has_kernel_for_key(str(func._name), "CompositeImplicitAutograd")
    )


def is_followed(value: object) -> bool:
    """Return whether autograd follows a tensor inside ``value`` while it is recorded."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if isinstance(value, dict):
        return any(map(is_followed, value.values()))
    return isinstance(value, list | tuple) and any(map(is_followed, value))


def unmasked(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with which an operator of ``MASKED`` computes all its gradients."""
    if func is torch.ops.aten.convolution_backward.default and args[3] is None:
        return (*args[:3], [args[0].shape[1]], *args[4:-1], [True, True, True])  # the bias has the shape [channels]
    return (*args[:-1], [True, True, True])

"""Fuses batch norms and ReLUs into the convolutions of a traced inference kernel; results keep their meaning.

A batch norm with kept statistics scales the weights and shifts the result; a ReLU is applied as the result is written;
images lie channels last from one convolution to the next; a transposed convolution that does not overlap is a product.
The scale is computed in each call, from the parameters: a library holds none of them. Only native kernels are
rewritten; the graph that a PEF keeps has ATen's operators. Source: ours.
"""

import operator
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx
from torch.fx.node import map_arg

from rdukit_compiler.backend.native_operators import operator_named
from rdukit_compiler.backend.routes import Routes
from rdukit_compiler.operators.naming import aten_names
from rdukit_compiler.torch_private import OpOverload, has_onednn

aten = torch.ops.aten

_CONVOLUTION: Final = aten.convolution.default
_BATCH_NORMS: Final = frozenset(
    {aten.native_batch_norm.default, aten._native_batch_norm_legit_no_training.default, aten.batch_norm.default}
)
#: Operators that leave images in the order in which they get them.
_KEEPS_ORDER: Final = frozenset(
    {
        _CONVOLUTION, aten.relu.default, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor,
        aten.cat.default, aten.max_pool2d_with_indices.default, aten.avg_pool2d.default, aten.silu.default,
        aten.sigmoid.default, aten.gelu.default, aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default,
        aten.native_batch_norm.default, aten._native_batch_norm_legit_no_training.default,
        aten._to_copy.default, torch.ops.prims.convert_element_type.default,
    }
)  # fmt: skip


def may_fuse(module: fx.GraphModule) -> bool:
    """Return whether ``choose_convolutions`` could do something; ``module`` may hold composite operators."""
    names = aten_names(module)
    if any("backward" in name for name in names):
        return False
    return any(name.startswith("conv") for name in names) and any("batch_norm" in n or "relu" in n for n in names)


def choose_convolutions(module: fx.GraphModule, routes: Routes) -> bool:
    """Rewrite ``module``, whose nodes carry their (fake) tensors in ``meta["val"]`` and are not composite, in place.

    Returns:
        Whether anything was changed; False if no convolution has a batch norm or a ReLU to absorb.
    """
    graph = module.graph
    if not has_onednn or any(_changes_inputs(node) for node in graph.nodes):
        return False
    graph.eliminate_dead_code()
    chosen = [node for node in graph.nodes if _is_plain(node, routes)]
    if not any(_find_batch_norm(node) or _find_relu(node) for node in chosen):
        return False
    ours = {_fuse(node) for node in chosen}
    makers = set()
    for node in list(graph.nodes):
        if _is_apart(node):
            taker, maker = _rewrite_transposed(node)
            ours.add(taker)
            makers.add(maker)
    _keep_channels_last(graph, ours, makers)
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()
    return True


def _changes_inputs(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _is_plain(node: fx.Node, routes: Routes) -> bool:
    """Return whether ``node`` is a convolution of images, neither grouped nor transposed, that is computed in f32."""
    if node.target is not _CONVOLUTION or node.meta["val"].dim() != 4:
        return False
    dtype, transposed, groups = node.meta["val"].dtype, node.args[6], node.args[8]
    is_wide = dtype == torch.float32 or (dtype == torch.bfloat16 and routes.bf16 == "f32")
    return bool(is_wide and not transposed and groups == 1)


def _find_batch_norm(node: fx.Node) -> fx.Node | None:
    """Find the result of a batch norm with kept statistics that alone reads the convolution ``node``."""
    norm = _find_next(node)
    if norm is None or norm.target not in _BATCH_NORMS or _without_casts(node_of(norm.args[0])) is not node:
        return None
    if norm.target is not aten._native_batch_norm_legit_no_training.default and norm.args[5]:
        return None
    if norm.target is aten.batch_norm.default:
        return norm if None not in norm.args[3:5] else None
    made = _find_only_user(norm)
    is_result = made is not None and made.target is operator.getitem and made.args[1] == 0
    return made if is_result else None


def _find_relu(node: fx.Node) -> fx.Node | None:
    user = _find_next(node)
    return user if user is not None and user.target is aten.relu.default else None


def _find_next(node: fx.Node) -> fx.Node | None:
    """Find the only user of ``node``, or of ``node`` in another precision."""
    user = _find_only_user(node)
    while user is not None and _is_cast(user):
        user = _find_only_user(user)
    return user


def _without_casts(node: fx.Node) -> fx.Node:
    while _is_cast(node):
        node = node_of(node.args[0])
    return node


def _is_cast(node: fx.Node) -> bool:
    return node.target is aten._to_copy.default and set(node.kwargs) == {"dtype"}


def _find_only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


class _Writer:
    """Adds calls before a node of a graph, with their fake tensors."""

    def __init__(self, before: fx.Node) -> None:
        self._before = before

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self._before.graph.inserting_before(self._before):
            made = self._before.graph.call_function(target, args, kwargs)
        given_args = map_arg(args, lambda node: node.meta["val"])
        given_kwargs = map_arg(kwargs, lambda node: node.meta["val"])
        made.meta["val"] = target(*given_args, **given_kwargs)
        return made

    def float(self, value: fx.Node) -> fx.Node:
        """Return ``value`` in f32."""
        if value.meta["val"].dtype == torch.float32:
            return value
        return self(torch.ops.prims.convert_element_type.default, value, torch.float32)


def _fuse(node: fx.Node) -> fx.Node:
    """Replace a convolution, and the batch norm and ReLU that it can absorb, by our operator; return its node."""
    result = _find_batch_norm(node)
    norm = None
    if result is not None:
        norm = node_of(result.args[0]) if result.target is operator.getitem else result
    last = result or node
    relu = _find_relu(last)
    last = relu or last
    write = _Writer(last)
    x, w = node_of(node.args[0]), node_of(node.args[1])
    shift = write.float(node_of(node.args[2])) if node.args[2] is not None else None
    scale = None
    if norm is not None:
        scale, shift = _scale_and_shift(write, norm, shift)
    strides, paddings, dilations = (_pair(node.args[place]) for place in (3, 4, 5))
    made = write(
        operator_named("rdukit_convolution"), write.float(x), w, scale, shift, *strides, *paddings, *dilations,
        relu is not None,
    )  # fmt: skip
    given = made
    if last.meta["val"].dtype != torch.float32:
        given = write(torch.ops.prims.convert_element_type.default, made, last.meta["val"].dtype)
    _hand_over(last, given)
    return made


def _scale_and_shift(write: _Writer, norm: fx.Node, bias: fx.Node | None) -> tuple[fx.Node, fx.Node]:
    """Return scale and shift of each channel in f32: ``(conv + bias - mean) * scale + beta`` is ``conv * scale +
    shift``.
    """
    gamma, beta = (write.float(value) if isinstance(value, fx.Node) else None for value in norm.args[1:3])
    mean, variance = (write.float(node_of(value)) for value in norm.args[3:5])
    is_short = norm.target is aten._native_batch_norm_legit_no_training.default
    scale = write(aten.rsqrt.default, write(aten.add.Tensor, variance, norm.args[6 if is_short else 7]))
    if gamma is not None:
        scale = write(aten.mul.Tensor, scale, gamma)
    centre = write(aten.neg.default, mean) if bias is None else write(aten.sub.Tensor, bias, mean)
    shift = write(aten.mul.Tensor, centre, scale)
    return scale, shift if beta is None else write(aten.add.Tensor, shift, beta)


def _is_apart(node: fx.Node) -> bool:
    """Return whether ``node`` is a transposed convolution of images, not grouped, without overlap: stride and kernel
    agree.
    """
    if node.target is not _CONVOLUTION or node.meta["val"].dim() != 4:
        return False
    _, w, _, stride, padding, dilation, transposed, more, groups = node.args
    kernel = list(node_of(w).meta["val"].shape[2:])
    return bool(
        transposed and groups == 1 and list(_pair(stride)) == kernel
        and not any((*_pair(padding), *_pair(more))) and set(_pair(dilation)) == {1}
    )  # fmt: skip


def _rewrite_transposed(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Write x [B, I, Y, X] and w [I, O, H, W] as a product [B Y X, I] x [I, H W O], laid out as [B, O, Y H, X W].

    Returns:
        The node that reads an image channels last, and the node that writes one.
    """
    x, w = node_of(node.args[0]), node_of(node.args[1])
    (batch, inputs, rows, columns), (_, outputs, height, width) = x.meta["val"].shape, w.meta["val"].shape
    write = _Writer(node)
    points = write(aten.permute.default, x, [0, 2, 3, 1])
    flat = write(aten.reshape.default, points, [batch * rows * columns, inputs])
    weights = write(aten.reshape.default, write(aten.permute.default, w, [0, 2, 3, 1]), [inputs, -1])
    made = write(aten.mm.default, flat, weights)
    made = write(aten.view.default, made, [batch, rows, columns, height, width, outputs])
    if node.args[2] is not None:
        made = write(aten.add.Tensor, made, node.args[2])
    made = write(aten.permute.default, made, [0, 1, 3, 2, 4, 5])
    made = write(aten.reshape.default, made, [batch, rows * height, columns * width, outputs])
    made = write(aten.permute.default, made, [0, 3, 1, 2])
    _hand_over(node, made)
    return points, made


def _keep_channels_last(graph: fx.Graph, ours: set[fx.Node], makers: set[fx.Node]) -> None:
    """Keep images channels last between ``ours`` and operators that keep the order; other users get the former layout.

    Args:
        makers: nodes that make images channels last of values of another kind.
    """
    inside = {node for node in graph.nodes if node in ours or node in makers or _keeps_order(node)}
    turned: dict[fx.Node, fx.Node] = {}
    back: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node in makers:
            continue
        if node in inside:
            for operand in _images(node):
                if operand not in inside:
                    if operand not in turned:
                        turned[operand] = _in_order(operand, torch.channels_last)
                    node.replace_input_with(operand, turned[operand])
        else:
            for operand in node.all_input_nodes:
                if operand in inside and _is_image(operand) and operand.meta["val"].is_contiguous():
                    if operand not in back:
                        back[operand] = _in_order(operand, torch.contiguous_format)
                    node.replace_input_with(operand, back[operand])


def _keeps_order(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return _keeps_order(node_of(node.args[0]))
    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) else value
    return node.target in _KEEPS_ORDER and isinstance(first, torch.Tensor) and first.dim() == 4


def _is_image(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 4


def _images(node: fx.Node) -> Sequence[fx.Node]:
    """Return the operands of ``node`` whose order matters: not the weights of a convolution."""
    has_weights = node.target in {_CONVOLUTION, operator_named("rdukit_convolution")}
    operands = [node_of(node.args[0])] if has_weights else node.all_input_nodes
    return [operand for operand in operands if _is_image(operand)]


def _in_order(node: fx.Node, order: torch.memory_format) -> fx.Node:
    after = node
    while after.next.op == "placeholder":
        after = after.next
    with node.graph.inserting_after(after):
        made = node.graph.call_function(aten.clone.default, (node,), {"memory_format": order})
    made.meta["val"] = aten.clone.default(node.meta["val"], memory_format=order)
    return made


def _hand_over(node: fx.Node, made: fx.Node) -> None:
    """Replace ``node`` by ``made``, and note in ``meta`` the strides that others expected of it."""
    made.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def _pair(value: Any) -> tuple[int, int]:
    """Return a stride, padding or dilation for rows and columns."""
    values = list(value)
    return (values[0], values[-1])


def node_of(value: Any) -> fx.Node:
    """Return ``value``, which is a node."""
    assert isinstance(value, fx.Node)
    return value

"""Rewrites convolutions of a traced kernel to ours where samples fit the processor's cache; results keep their meaning.

oneDNN reorders images and weights in each call, and unfolds images of few channels. For the small models that people
train on a processor, ``native_source/small_convolution.h`` needs half to two thirds of its time. Inductor lays
all images of a kernel out channels last if the kernel holds a convolution of torch's. Therefore all convolutions of a
kernel are rewritten, or none. Only native kernels are rewritten. Source: ours.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch import fx

from rdukit_compiler.backend.native_operators import operator_named
from rdukit_compiler.operators.naming import aten_word

aten = torch.ops.aten

_FORWARD: Final = aten.convolution.default
_BACKWARD: Final = aten.convolution_backward.default

#: Floats of a padded sample, and of its result, that fit the cache with the weights; for more, oneDNN is as fast.
_MAX_FLOATS: Final = 16384
#: Least positions of a batch for which laying out the weights pays.
_LEAST_POSITIONS: Final = 128
#: Positions per block, padding between the rows of an image included, and the least share of them that must be wanted.
_BLOCK: Final = 16
_LEAST_WANTED: Final = 0.5


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of one layer; lists by axis after batch and channels, one or two of them."""

    batch: int
    channels: int
    filters: int
    sizes: tuple[int, ...]
    taps: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def reach(self) -> tuple[int, ...]:
        """Return the distance from an axis' first tap to its last."""
        return tuple(step * (taps - 1) for step, taps in zip(self.dilation, self.taps, strict=True))

    def padded(self) -> tuple[int, ...]:
        return tuple(size + 2 * pad for size, pad in zip(self.sizes, self.padding, strict=True))

    def made(self) -> tuple[int, ...]:
        """Return the sizes of the result's axes."""
        return tuple(size - reach for size, reach in zip(self.padded(), self.reach(), strict=True))


def may_hold_small_convolutions(module: fx.GraphModule) -> bool:
    """Return whether ``choose_small_convolutions`` could do something; ``module`` may hold composite operators."""
    return any("conv" in str(node.target) for node in module.graph.nodes if node.op == "call_function")


def choose_small_convolutions(module: fx.GraphModule) -> bool:
    """Rewrite ``module``, whose nodes carry their (fake) tensors in ``meta["val"]`` and are not composite, in place.

    Returns:
        Whether it was changed.
    """
    graph = module.graph
    graph.eliminate_dead_code()
    found = [node for node in graph.nodes if node.op == "call_function" and "conv" in aten_word(node.target)]
    if not found or not all(_is_ours(node) for node in found):
        return False
    for node in found:
        if node.target is _FORWARD:
            _rewrite_forward(node)
        else:
            _rewrite_backward(node)
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()
    return True


def is_small(layer: Geometry, needs_input_gradient: bool) -> bool:
    """Return whether the layer is one that ours computes faster."""
    made, padded = layer.made(), layer.padded()
    if min(*made, *layer.sizes, layer.batch, layer.channels, layer.filters) < 1:
        return False
    if needs_input_gradient and any(pad > reach for pad, reach in zip(layer.padding, layer.reach(), strict=True)):
        return False
    # A run goes from the first position of an image to its last.
    run = (prod(made[:-1]) - 1) * padded[-1] + made[-1]
    blocks = -(-run // _BLOCK) * _BLOCK
    return (
        layer.channels * prod(padded) <= _MAX_FLOATS
        and layer.filters * blocks <= _MAX_FLOATS
        and layer.batch * prod(made) >= _LEAST_POSITIONS
        and prod(made) >= _LEAST_WANTED * blocks
    )


def _is_ours(node: fx.Node) -> bool:
    if node.target is _FORWARD:
        x, w, needs_input = node.args[0], node.args[1], False
        stride, padding, dilation, transposed, _, groups = node.args[3:9]
    elif node.target is _BACKWARD:
        _, x, w, _, stride, padding, dilation, transposed, _, groups, wanted = node.args
        needs_input = bool(wanted[0])  # type: ignore[index]
        if any(user.target is not operator.getitem for user in node.users):
            return False
    else:
        return False
    values = [operand.meta["val"] for operand in node.all_input_nodes]
    if any(value.dtype != torch.float32 for value in values):
        return False
    image, weight = (operand.meta["val"] for operand in (x, w))  # type: ignore[union-attr]
    if transposed or groups != 1 or any(step != 1 for step in _integers(stride)) or image.dim() not in {3, 4}:
        return False
    axes = image.dim() - 2
    layer = Geometry(
        image.shape[0], image.shape[1], weight.shape[0], tuple(image.shape[2:]), tuple(weight.shape[2:]),
        _by_axis(padding, axes), _by_axis(dilation, axes),
    )  # fmt: skip
    return is_small(layer, needs_input)


def _rewrite_forward(node: fx.Node) -> None:
    x, w, bias, _, padding, dilation, *_ = node.args
    relu = _find_relu(node)
    last = relu if relu is not None else node
    made = _call(
        node, "rdukit_small_convolution", (x, w, bias, *_both_axes(padding, 0), *_both_axes(dilation, 1), bool(relu)),
        last.meta["val"],
    )  # fmt: skip
    last.replace_all_uses_with(made)


def _rewrite_backward(node: fx.Node) -> None:
    given, x, w, _, _, padding, dilation, *_ = node.args
    assert isinstance(given, fx.Node) and isinstance(w, fx.Node)
    dy, mask = given.args[:2] if _is_rectified_by_us(given) else (given, None)
    args = (x, dy, mask, *_both_axes(padding, 0), *_both_axes(dilation, 1))
    gradients, wanted = node.meta["val"], {user.args[1] for user in node.users}
    if 0 in wanted:
        first, made = 0, _call(node, "rdukit_small_convolution_backward", (*args, w), gradients)
    else:
        taps = _both_axes(w.meta["val"].shape[2:], 1)
        first, made = 1, _call(node, "rdukit_small_convolution_weight", (*args, *taps), gradients[1:])
    for item in list(node.users):
        index = item.args[1]
        assert isinstance(index, int)
        item.replace_all_uses_with(_call(node, operator.getitem, (made, index - first), item.meta["val"]))


def _find_relu(node: fx.Node) -> fx.Node | None:
    """Find the ReLU that alone uses ``node``."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is aten.relu.default else None


def _is_rectified_by_us(dy: fx.Node) -> bool:
    """Return whether ``dy`` applies a ReLU's mask to a gradient that one of our calls wrote: ours masks it while
    reading.

    A loop of inductor's writes any other gradient, and masks it on the way.
    """
    if dy.target is not aten.threshold_backward.default or dy.args[2] != 0 or len(dy.users) != 1:
        return False
    part = dy.args[0]
    if not isinstance(part, fx.Node) or part.target is not operator.getitem or not isinstance(part.args[0], fx.Node):
        return False
    return part.args[0].target is operator_named("rdukit_small_convolution_backward")


def _call(before: fx.Node, target: Any, args: Sequence[Any], value: Any) -> fx.Node:
    with before.graph.inserting_before(before):
        made = before.graph.call_function(operator_named(target) if isinstance(target, str) else target, tuple(args))
    made.meta["val"] = value
    return made


def _integers(value: Any) -> tuple[int, ...]:
    return tuple(int(item) for item in value)


def _by_axis(value: Any, axes: int) -> tuple[int, ...]:
    given = _integers(value)
    return given * axes if len(given) == 1 else given


def _both_axes(value: Any, missing: int) -> tuple[int, ...]:
    """Return the values of y and x; a line has no y."""
    given = _integers(value)
    return (missing, *given) if len(given) == 1 else given

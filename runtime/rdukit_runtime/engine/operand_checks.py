"""Checks of operands that some of torch's operators trust unchecked, for PEFs from elsewhere.

Torch's own callers always satisfy them. A hand-made PEF may not, and the operators would then read or write outside of
their operands. PEFs that this installation compiled run without the checks. Found by running changed PEFs and by
reading torch's kernels (2.13); other operators check their operands themselves, as far as we know.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from math import prod
from typing import Any, Final

import torch

from rdukit.errors import PefCorrupt
from rdukit.pef.operators import find_signature

#: Operator → what holds of its arguments, by name.
Check = Callable[[Mapping[str, Any]], bool]


def checked(op: str, called: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``called`` with the operator's check before each call, if it has one.

    The call raises ``PefCorrupt`` if the check fails.
    """
    check = _CHECKS.get(op)
    signature = find_signature(op)
    if check is None or signature is None:
        return called
    names = [parameter.name for parameter in signature.positional]

    @wraps(called)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not check({**dict(zip(names, args, strict=False)), **kwargs}):
            raise PefCorrupt(f"the PEF passes {op} operands of mismatched shapes, or indices out of range")
        return called(*args, **kwargs)

    return call


def _alike(*names: str) -> Check:
    """Check that the operands have one shape."""
    return lambda given: len({tuple(given[name].shape) for name in names}) == 1


def _within(index: torch.Tensor, end: int, start: int = 0) -> bool:
    return not index.numel() or (start <= int(index.min()) and int(index.max()) < end)


def _unpools(axes: int) -> Check:
    """Check that indices, one for each element of the gradient, lie in a map of ``axes`` axes."""

    def check(given: Mapping[str, Any]) -> bool:
        x, indices, dy = given["self"], given["indices"], given["grad_output"]
        return (
            dy.shape == indices.shape and dy.dim() == x.dim() > axes and dy.shape[:-axes] == x.shape[:-axes]
            and _within(indices, prod(x.shape[-axes:]))
        )  # fmt: skip

    return check


def _attention(given: Mapping[str, Any]) -> bool:
    q, k, v = given["query"], given["key"], given["value"]
    mask = given.get("attn_mask")
    lies = q.dim() == k.dim() == v.dim() == 4 and q.shape[:2] == k.shape[:2] == v.shape[:2]
    fits = lies and k.shape[2] == v.shape[2] and q.shape[3] == k.shape[3] and min(q.shape) > 0 and min(k.shape) > 0
    if mask is not None:
        wanted = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        fits = fits and mask.dim() in (2, 4) and all(
            m in (1, w) for m, w in zip(reversed(mask.shape), reversed(wanted), strict=False)
        )  # fmt: skip
    if "out" in given:
        out = (*q.shape[:3], v.shape[3])
        fits = fits and tuple(given["out"].shape) == tuple(given["grad_out"].shape) == out
        fits = fits and tuple(given["logsumexp"].shape) == tuple(q.shape[:3])
    return bool(fits and v.shape[3] == q.shape[3])


def _layer_norm(given: Mapping[str, Any]) -> bool:
    x, size = given["input"], list(given["normalized_shape"])
    rows = prod(x.shape[: x.dim() - len(size)])
    fits = given["grad_out"].shape == x.shape and list(x.shape[x.dim() - len(size) :]) == size
    fits = fits and given["mean"].numel() == rows == given["rstd"].numel()
    return fits and all(given.get(name) is None or list(given[name].shape) == size for name in ("weight", "bias"))


def _group_norm(given: Mapping[str, Any]) -> bool:
    x, n, c, group = given["input"], given["N"], given["C"], given["group"]
    fits = given["grad_out"].shape == x.shape and n * c * given["HxW"] == x.numel() and x.shape[:2] == (n, c)
    fits = fits and group > 0 and c % group == 0 and given["mean"].numel() == n * group == given["rstd"].numel()
    return bool(fits and (given.get("weight") is None or given["weight"].numel() == c))


def _batch_norm(given: Mapping[str, Any]) -> bool:
    x = given["input"]
    names = ("weight", "running_mean", "running_var", "save_mean", "save_invstd")
    fits = given["grad_out"].shape == x.shape and x.dim() > 1
    # A norm that does not train saves nothing in torch.
    return bool(
        fits and all(given.get(n) is None or given[n].numel() in (0, x.shape[1]) for n in names)
        and (given["save_mean"] is None or given["save_mean"].numel() == x.shape[1] or not given["train"])
    )  # fmt: skip


def _weight_norm(given: Mapping[str, Any]) -> bool:
    v, g, norms = given["saved_v"], given["saved_g"], given["saved_norms"]
    return bool(given["grad_w"].shape == v.shape) and g.numel() == norms.numel() == v.shape[given["dim"]]


def _classes(given: Mapping[str, Any]) -> bool:
    """Targets of a loss are classes, or ignored."""
    x, target = given["self"], given["target"]
    classes = x.shape[1] if x.dim() > 1 else x.shape[0]
    counted = target[target != given["ignore_index"]]
    weight = given.get("weight")
    fits = target.numel() == x.numel() // max(classes, 1) and given["total_weight"].numel() == 1
    fits = (
        fits and given["grad_output"].numel() in (1, target.numel()) and (weight is None or weight.numel() == classes)
    )
    return bool(fits and (given["grad_output"].numel() == target.numel() or given["reduction"] != 0)) and _within(
        counted, classes
    )


def _bags(given: Mapping[str, Any]) -> bool:
    indices, offsets, bags = given["indices"], given["offsets"], given["offset2bag"]
    rows = given["num_weights"] if "num_weights" in given else given["weight"].shape[0]
    largest, size, count = given.get("maximum_indices"), given.get("bag_size"), given["grad"].shape[0]
    fits = indices.dim() == 1 and bags.numel() in (0, indices.numel()) and offsets.dim() == 1
    fits = fits and (size is None or size.numel() >= count) and _within(offsets, indices.numel() + 1)
    weights = given.get("per_sample_weights")
    fits = fits and (weights is None or weights.numel() == indices.numel())
    return bool(fits) and _within(indices, rows) and _within(bags, count) and (
        largest is None or (largest.shape[:1] in ((0,), (count,)) and _within(largest, rows, -1))
    )  # fmt: skip


def _ctc(given: Mapping[str, Any]) -> bool:
    x, targets = given["log_probs"], given["targets"]
    lengths, wanted = list(given["input_lengths"]), list(given["target_lengths"])
    batch = x.shape[1] if x.dim() == 3 else 1
    fits = (
        len(lengths) == len(wanted) == batch
        and all(0 <= n <= x.shape[0] for n in lengths)
        and min(wanted, default=0) >= 0
    )
    room = max(wanted, default=0) <= targets.shape[-1] if targets.dim() == 2 else sum(wanted) <= targets.numel()
    fits = fits and room and (targets.dim() != 2 or targets.shape[0] == batch)
    alpha = given.get("log_alpha")
    if alpha is not None:
        fits = fits and alpha.dim() == 3 and alpha.shape[0] == batch and alpha.shape[1] >= max(lengths, default=0)
        fits = (
            fits and alpha.shape[2] >= 2 * max(wanted, default=0) + 1 and given["neg_log_likelihood"].numel() == batch
        )
        fits = fits and given["grad"].numel() == batch
    return bool(fits and 0 <= given.get("blank", 0) < x.shape[-1]) and _within(targets, x.shape[-1])


def _pivots(given: Mapping[str, Any]) -> bool:
    """Pivots are rows, counted from 1; of a symmetric matrix with a sign."""
    matrix = next(given[name] for name in ("LU", "LU_data", "LD") if name in given)
    pivots = given["pivots"] if "pivots" in given else given["LU_pivots"]
    rows = matrix.shape[-2]
    return bool(
        pivots.dim() == matrix.dim() - 1 and pivots.shape[-1] == min(matrix.shape[-2:])
        and matrix.shape[:-2] == pivots.shape[:-1] and _within(pivots.abs(), rows + 1, 1)
    )  # fmt: skip


def _segments(given: Mapping[str, Any]) -> bool:
    """Return whether torch checks lengths and offsets itself; with ``unsafe`` it does not."""
    return not given.get("unsafe", False)


def _segments_backward(given: Mapping[str, Any]) -> bool:
    data, lengths, offsets = given["data"], given.get("lengths"), given.get("offsets")
    axis = given.get("axis", 0)
    fits = given["grad"].shape == given["output"].shape and -data.dim() <= axis < data.dim()
    if not fits:
        return False
    size = data.shape[axis]
    if lengths is not None:
        return _within(lengths, size + 1) and bool((lengths.sum(-1) == size).all())
    return offsets is not None and _within(offsets, size + 1) and bool((offsets.diff() >= 0).all())


def _sorter(given: Mapping[str, Any]) -> bool:
    sorter = given.get("sorter")
    return sorter is None or _within(sorter, given["sorted_sequence"].shape[-1])


def _pdist(given: Mapping[str, Any]) -> bool:
    count = given["self"].shape[0]
    return (
        bool(given["self"].dim() == 2) and given["grad"].numel() == given["pdist"].numel() == count * (count - 1) // 2
    )


def _cdist(given: Mapping[str, Any]) -> bool:
    a, b, d = given["x1"], given["x2"], given["cdist"]
    fits = a.dim() == b.dim() == d.dim() >= 2 and a.shape[-1] == b.shape[-1] and given["grad"].shape == d.shape
    return bool(fits and d.shape[-2:] == (a.shape[-2], b.shape[-2]) and d.shape[:-2] == a.shape[:-2] == b.shape[:-2])


_CHECKS: Final[Mapping[str, Check]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention,
    "aten.max_pool2d_with_indices_backward.default": _unpools(2),
    "aten.max_pool3d_with_indices_backward.default": _unpools(3),
    "aten.adaptive_max_pool2d_backward.default": _unpools(2),
    "aten.adaptive_max_pool3d_backward.default": _unpools(3),
    "aten.fractional_max_pool2d_backward.default": _unpools(2),
    "aten.fractional_max_pool3d_backward.default": _unpools(3),
    "aten.native_layer_norm_backward.default": _layer_norm,
    "aten.native_group_norm_backward.default": _group_norm,
    "aten.native_batch_norm_backward.default": _batch_norm,
    "aten._weight_norm_interface_backward.default": _weight_norm,
    "aten.nll_loss_backward.default": _classes,
    "aten.nll_loss2d_backward.default": _classes,
    "aten._embedding_bag_backward.default": _bags,
    "aten._embedding_bag_per_sample_weights_backward.default": _bags,
    "aten._ctc_loss.default": _ctc,
    "aten._ctc_loss_backward.default": _ctc,
    "aten.linalg_lu_solve.default": _pivots,
    "aten.linalg_ldl_solve.default": _pivots,
    "aten.lu_unpack.default": _pivots,
    "aten.segment_reduce.default": _segments,
    "aten._segment_reduce_backward.default": _segments_backward,
    "aten.searchsorted.Tensor": _sorter,
    "aten.searchsorted.Scalar": _sorter,
    "aten._pdist_backward.default": _pdist,
    "aten._cdist_backward.default": _cdist,
    "aten._softmax_backward_data.default": _alike("grad_output", "output"),
    "aten._log_softmax_backward_data.default": _alike("grad_output", "output"),
    "aten.multilabel_margin_loss_backward.default": _alike("self", "target", "is_target"),
}

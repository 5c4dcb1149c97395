"""torch's ``associative_scan`` inside forward: during a trace it accepts SambaTensors.

It is a Python function, not an operator, and accepts only torch's own tensors. Here it becomes calls of the program's
function: logarithmically many in the length if the function treats positions alike, otherwise one for each step.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from rdukit.errors import TraceError
from sambaflow.samba.sambatensor import SambaTensor, unwrap
from sambaflow.tracing.torch_private import ASSOCIATIVE_SCAN, unset_fake_temporarily

#: Number of positions in the test of a function.
_TRIED: Final = 3

#: (leaves of the earlier part, leaves of the later part) → leaves.
Combine = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], list[torch.Tensor]]


@contextlib.contextmanager
def traced_scans() -> Iterator[None]:
    """Replace torch's scan by this module's."""
    module: Any = importlib.import_module(ASSOCIATIVE_SCAN)
    package: Any = importlib.import_module(ASSOCIATIVE_SCAN.rpartition(".")[0])
    scan = module.associative_scan
    places = [holder for holder in (module, package) if getattr(holder, "associative_scan", None) is scan]
    for holder in places:
        holder.associative_scan = associative_scan
    try:
        yield
    finally:
        for holder in places:
            holder.associative_scan = scan


def associative_scan(
    combine_fn: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """Scan as torch does, which promises only that ``combine_fn`` is associative: the order of calls may differ.

    Args:
        combine_mode: a property of ``combine_fn`` for GPUs, without meaning here.
    Raises:
        TraceError: ``xs`` holds no tensors with a dimension ``dim`` of one length.
    """
    leaves, spec = tree_flatten(tree_map(unwrap, xs))
    lengths = {leaf.shape[dim] for leaf in leaves if isinstance(leaf, torch.Tensor) and -leaf.dim() <= dim < leaf.dim()}
    if len(lengths) != 1 or not all(isinstance(leaf, torch.Tensor) and leaf.dim() for leaf in leaves) or 0 in lengths:
        raise TraceError(
            f"associative_scan over dimension {dim} of {[tuple(getattr(leaf, 'shape', ())) for leaf in leaves]}; "
            "expected tensors with equal lengths of at least 1 in this dimension"
        )
    moved = [leaf.movedim(dim, 0) for leaf in leaves]
    ordered = [leaf.flip([0]) for leaf in moved] if reverse else moved
    combine = _flat(combine_fn, spec)
    made = _in_halves(combine, ordered) if _treats_positions_alike(combine, ordered) else _in_steps(combine, ordered)
    made = [leaf.flip([0]) for leaf in made] if reverse else made
    return tree_map(SambaTensor, tree_unflatten([leaf.movedim(0, dim) for leaf in made], spec))


def _flat(combine_fn: Callable[[Any, Any], Any], spec: TreeSpec) -> Combine:
    def combine(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return tree_leaves(unwrap(combine_fn(tree_unflatten(left, spec), tree_unflatten(right, spec))))

    return combine


def _treats_positions_alike(combine: Combine, leaves: Sequence[torch.Tensor]) -> bool:
    """Test on real numbers whether the function of several positions equals the function of each.

    The test is not possible for a function that uses the program's tensors.
    """
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    with unset_fake_temporarily(), disable_proxy_modes_tracing(), torch.no_grad():
        numbers = torch.Generator().manual_seed(0)
        left, right = (
            [torch.rand(_TRIED, *leaf.shape[1:], generator=numbers).add(0.5).to(leaf.dtype) for leaf in leaves]
            for _ in range(2)
        )
        try:
            together = combine(left, right)
            parts = [combine([leaf[i] for leaf in left], [leaf[i] for leaf in right]) for i in range(_TRIED)]
            return all(
                made.shape[:1] == (_TRIED,) and torch.allclose(made, torch.stack([part[n] for part in parts]))
                for n, made in enumerate(together)
            )
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, AssertionError):
            return False


def _in_halves(combine: Combine, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Combine pairs of neighbours, scan the pairs, then combine the positions between them."""
    length = leaves[0].shape[0]
    if length < 2:
        return list(leaves)
    paired = length // 2 * 2
    odd = _in_halves(combine, combine([x[0:paired:2] for x in leaves], [x[1:paired:2] for x in leaves]))
    even = [x[:1] for x in leaves]
    if length > 2:
        between = combine([x[: (length - 1) // 2] for x in odd], [x[2::2] for x in leaves])
        even = [torch.cat([first, rest]) for first, rest in zip(even, between, strict=True)]
    return [_interleaved(a, b) for a, b in zip(even, odd, strict=True)]


def _interleaved(even: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    """Return a0 b0 a1 b1 …; ``even`` may have one more."""
    pairs = torch.stack([even[: odd.shape[0]], odd], 1).flatten(0, 1)
    return pairs if even.shape[0] == odd.shape[0] else torch.cat([pairs, even[-1:]])


def _in_steps(combine: Combine, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    steps = [[leaf[0] for leaf in leaves]]
    for step in range(1, leaves[0].shape[0]):
        steps.append(combine(steps[-1], [leaf[step] for leaf in leaves]))
    return [torch.stack(parts) for parts in zip(*steps, strict=True)]

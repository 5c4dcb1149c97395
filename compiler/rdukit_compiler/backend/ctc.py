"""The connectionist temporal classification loss: what it makes is known where its lengths are numbers.

torch's tensors without data refuse it, because lengths may be tensors. Private to torch: the registry of such tensors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_impls import register_op_impl

from rdukit.errors import UnsupportedOperator
from rdukit_compiler.backend.known_values import numbers_in

aten = torch.ops.aten


@register_op_impl(aten._ctc_loss.default)
def _made(
    mode: object, func: object, log_probs_TNC: torch.Tensor, targets: torch.Tensor, input_lengths: Sequence[int],
    target_lengths: Sequence[int], *rest: object, **options: object,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The loss of each sequence [N], and what the gradient needs [N, T, 2 L + 1] with the longest target L."""
    steps, count = log_probs_TNC.shape[:2]
    longest = max(target_lengths, default=0)
    return log_probs_TNC.new_empty(count), log_probs_TNC.new_empty(count, steps, 2 * longest + 1)


def with_known_lengths(
    func: Any, args: Sequence[Any], find: Callable[[Any], torch.Tensor | None]
) -> tuple[Any, tuple[Any, ...]]:
    """The call with numbers for lengths that are known tensors.

    Args:
        find: the values of a tensor, if they are known.
    Raises:
        UnsupportedOperator: they are not.
    """
    if func is not aten.ctc_loss.Tensor:
        return func, tuple(args)
    lengths = [find(args[2]), find(args[3])]
    if any(each is None for each in lengths):
        raise UnsupportedOperator(
            "ctc_loss has lengths that depend on data; pass numbers, in lists or in tensors that forward makes of them"
        )
    return aten.ctc_loss.IntList, (*args[:2], *(numbers_in(each) for each in lengths if each is not None), *args[4:])

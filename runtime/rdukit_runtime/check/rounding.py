"""Influence of rounding on a result: measured by moving each operator's result by its last bit.

Tests also compare torch's own results with it (``tests/fuzzing/judge.py``).
"""

from typing import Any, Final

import torch

from rdukit_runtime.engine.torch_private import TorchDispatchMode

#: Largest difference over largest magnitude that needs no further look, by the dtype of the computation.
AGREES: Final = {"f32": 2e-6, "bf16": 4e-3}
#: Relative size of the change that rounding makes to a result, by the dtype of the computation.
MOVES: Final = {"f32": 2.0**-23, "bf16": 2.0**-8}


#: Operators that add up: a sum of large numbers may be small, and its own last bit says little of its rounding.
_SUMS: Final = frozenset(
    overload
    for name in ("sum", "mean", "mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")
    for packet in [getattr(torch.ops.aten, name)]
    for overload in (getattr(packet, each) for each in packet.overloads())
)


#: Operators that subtract a mean or a maximum → the argument from which it is computed. Their own last bit does not
#: bound their rounding: they cancel the common part of numbers, and sum long rows.
_CENTERING: Final = {
    overload: place
    for name, place in {
        "native_layer_norm": 0, "native_layer_norm_backward": 1, "native_group_norm": 0,
        "native_group_norm_backward": 1, "native_batch_norm": 0, "native_batch_norm_backward": 1,
        "_native_batch_norm_legit": 0, "_softmax_backward_data": 1, "_scaled_dot_product_flash_attention_for_cpu": 0,
        "_scaled_dot_product_flash_attention_for_cpu_backward": 4,
    }.items()
    for packet in [getattr(torch.ops.aten, name)]
    for overload in (getattr(packet, each) for each in packet.overloads())
}  # fmt: skip
#: Torch's kernel of bf16 is 6e-8 off, also for smaller numbers.
_ERF: Final = torch.ops.aten.erf.default
#: Error of a sum of n numbers in last bits, over the root of n: measured with kernels of 16 lanes.
_SUM_ROUNDING: Final = 1 / 16
#: Results that are floating numbers but mean yes or no, by their places; readers refuse other values.
_FLAGS: Final = {torch.ops.aten.multilabel_margin_loss_forward.default: {1}}


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Perturbs each floating result of an operator by a random fraction of up to ``size``. Sums and products of
    matrices are perturbed relative to their summands, and norms also relative to their inputs.

    With ``rounds``, results are then rounded to bf16, where ties occur.
    """

    def __init__(self, size: float, rounds: bool, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._size = size
        self._rounds = rounds
        self._generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _CENTERING:
            place = _CENTERING[func]
            args = (*args[:place], self._moved(args[place], 0.0, is_write=False), *args[place + 1 :])
            made = func(*args, **(kwargs or {}))
            if place == 0 and len(made) == 3 and made[1].numel():  # the deviation is computed here
                made = self._moved_rows(args[0], made)
        else:
            made = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if any(result.alias_info is not None and not result.alias_info.is_write for result in returns):
            return made  # a view: its base was perturbed
        # For narrow operands torch may sum in their dtype and return a wider one, as in layer norm's gradients.
        operands = () if func is torch.ops.aten._to_copy.default else args
        narrow = max((torch.finfo(t.dtype).eps for t in operands if is_floating(t)), default=0.0)
        if func in _SUMS:
            added = func(*(each.abs() if is_floating(each) else each for each in args), **(kwargs or {}))
            several = isinstance(made, tuple)
            pairs = zip(made, added, strict=True) if several else [(made, added)]
            moved = tuple(self._moved_sum(result, of) for result, of in pairs)
            made = moved if several else moved[0]
        if isinstance(made, list | tuple):
            flags = _FLAGS.get(func, ())
            return type(made)(
                item if place in flags else self._moved(item, narrow, is_write=False) for place, item in enumerate(made)
            )
        return self._moved(made, narrow, is_write=any(result.alias_info is not None for result in returns))

    def _moved_sum(self, value: Any, summands: Any) -> Any:
        """Move a sum relative to that of its summands' magnitudes."""
        if not is_floating(value):
            return value
        part = torch.rand(value.shape, generator=self._generator).mul_(2 * self._size).sub_(self._size)
        return (value + summands * part).to(value.dtype)

    def _moved_rows(self, normed: torch.Tensor, made: Any) -> Any:
        """Move the first result as a whole by the possible error of a row's sum, which kernels add up in vectors."""
        size = self._size * (normed.numel() / made[1].numel()) ** 0.5 * _SUM_ROUNDING
        factor = 1 + size * (2 * float(torch.rand((), generator=self._generator)) - 1)
        return (made[0] * factor, *made[1:])

    def _moved(self, value: Any, narrow: float, is_write: bool) -> Any:
        if not is_floating(value) or value._is_zerotensor():
            return value
        size = max(self._size, narrow, torch.finfo(value.dtype).eps)  # moves below the last bit have no effect
        factor = torch.rand(value.shape, generator=self._generator).mul_(2 * size).add_(1 - size)
        moved = value.mul(factor)
        moved = (moved.bfloat16() if self._rounds else moved).to(value.dtype)
        return value.copy_(moved) if is_write else moved


def is_floating(value: Any) -> bool:
    """Return whether a value is a tensor of floating numbers."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


class InDouble(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes sums, products of matrices, norms, attention and ``erf`` in double precision; results keep their dtypes.

    Its results differ where single precision overflows within an operator, which depends on the order of operations,
    and where ``erf`` of bf16 loses small numbers.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in _SUMS and func not in _CENTERING and func is not _ERF:
            return made
        wide = func(*(each.double() if is_floating(each) else each for each in args), **(kwargs or {}))
        if not isinstance(made, tuple):
            return _like(made, wide)
        return tuple(_like(narrow, each) for narrow, each in zip(made, wide, strict=True))


def _like(made: Any, wide: Any) -> Any:
    return wide.to(made.dtype) if is_floating(made) else made

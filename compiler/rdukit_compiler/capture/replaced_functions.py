"""Replacements for functions of torch that cannot be traced; each computes the same.

Some functions read values only to refuse invalid ones: their replacements return NaN for these. In-place operators on
lists of tensors, such as ``_foreach_mul_``, return nothing, so a record would miss their writes. They are recorded as
one in-place operator for each tensor, in order, as in torch's form without list kernels.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from rdukit.errors import UnsupportedOperator

_PREFIX: Final = "aten::_foreach_"
#: List operator → the operator on one tensor, if its name differs.
_WORDS: Final[Mapping[str, str]] = {"maximum": "clamp_min", "minimum": "clamp_max"}
#: Operators whose factor is a keyword argument.
_WITH_VALUE: Final = frozenset({"addcmul", "addcdiv"})


def gaussian_nll_loss(
    input: torch.Tensor, target: torch.Tensor, var: torch.Tensor | float, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    """Compute ``torch.nn.functional.gaussian_nll_loss``; a negative variance gives NaN."""
    if isinstance(var, float):
        return functional.gaussian_nll_loss(input, target, var, full, eps, reduction)
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif input.dim() != var.dim() or sum(b for a, b in zip(input.shape, var.shape, strict=True) if a != b) != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in {"none", "mean", "sum"}:
        raise ValueError(f"{reduction} is not valid")
    # only the value is clamped; the gradient passes unclamped, as in torch
    clamped = var + (var.detach().clamp(min=eps) - var.detach())
    loss = 0.5 * (torch.log(clamped) + (input - target) ** 2 / clamped) + _nan_where(var.detach() < 0)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def cov(
    input: torch.Tensor, *, correction: int = 1, fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute ``torch.cov``: input [V, N] or [N], weights [N] → [V, V] or []; negative weights give NaN."""
    if input.dim() > 2:
        raise RuntimeError(f"cov(): expected input to have two or fewer dimensions but got {input.dim()}")
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    if not rows.is_floating_point() and not rows.is_complex():
        rows = rows.to(torch.get_default_dtype())
    count = rows.shape[1]
    given = [weights.to(rows.real.dtype) for weights in (fweights, aweights) if weights is not None]
    if not given:
        centred = rows - rows.sum(1, keepdim=True) / count if count else rows
        scale: Any = max(count - correction, 0)
        made: torch.Tensor = centred @ centred.t().conj()
        return made.div(scale).squeeze()
    weights = given[0] * given[1] if len(given) == 2 else given[0]
    total = weights.sum()
    centred = rows - (rows * weights).sum(1, keepdim=True) / total
    taken = correction * (weights * given[-1]).sum() / total if aweights is not None else correction
    scale = (total - taken).clamp(min=0) + sum(_nan_where(each < 0).sum() for each in given)
    product: torch.Tensor = centred @ (centred * weights).t().conj()
    return product.div(scale).squeeze()


def corrcoef(input: torch.Tensor) -> torch.Tensor:
    """Compute ``torch.corrcoef``: input [V, N] or [N] → [V, V] or []."""
    if input.dim() > 2:
        raise RuntimeError(f"corrcoef(): expected input to have two or fewer dimensions but got {input.dim()}")
    made = cov(input)
    if made.dim() == 0:
        return made / made
    deviation = made.diag().real.sqrt() if made.is_complex() else made.diag().sqrt()
    made = made / deviation.unsqueeze(1) / deviation.unsqueeze(0)
    if made.is_complex():
        return torch.complex(made.real.clamp(-1, 1), made.imag.clamp(-1, 1))
    return made.clamp(-1, 1)


def ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute ``torch.nn.functional.ctc_loss``, whose mean divides by lengths that torch puts into a new tensor."""
    each = "none" if reduction == "mean" else reduction
    made = functional.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, each, zero_infinity)
    if reduction != "mean":
        return made
    lengths = target_lengths if hasattr(target_lengths, "clamp") else torch.tensor(target_lengths)
    mean: torch.Tensor = (made / lengths.clamp(min=1)).mean()
    return mean


def fill_diagonal_(self: torch.Tensor, fill_value: float, wrap: bool = False) -> torch.Tensor:
    """Write ``torch.Tensor.fill_diagonal_`` to a view, which compiles; self [N, M], or [N, N, N, …]."""
    if self.dim() < 2:
        raise RuntimeError("dimensions must larger than 1")
    if self.dim() > 2 and len(set(self.shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    if self.dim() > 2:
        step = sum(self.stride())
        self.as_strided((self.shape[0],), (step,), int(self.storage_offset())).fill_(fill_value)
    elif wrap and self.shape[0] > self.shape[1] + 1:
        for first in range(0, self.shape[0], self.shape[1] + 1):
            self[first : first + self.shape[1]].diagonal().fill_(fill_value)
    else:
        self.diagonal().fill_(fill_value)
    return self


def istft(
    input: torch.Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: torch.Tensor | None = None, center: bool = True, normalized: bool = False, onesided: bool | None = None,
    length: int | None = None, return_complex: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute ``torch.istft``: input [C, F, T] or [F, T] complex → [C, N] or [N]; windows that leave a gap give NaN."""
    spectra = (input if input.dim() == 3 else input.unsqueeze(0)).transpose(1, 2)
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    shape = window if window is not None else torch.ones(width, dtype=spectra.real.dtype)
    if width != n_fft:
        before = (n_fft - width) // 2
        shape = functional.pad(shape, (before, n_fft - width - before))
    norm = "ortho" if normalized else "backward"
    if return_complex:
        frames = torch.fft.ifft(spectra, norm=norm)
    else:
        frames = torch.fft.irfft(spectra[..., : n_fft // 2 + 1], n=n_fft, norm=norm)
    count, size = spectra.shape[1], n_fft + hop * (spectra.shape[1] - 1)
    add_up = torch.ops.aten.unfold_backward.default
    made = add_up(frames * shape, [spectra.shape[0], size], 1, n_fft, hop)
    envelope = add_up(shape.pow(2).expand(1, count, n_fft), [1, size], 1, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else size - start
    part = slice(start, min(end, size))
    gap = _nan_where(envelope[:, part].abs().min() < 1e-11)
    signal: torch.Tensor = made[:, part] / envelope[:, part] + gap
    signal = functional.pad(signal, (0, max(end - size, 0)))
    return signal if input.dim() == 3 else signal.squeeze(0)


def _nan_where(refused: torch.Tensor) -> torch.Tensor:
    return torch.where(refused, torch.nan, 0.0)


def refuse_python(tensor: torch.Tensor, *args: Any) -> Any:
    """Refuse ``apply_``, ``map_`` and ``map2_``: they call Python for each element, and a traced tensor has no
    memory.
    """
    raise UnsupportedOperator(
        "apply_, map_ and map2_ call a Python function for each element, which no device can run; use torch's "
        "operators, or compute the values outside forward and keep them in a buffer (register_buffer)"
    )


def data_ptr(tensor: torch.Tensor) -> int:
    """Return a number that identifies a tensor's memory: torch returns 0 for all traced tensors."""
    return int(tensor.untyped_storage()._cdata) + int(tensor.storage_offset()) * tensor.element_size()


#: torch's function → ours.
UNCHECKED: Final[Mapping[Any, Callable[..., Any]]] = {
    functional.gaussian_nll_loss: gaussian_nll_loss,
    **dict.fromkeys((torch.cov, torch.Tensor.cov), cov),
    torch.istft: istft,
    torch.Tensor.data_ptr: data_ptr,
    **dict.fromkeys((torch.Tensor.apply_, torch.Tensor.map_, torch.Tensor.map2_), refuse_python),
    torch.Tensor.fill_diagonal_: fill_diagonal_,
    functional.ctc_loss: ctc_loss,
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), corrcoef),
}


def find_single(func: Any) -> Any:
    """Find the operator that ``func`` stands for, such as ``aten.mul_`` for ``aten._foreach_mul_``, if any."""
    schema = func._schema
    if not (schema.name.startswith(_PREFIX) and schema.name.endswith("_") and schema.is_mutable):
        return None
    word = schema.name.removeprefix(_PREFIX).removesuffix("_")
    return getattr(torch.ops.aten, f"{_WORDS.get(word, word)}_", None)


def overwrite_each(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Call the operator that ``func`` stands for on each tensor of its first argument.

    Raises:
        The errors that torch raises for lists of wrong lengths or dtypes.
    """
    single = find_single(func)
    word = func._schema.name.removeprefix(_PREFIX).removesuffix("_")
    tensors, *rest = args
    lists = [isinstance(argument, list | tuple) for argument in rest]
    if any(is_list and len(argument) != len(tensors) for is_list, argument in zip(lists, rest, strict=True)):
        lengths = [len(tensors), *(len(a) for is_list, a in zip(lists, rest, strict=True) if is_list)]
        raise RuntimeError(f"Tensor lists must have the same number of tensors, got {lengths}")
    if word in _WITH_VALUE and len(rest) == 3 and isinstance(rest[2], torch.Tensor):
        rest[2], lists[2] = [factor.item() for factor in rest[2].unbind()], True
    for place, tensor in enumerate(tensors):
        own = [argument[place] if is_list else argument for is_list, argument in zip(lists, rest, strict=True)]
        named = dict(kwargs)
        if word in _WITH_VALUE and len(own) == 3:
            named["value"] = own.pop()
        single(tensor, *own, **named)

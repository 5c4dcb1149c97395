"""Our own operators: optimizer updates in place, by torch's fused kernels.

Each takes lists of tensors of equal length and run-time scalars.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.optim.adagrad import adagrad as functional_adagrad
from torch.optim.adam import adam as functional_adam
from torch.optim.adamw import adamw as functional_adamw

from rdukit_runtime.engine.collectives import all_reduce_mean
from rdukit_runtime.engine.torch_private import foreach_add_, fused_adamw_, fused_sgd_

Tensors = list[torch.Tensor]
_ONE: Final = torch.ones(())

#: Elements of a large tensor that ``adamw_stepwise`` updates at once.
PIECE: Final = 1 << 17
#: Elements of a bf16 gradient that ``adamw`` widens at once.
WIDENED: Final = 1 << 20


def sgd(
    parameters: Tensors, gradients: Tensors, momenta: Tensors, *, lr: float, momentum: float, weight_decay: float,
    nesterov: float = 0.0,
) -> None:  # fmt: skip
    """Update in place as ``torch.optim.SGD`` without dampening (SDK reference 9); ``nesterov`` is 0 or 1."""
    if not parameters:
        return
    for group in _of_one_dtype(parameters, gradients, momenta if momentum else []):
        fused_sgd_(
            *group, weight_decay=weight_decay, momentum=momentum, lr=lr, dampening=0.0,
            nesterov=bool(nesterov and momentum), maximize=False, is_first_step=False,
        )  # fmt: skip


def _of_one_dtype(*lists: Tensors) -> Iterator[Sequence[Tensors]]:
    """Return the lists, divided by the first one's dtypes if torch's fused kernels require that: on a GPU."""
    first = lists[0]
    if first[0].device.type == "cpu" or len({tensor.dtype for tensor in first}) == 1:
        yield lists
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in first):
        chosen = [position for position, tensor in enumerate(first) if tensor.dtype == dtype]
        yield [[tensors[i] for i in chosen] if tensors else [] for tensors in lists]


def _count(steps: Tensors) -> None:
    """Add 1 to each; on the host a list of tensors takes a third of the time that a number takes."""
    if steps[0].device.type == "cpu":
        foreach_add_(steps, [_ONE] * len(steps))
    else:
        foreach_add_(steps, 1)


def adamw(
    parameters: Tensors, gradients: Tensors, averages: Tensors, squares: Tensors, steps: Tensors, *,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
) -> None:  # fmt: skip
    """Update in place as ``torch.optim.AdamW``; ``steps`` are scalars that count updates.

    Gradients may be narrower than their parameters.
    """
    if not parameters:
        return
    _count(steps)

    def update(*lists: Tensors) -> None:
        for weights, slopes, means, spreads, counts in _of_one_dtype(*lists):
            fused_adamw_(
                weights, slopes, means, spreads, [], counts, lr=lr, beta1=beta1, beta2=beta2,
                weight_decay=weight_decay, eps=eps, amsgrad=False, maximize=False,
            )  # fmt: skip

    rows = list(zip(parameters, gradients, averages, squares, steps, strict=True))
    if wide := [row for row in rows if row[0].dtype == row[1].dtype]:
        update(*(list(column) for column in zip(*wide, strict=True)))
    for parameter, gradient, average, square, step in rows:
        if gradient.dtype != parameter.dtype:
            for weights, slope, mean, spread in _pieces(parameter, gradient, average, square, most=WIDENED):
                update([weights], [slope.to(weights.dtype)], [mean], [spread], [step])


def adamw_stepwise(
    parameters: Tensors, gradients: Tensors, averages: Tensors, squares: Tensors, steps: Tensors, *,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
) -> None:  # fmt: skip
    """Update as ``adamw`` in the order of torch's default, bit for bit: several passes over memory instead of one.

    The fused update rounds differently. AdamW magnifies the difference without bound if a gradient is zero except for
    rounding, as for a bias before batch norm or attention's key bias. Large tensors are updated piece by piece, so that
    the intermediate values stay in the cache; elements are independent.
    """
    if not parameters:
        return
    _count(steps)
    counts = torch.stack(steps).tolist()  # of all at once: each look at a value makes a GPU stop
    for parameter, gradient, average, square, count in zip(
        parameters, gradients, averages, squares, counts, strict=True
    ):
        for weights, narrow, first, second in _pieces(parameter, gradient, average, square):
            slope = narrow.to(weights.dtype)
            weights.mul_(1 - lr * weight_decay)
            first.lerp_(slope, 1 - beta1)
            second.mul_(beta2).addcmul_(slope, slope, value=1 - beta2)
            spread = second.sqrt().div_((1 - beta2**count) ** 0.5).add_(eps)
            weights.addcdiv_(first, spread, value=-lr / (1 - beta1**count))


def _pieces(*tensors: torch.Tensor, most: int = PIECE) -> Iterable[tuple[torch.Tensor, ...]]:
    """Return tensors of one shape as views of ``most`` elements; unchanged if small, not on the CPU, or with gaps."""
    first = tensors[0]
    if first.numel() <= most or first.device.type != "cpu" or not all(t.is_contiguous() for t in tensors):
        return [tensors]
    return zip(*(torch.split(tensor.view(-1), most) for tensor in tensors), strict=True)


def adam(
    parameters: Tensors, gradients: Tensors, averages: Tensors, squares: Tensors, *rest: Tensors,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool = False,
) -> None:  # fmt: skip
    """Update in place as ``torch.optim.Adam``; ``rest`` is the steps, after the largest squares if amsgrad."""
    if not parameters:
        return
    *largest, steps = rest
    update = functional_adamw if decoupled else functional_adam
    update(
        parameters, gradients, averages, squares, largest[0] if largest else [], steps, foreach=False, fused=False,
        amsgrad=bool(largest), beta1=beta1, beta2=beta2, lr=lr, weight_decay=weight_decay, eps=eps, maximize=False,
    )  # fmt: skip


def adamw_amsgrad(
    parameters: Tensors, gradients: Tensors, averages: Tensors, squares: Tensors, largest: Tensors, steps: Tensors, *,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
) -> None:  # fmt: skip
    """Update in place as ``torch.optim.AdamW(amsgrad=True)``."""
    adam(
        parameters, gradients, averages, squares, largest, steps, lr=lr, beta1=beta1, beta2=beta2, eps=eps,
        weight_decay=weight_decay, decoupled=True,
    )  # fmt: skip


def sparse_adamw(
    parameters: Tensors, gradients: Tensors, averages: Tensors, squares: Tensors, steps: Tensors, *,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
) -> None:  # fmt: skip
    """AdamW in place on the rows [N, …] that have a gradient; other rows, and their states, stay unchanged."""
    for parameter, gradient, average, square, step in zip(parameters, gradients, averages, squares, steps, strict=True):
        rows = gradient.reshape(gradient.shape[0], -1).any(-1).nonzero().reshape(-1) if gradient.dim() else ...
        touched = [tensor[rows] for tensor in (parameter, average, square)]
        adamw_stepwise(
            [touched[0]], [gradient[rows]], [touched[1]], [touched[2]], [step], lr=lr, beta1=beta1, beta2=beta2,
            eps=eps, weight_decay=weight_decay,
        )  # fmt: skip
        for tensor, part in zip((parameter, average, square), touched, strict=True):
            tensor[rows] = part


def adagrad(
    parameters: Tensors, gradients: Tensors, sums: Tensors, steps: Tensors, *,
    lr: float, lr_decay: float, eps: float, weight_decay: float, initial_accumulator_value: float = 0.0,
) -> None:  # fmt: skip
    """Update in place as ``torch.optim.Adagrad``."""
    for total, step in zip(sums, steps, strict=True):
        if initial_accumulator_value and not step:
            total.fill_(initial_accumulator_value)
    functional_adagrad(
        parameters, gradients, sums, steps, has_sparse_grad=False, foreach=False, fused=False, has_complex=False,
        lr=lr, weight_decay=weight_decay, lr_decay=lr_decay, eps=eps, maximize=False,
    )  # fmt: skip


def accumulate(sums: Tensors, gradients: Tensors, flag: torch.Tensor) -> None:
    """Add gradients to their sums, in place; where ``flag`` [] is 0 a new sum begins, and ``flag`` becomes 1."""
    if flag.item():
        foreach_add_(sums, gradients)
    else:
        for total, gradient in zip(sums, gradients, strict=True):
            total.copy_(gradient)
        flag.fill_(1)


def end_accumulation(flag: torch.Tensor) -> None:
    """End the sums that the optimizer has read: the next ``accumulate`` begins new ones."""
    flag.zero_()


def clip_grad_norm(gradients: Tensors, max_norm: float) -> list[torch.Tensor]:
    """Return gradients scaled so that their common norm is at most ``max_norm``, as ``clip_grad_norm_`` does.

    An infinite ``max_norm`` clips nothing.
    """
    if not gradients or max_norm == float("inf"):
        return list(gradients)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    return [gradient * scale for gradient in gradients]


OPERATORS: Final[dict[str, Any]] = {
    "rdukit.sgd": sgd,
    "rdukit.adamw": adamw,
    "rdukit.adamw_stepwise": adamw_stepwise,
    "rdukit.adam": adam,
    "rdukit.adamamsgrad": adam,
    "rdukit.adamwamsgrad": adamw_amsgrad,
    "rdukit.sparseadamw": sparse_adamw,
    "rdukit.adagrad": adagrad,
    "rdukit.accumulate": accumulate,
    "rdukit.end_accumulation": end_accumulation,
    "rdukit.clip_grad_norm": clip_grad_norm,
    "rdukit.all_reduce_mean": all_reduce_mean,
}

"""Forms of torch's own modules and functions for static graphs, active while a model is traced.

Some forwards of torch read values, make writes that a graph cannot have, seed a generator, or need matrix
decompositions, which the device lacks. The forms here compute the same. The host's functions do not change.

Maps onto orthogonal matrices run the maximum number of steps and disable surplus ones, where torch chooses the number
by the values. Values that would need more steps give NaN, never a wrong number. Source: ours.
"""

import contextlib
import logging
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.distributions import Distribution
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import _Orthogonal
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from rdukit.errors import UnsupportedOperator
from sambaflow.samba.sambatensor import unwrap
from sambaflow.tracing.torch_private import DYNAMO, FakeTensor, replaced

logger = logging.getLogger(__name__)

#: Functions that seed torch's generator, in ``torch`` and in ``torch.random``.
_SEEDS: Final = ("manual_seed", "seed", "set_rng_state")
#: Powers of the exponential's series, by dtype, and the 1-norm up to which they suffice: 2**15 / 15! is 2.5e-8.
_POWERS: Final = {torch.float32: 14, torch.float64: 22}
_SERIES_NORM: Final = 2.0
#: Squarings, and Newton steps: enough for 1-norms up to 2**15, and condition numbers up to 2**12.
_MAX_SQUARINGS: Final = 14
_NEWTON_STEPS: Final = 30
#: The inverse is refused (NaN) if its product with the matrix is farther from the identity.
_INVERSE_ERROR: Final = 1e-2

_batch_norm = _BatchNorm.forward
_normalize = F.normalize
_orthogonal = _Orthogonal.forward
_deepcopy = torch.Tensor.__deepcopy__


@contextlib.contextmanager
def static_forms(model: nn.Module) -> Iterator[None]:
    """Activate the forms of this file; at the end, restore the weights that hooks of ``model`` computed."""
    computed = [
        (module.__dict__, hook.name, module.__dict__[hook.name])
        for module in model.modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, SpectralNorm | WeightNorm) and hook.name in module.__dict__
    ]
    with (
        contextlib.ExitStack() as stack,
        replaced(
            (_BatchNorm, "forward", _forward_of_batch_norm),
            (F, "normalize", _normalized),
            (_Orthogonal, "forward", _forward_of_orthogonal),
            (torch.Tensor, "__deepcopy__", _deepcopied),
            *((torch, name, _of_torch_tensors(getattr(torch, name))) for name in ("as_tensor", "asarray", "tensor")),
            (Distribution, "_validate_args", False),  # it reads values; torch.compile also omits it
        ),
    ):
        if _is_imported(DYNAMO):  # functions wrapped by torch.compile are traced unwrapped
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for attributes, name, value in computed:
            stack.callback(attributes.__setitem__, name, value)
        yield


def _is_imported(name: str) -> bool:
    """Return whether the module itself is imported, and not only a stand-in."""
    return getattr(sys.modules.get(name), "__file__", None) is not None


def _deepcopied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Return a detached copy, as torch does; for a traced tensor, by an operator."""
    if not isinstance(tensor, FakeTensor):
        copied: torch.Tensor = _deepcopy(tensor, memo)  # type: ignore[no-untyped-call]
        return copied
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone()
    made: torch.Tensor = memo[id(tensor)]
    return made


def _of_torch_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a form of ``torch.as_tensor`` and similar functions, which would read a SambaTensor's empty memory."""

    def form(data: Any, *args: Any, **kwargs: Any) -> Any:
        return function(unwrap(data), *args, **kwargs)

    return form


def _forward_of_batch_norm(module: Any, x: torch.Tensor) -> Any:
    """Normalize; with ``momentum=None`` statistics are means over all batches: the count is a tensor on the device."""
    if module.momentum is not None or not (module.training and module.track_running_stats):
        return _batch_norm(module, x)
    module._check_input_dim(x)
    with torch.no_grad():
        module.num_batches_tracked.add_(1)
        share = module.num_batches_tracked.to(torch.float32).reciprocal()
        values = x.detach().to(torch.float32)
        dims = [d for d in range(values.dim()) if d != 1]
        for statistic, found in (
            (module.running_mean, values.mean(dims)),
            (module.running_var, values.var(dims)),
        ):
            weight = share.to(statistic.dtype)  # not lerp: it makes NaN of an infinite statistic
            statistic.copy_(statistic * (1 - weight) + found.to(statistic.dtype) * weight)
    return F.batch_norm(x, None, None, module.weight, module.bias, True, 0.0, module.eps)


def _normalized(
    input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: torch.Tensor | None = None
) -> Any:  # fmt: skip
    """Normalize as ``F.normalize``; with ``out``, as spectral norm calls it, overwrite that tensor."""
    if out is None:
        return _normalize(input, p, dim, eps)
    with torch.no_grad():
        out.copy_(_normalize(input.detach(), p, dim, eps))
    return out


def _forward_of_orthogonal(module: Any, x: torch.Tensor) -> Any:
    """Run the parametrization with products in place of torch's decompositions."""
    with replaced(
        (torch, "matrix_exp", matrix_exp),
        (torch.linalg, "solve", solve_near_identity),
        (torch.linalg, "householder_product", householder_product),
    ):
        return _orthogonal(module, x)


def matrix_exp(a: torch.Tensor) -> torch.Tensor:
    """Compute ``torch.matrix_exp`` of [..., N, N]: a series of the matrix divided by 2**s, squared s times."""
    x = _wide(a)
    identity = torch.eye(x.shape[-1], dtype=x.dtype)
    norm = x.detach().abs().sum(-2).amax(-1)[..., None, None]
    squarings = (norm / _SERIES_NORM).clamp_min(1.0).log2().ceil()
    x = x * torch.exp2(-squarings)
    made = identity.expand_as(x)
    for power in range(_POWERS[x.dtype], 0, -1):
        made = identity + (x @ made) / power
    for number in range(_MAX_SQUARINGS):
        is_needed = squarings > number
        made = torch.where(is_needed, _square(torch.where(is_needed, made, identity)), made)
    return torch.where(squarings > _MAX_SQUARINGS, torch.nan, made).to(a.dtype)


def solve_near_identity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute ``torch.linalg.solve(a, b)`` by Newton's iteration for the inverse of a well conditioned [..., N, N].

    Only the last step is differentiated: its gradient is that of the inverse.
    """
    x = _wide(a)
    identity = torch.eye(x.shape[-1], dtype=x.dtype)
    held = x.detach()
    bound = held.abs().sum(-2).amax(-1) * held.abs().sum(-1).amax(-1)
    inverse = held.mT / bound[..., None, None]
    for _ in range(_NEWTON_STEPS):
        inverse = inverse @ (2 * identity - held @ inverse)
    error = (identity - held @ inverse).abs().amax((-2, -1), keepdim=True)
    inverse = inverse @ (2 * identity - x @ inverse)
    solved = inverse @ _wide(b)
    return torch.where(error < _INVERSE_ERROR, solved, torch.nan).to(a.dtype)


def householder_product(a: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """Compute ``torch.linalg.householder_product`` of [..., N, K] and [..., K], one reflection after the other."""
    x, scales = _wide(a), _wide(tau)
    rows, columns = x.shape[-2:]
    made = torch.eye(rows, columns, dtype=x.dtype).expand_as(x)
    units = torch.eye(rows, dtype=x.dtype)
    below = torch.ones(rows, columns, dtype=x.dtype).tril(-1)
    for number in reversed(range(columns)):
        vector = (x[..., :, number] * below[:, number] + units[number]).unsqueeze(-1)
        made = made - scales[..., number, None, None] * vector * (vector.mT @ made)
    return made.to(a.dtype)


def _square(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Convert to float32, unless the dtype is wider: rounding errors would add up over the steps."""
    return x if x.dtype == torch.float64 else x.to(torch.float32)


@contextlib.contextmanager
def device_randomness(model: str) -> Iterator[None]:
    """Refuse a forward of ``model`` that seeds torch, and warn if it draws from a generator of the host.

    Raises:
        UnsupportedOperator: forward seeds: a run would not, and would use other random numbers than eager torch.
    """
    before = _host_states()
    with replaced(*((owner, name, _refusing(name)) for owner in (torch, torch.random) for name in _SEEDS)):
        yield
    after = _host_states()
    drawn = [word for word, state in after.items() if not _are_equal(before.get(word) or _as_imported(state), state)]
    if drawn:
        logger.warning(
            "[warning Samba]: forward of %s draws from %s only while it is traced, and every run reuses those "
            "numbers; draw with torch.rand, which draws in every run on the device, or pass the numbers as an input",
            model, " and ".join(drawn),
        )  # fmt: skip


def _host_states() -> dict[str, Any]:
    states: dict[str, Any] = {"Python's random": random.getstate()}
    if (of_numpy := sys.modules.get("numpy.random")) is not None:  # numpy imports it when it is first used
        states["numpy.random"] = of_numpy.get_state()
    return states


def _as_imported(state: Any) -> Any:
    """Return numpy's ``state`` with the position of an unused generator: its import chose the seed."""
    return *state[:2], *sys.modules["numpy.random"].RandomState().get_state()[2:]


def _are_equal(one: Any, other: Any) -> bool:
    """Compare states of a generator; numpy's hold an array."""
    return len(one) == len(other) and all(bool((a == b) if not hasattr(a, "all") else (a == b).all())
                                          for a, b in zip(one, other, strict=True))  # fmt: skip


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedOperator(
            f"forward calls torch.{name}: the device's generator goes on from run to run; call "
            "samba.utils.set_seed before session.run, or pass the random numbers in as an input"
        )

    return refuse

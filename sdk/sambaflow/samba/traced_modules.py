"""Modules of torch whose forward looks at values or writes in a way that a static graph cannot: other forms of theirs.

They are in place while a model is traced and compute what torch's own forms compute. On the host nothing changes.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributions import Distribution
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import _Orthogonal
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from sambaflow.samba import orthogonal_maps
from sambaflow.samba.replaced import replaced
from sambaflow.samba.sambatensor import unwrap

_batch_norm = _BatchNorm.forward
_normalize = F.normalize
_orthogonal = _Orthogonal.forward
_deepcopy = torch.Tensor.__deepcopy__


@contextlib.contextmanager
def static_forms(model: nn.Module) -> Iterator[None]:
    """Put the forms of this file in place, and leave the weights that hooks of ``model`` compute as they were."""
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
            (Distribution, "_validate_args", False),  # looks at values; torch.compile leaves it out as well
        ),
    ):
        if _is_imported("torch._dynamo"):  # what torch.compile has wrapped is traced as it was written
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for attributes, name, value in computed:
            stack.callback(attributes.__setitem__, name, value)
        yield


def _is_imported(name: str) -> bool:
    """Whether the module itself is, and not only something in its place."""
    return getattr(sys.modules.get(name), "__file__", None) is not None


def _deepcopied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A copy that autograd does not follow back, as torch's; of a traced tensor, by an operator."""
    if not isinstance(tensor, FakeTensor):
        copied: torch.Tensor = _deepcopy(tensor, memo)  # type: ignore[no-untyped-call]
        return copied
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone()
    made: torch.Tensor = memo[id(tensor)]
    return made


def _of_torch_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.as_tensor`` and its like, which would take a SambaTensor by its memory; that holds no values here."""

    def form(data: Any, *args: Any, **kwargs: Any) -> Any:
        return function(unwrap(data), *args, **kwargs)

    return form


def _forward_of_batch_norm(module: Any, x: torch.Tensor) -> Any:
    """With ``momentum=None`` the statistics are means over all batches: the count is a tensor on the device."""
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
            statistic.copy_(torch.lerp(statistic, found.to(statistic.dtype), share.to(statistic.dtype)))
    return F.batch_norm(x, None, None, module.weight, module.bias, True, 0.0, module.eps)


def _normalized(
    input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: torch.Tensor | None = None
) -> Any:  # fmt: skip
    """``F.normalize``; with ``out``, as spectral norm calls it, it overwrites that tensor."""
    if out is None:
        return _normalize(input, p, dim, eps)
    with torch.no_grad():
        out.copy_(_normalize(input.detach(), p, dim, eps))
    return out


def _forward_of_orthogonal(module: Any, x: torch.Tensor) -> Any:
    """With torch's decompositions as products."""
    with replaced(
        (torch, "matrix_exp", orthogonal_maps.matrix_exp),
        (torch.linalg, "solve", orthogonal_maps.solve_near_identity),
        (torch.linalg, "householder_product", orthogonal_maps.householder_product),
    ):
        return _orthogonal(module, x)

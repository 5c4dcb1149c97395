"""Handles torch calls of plain training loops that would not reach the device: obeys them, or refuses with an
alternative.

Each of these functions of torch is checked before it runs; without a loaded PEF, and for the host's gradients, it works
as in torch. Source: ours; the vendor ignores these requests or ends in torch's own errors.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.nn.utils import convert_parameters, parametrize

from rdukit.errors import InvalidArgument
from sambaflow.samba.nn.gradient import DeviceGradient
from sambaflow.samba.sambatensor import SambaTensor, unwrap
from sambaflow.sessions import current_session
from sambaflow.tracing.torch_private import CLIP_GRADIENTS, CLIP_WITH_NORM, MAKE_GRADIENTS, TOTAL_NORM

_DEVICES: Final = ("cpu", "cuda")
#: Attribute of a total norm: its order, such as 2.0.
_NORM_TYPE: Final = "sn_norm_type"


def active_autocast() -> tuple[str, ...]:
    """Return the devices whose autocast is on."""
    return tuple(device for device in _DEVICES if torch.is_autocast_enabled(device))


def refuse_autocast(traced: tuple[str, ...]) -> None:
    """Refuse a run inside of ``torch.autocast``, unless the model was also traced inside it.

    Raises:
        InvalidArgument: autocast is on.
    """
    if (now := active_autocast()) and now != traced:
        raise InvalidArgument(
            "samba.session.run inside torch.autocast has no effect: the compile chose the PEF's precision; leave out "
            "autocast, and compile with --graphamp-preset or write autocast inside forward"
        )


def watch_torch_loops() -> None:
    """Install checks in torch's clipping, gradient scaling and backward; once in a process."""
    if hasattr(torch.autograd.backward, "looks_at_device"):
        return
    _wrap(torch.autograd, "backward", _look_at_backward)
    _wrap(torch.autograd, MAKE_GRADIENTS, lambda outputs, *args, **kwargs: _look_at_backward(outputs))
    for name in ("scale", "unscale_", "step"):
        _wrap(torch.amp.GradScaler, name, functools.partial(_look_at_scaler, name))
    _wrap(parametrize, "register_parametrization", _look_at_parametrization)
    _watch_clipping()
    _unwrap_members()


def _unwrap_members() -> None:
    """Let a module accept a SambaTensor as a parameter or buffer, and store its torch tensor.

    Results computed from a converted parameter are SambaTensors, which pruning, normalization and fusion register;
    other programs fill all parameters from a vector.
    """
    make, assign = torch.nn.Parameter.__new__, torch.nn.Module.__setattr__

    def make_parameter(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        return make(cls, unwrap(data), *args, **kwargs)

    def assign_member(self: torch.nn.Module, name: str, value: Any) -> None:
        if isinstance(value, SambaTensor) and name in self.__dict__.get("_buffers", ()):
            value = unwrap(value)
        assign(self, name, value)

    torch.nn.Parameter.__new__ = staticmethod(make_parameter)  # type: ignore[method-assign]
    torch.nn.Module.__setattr__ = assign_member  # type: ignore[method-assign]
    register_module_buffer_registration_hook(lambda module, name, buffer: unwrap(buffer))
    fill = convert_parameters.vector_to_parameters

    def fill_parameters(vec: Any, parameters: Iterable[torch.Tensor]) -> None:
        fill(unwrap(vec), parameters)

    for owner in (convert_parameters, torch.nn.utils):
        setattr(owner, fill.__name__, functools.wraps(fill)(fill_parameters))


def _wrap(owner: Any, name: str, look: Callable[..., None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        look(*args, **kwargs)
        return original(*args, **kwargs)

    call.looks_at_device = True  # type: ignore[attr-defined]
    setattr(owner, name, call)


def _look_at_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
    if current_session().loaded is not None and any(_has_no_history(tensor) for tensor in _tensors(tensors)):
        raise InvalidArgument(
            "backward() of a value that samba.session.run returned: the device has run backward and the update; "
            "remove loss.backward() and optimizer.step(). For a loss on the host, run section_types=['fwd'], call "
            "requires_grad_() on the output, and set the traced output's sn_grad before ['bckwd', 'opt']"
        )


def _look_at_scaler(name: str, scaler: torch.amp.GradScaler, value: Any, *args: Any, **kwargs: Any) -> None:
    if current_session().loaded is None or not scaler.is_enabled():
        return
    if name == "scale":
        is_of_device = any(_has_no_history(tensor) for tensor in _tensors(value))
    else:
        is_of_device = hasattr(value, "device_groups") and not value.has_host_gradients()
    if is_of_device:
        raise InvalidArgument(
            f"GradScaler.{name} does not reach the device, whose gradients are bf16 or f32 and need no scaling; remove "
            "the GradScaler. To scale a loss, set the traced output's sn_grad"
        )


def _look_at_parametrization(module: torch.nn.Module, tensor_name: str, *args: Any, **kwargs: Any) -> None:
    if getattr(module._parameters.get(tensor_name), "sn_name", None) is not None:
        raise InvalidArgument(
            f"{tensor_name!r} of {type(module).__name__} is already a parameter of the device; register the "
            "parametrization before samba.from_torch_model_, which also converts its parts"
        )


def _watch_clipping() -> None:
    """Pass calls of ``clip_grad_norm_`` on the PEF's gradients to the PEF."""
    find_norm, clip = getattr(CLIP_GRADIENTS, TOTAL_NORM), getattr(CLIP_GRADIENTS, CLIP_WITH_NORM)

    @functools.wraps(find_norm)
    def total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> torch.Tensor:
        tensors = list(tensors) if not isinstance(tensors, torch.Tensor) else tensors
        found: torch.Tensor = find_norm(tensors, norm_type, *args, **kwargs)
        setattr(found, _NORM_TYPE, float(norm_type))
        return found

    @functools.wraps(clip)
    def clip_with_norm(
        parameters: Any, max_norm: float, total_norm: torch.Tensor, *args: Any, **kwargs: Any
    ) -> None:  # fmt: skip
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        loaded = current_session().loaded
        if loaded is None or not any(isinstance(p.grad, DeviceGradient) for p in given):
            clip(given, max_norm, total_norm, *args, **kwargs)
            return
        if getattr(total_norm, _NORM_TYPE, None) != 2.0:
            raise InvalidArgument(
                "the device clips the 2-norm of gradients only; call clip_grad_norm_ with norm_type=2"
            )
        names = frozenset(str(getattr(p, "sn_name", "")) for p in given if p.grad is not None)
        loaded.scalars.clip_next(names, float(max_norm), loaded.updates.backwards > 0)

    setattr(CLIP_GRADIENTS, TOTAL_NORM, total_norm)
    setattr(CLIP_GRADIENTS, CLIP_WITH_NORM, clip_with_norm)


def _tensors(value: Any) -> Iterable[Any]:
    if isinstance(value, torch.Tensor | SambaTensor):
        return [value]
    return [item for part in value for item in _tensors(part)] if isinstance(value, list | tuple) else []


def _has_no_history(tensor: Any) -> bool:
    plain = tensor.torch_tensor() if isinstance(tensor, SambaTensor) else tensor
    return not plain.requires_grad

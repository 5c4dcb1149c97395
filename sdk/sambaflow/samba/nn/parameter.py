"""SambaParameter: a module's parameter that the device identifies by name."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sambaflow.samba.nn.gradient import DeviceGradient, sees_device
from sambaflow.samba.sambatensor import call_promoting, unwrap, wrap
from sambaflow.sessions import current_session, is_loaded, loaded_pef
from sambaflow.tracing.torch_private import DisableTorchFunctionSubclass, data_of, rebuild_parameter

if TYPE_CHECKING:
    from sambaflow.sessions.host_copies import HostCopies

#: Methods whose result is torch's own, as ``Module.to`` and ``load_state_dict`` need it.
_PLAIN = frozenset({"to", "float", "half", "bfloat16", "double", "numpy", "copy_", "requires_grad_", "size", "dim"})

#: torch's own slot for a gradient, which autograd on the host fills.
HOST_GRADIENT: Any = torch.Tensor.grad

#: Properties of a tensor that hold its values.
_VALUES = frozenset({"data", "T", "H", "mT", "mH", "real", "imag"})
#: Functions that read only a tensor's metadata, or do not change values.
_DESCRIBING = frozenset(
    {"size", "stride", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "requires_grad_",
     "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "__hash__", "__delete__", "storage_offset",
     "ndimension", "is_contiguous", "get_device", "type", "is_signed", "__len__"}
)  # fmt: skip


class SambaParameter(nn.Parameter):
    """An ``nn.Parameter`` with ``sn_name``; computations with it return SambaTensors, even from plain torch inputs.

    Args:
        torch_tensor: the values; without it the parameter is empty (on the meta device), of ``shape`` and ``dtype``.
        materializer: computes an empty parameter's values.
    """

    def __new__(
        cls, torch_tensor: torch.Tensor | None = None, requires_grad: bool = True, *,
        shape: Iterable[int] | None = None, dtype: torch.dtype | None = None,
        materializer: Callable[..., torch.Tensor] | None = None, name: str | None = None,
    ) -> "SambaParameter":  # fmt: skip
        data = unwrap(torch_tensor)
        if data is None:
            data = torch.empty(tuple(shape or ()), dtype=dtype, device="meta")
        made = torch.Tensor._make_subclass(cls, data.detach(), requires_grad)
        made.materializer = materializer
        made._sn_name = name
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    _sn_name: str | None
    _sn_region: str | None = None
    materializer: Callable[..., torch.Tensor] | None = None
    #: Placement hints and axes, as in SambaTensor.
    batch_dim: int | None = None
    host_memory: bool | None = None

    @property
    def sn_name(self) -> str:
        """Module path joined by double underscores, such as ``logreg__lin_layer__weight``."""
        return self.__dict__.get("_sn_name") or ""

    @sn_name.setter
    def sn_name(self, name: str) -> None:
        self._sn_name = name

    @property
    def sn_region_name(self) -> str:
        """Device memory region; its own name unless set."""
        return self.__dict__.get("_sn_region") or self.sn_name

    @sn_region_name.setter
    def sn_region_name(self, name: str) -> None:
        self._sn_region = name

    @property
    def sn_grad(self) -> torch.Tensor | None:
        """The gradient that the device computed in the last backward; None for a frozen or unused parameter."""
        gradient: torch.Tensor | None = loaded_pef().read_gradient(self.sn_name)
        return gradient

    @property
    def grad(self) -> torch.Tensor | None:
        """The host's gradient; without one, a copy of the gradient of the device's last backward.

        ``None`` after ``zero_grad``, and for a frozen or unused parameter. The device's gradient cannot be overwritten.
        """
        with DisableTorchFunctionSubclass():
            found: torch.Tensor | None = HOST_GRADIENT.__get__(self)
        if found is not None or not sees_device():
            return found
        session = current_session()
        if session.loaded is None or session.tracing:
            return None
        gradient = session.loaded.updates.gradient_now(self.sn_name)
        if gradient is None:
            return None
        shown = gradient.as_subclass(DeviceGradient)
        shown.parameter = self.sn_name
        return shown

    @grad.setter
    def grad(self, value: Any) -> None:
        with DisableTorchFunctionSubclass():
            held: torch.Tensor | None = HOST_GRADIENT.__get__(self)
            if held is None and sees_device() and (loaded := current_session().loaded) is not None:
                loaded.updates.replace_gradient(self.sn_name, value)
                if isinstance(value, DeviceGradient):
                    return
            HOST_GRADIENT.__set__(self, unwrap(value))

    @property
    def sn_data(self) -> torch.Tensor:
        """The device's copy of the value."""
        value: torch.Tensor = loaded_pef().read(self.sn_name)
        return value

    @property
    def has_data(self) -> bool:
        """True if the parameter holds values."""
        return self.device.type != "meta"

    def torch_tensor(self) -> torch.Tensor:
        """Return the values as a plain torch tensor that shares memory."""
        return self.data

    def cpu(self, *args: Any, **kwargs: Any) -> "SambaParameter":
        """Copy the device's value to the host; before, the program's changes are copied to the device."""
        if is_loaded(self.sn_name):
            loaded_pef().copies.push()
            if not self.has_data:
                fill_parameter_(self, self.sn_data)
            else:
                with torch.no_grad():
                    self.data.copy_(self.sn_data)
        return self

    cpu_ = cpu

    def rdu(self) -> "SambaParameter":
        """Copy the host's value to the device."""
        loaded_pef().upload_tensor(self.sn_name, self)
        return self

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        kwargs = dict(kwargs or {})
        if (loaded := current_session().loaded) is not None and _reads_values(func):
            loaded.copies.pull_all((*args, *kwargs.values()))
            if func == data_of and isinstance(args[0], SambaParameter):
                return loaded.copies.lend(args[0].sn_name, args[0])
        with DisableTorchFunctionSubclass():
            if func is torch.Tensor.detach:
                return _detached(args[0], loaded.copies if loaded is not None else None)
            result = call_promoting(func, unwrap(list(args)), unwrap(kwargs))
        name = getattr(func, "__name__", "")
        if name in {"__get__", "__set__", "__delete__"} or name in _PLAIN or (args and result is args[0]):
            return result
        return wrap(result)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.__dict__.get("_detached"):
            return self.data.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
        return rebuild_parameter, (self.data, self.requires_grad, OrderedDict())

    def __deepcopy__(self, memo: dict[int, Any]) -> "SambaParameter":
        if id(self) in memo:
            found: SambaParameter = memo[id(self)]
            return found
        made = SambaParameter(self.data.clone(memory_format=torch.preserve_format), self.requires_grad)
        made._sn_name, made._sn_region = self.__dict__.get("_sn_name"), self.__dict__.get("_sn_region")
        memo[id(self)] = made
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"SambaParameter(name={self.sn_name!r}): {self.data!r}"

    def __hash__(self) -> int:
        return id(self)

    #: Alternative spelling; last, because it hides the module in this class's body.
    torch = torch_tensor


def convert_parameter_(parameter: nn.Parameter, name: str) -> SambaParameter:
    """Make an ``nn.Parameter`` a ``SambaParameter`` in place: the same object, so that optimizers keep it."""
    if not isinstance(parameter, SambaParameter):
        parameter.__class__ = SambaParameter
    assert isinstance(parameter, SambaParameter)
    parameter._sn_name = name
    return parameter


def fill_parameter_(parameter: SambaParameter, value: torch.Tensor) -> None:
    """Give an empty parameter a value in place: the same object with its names, so that models and optimizers keep it.

    torch cannot move an object from the meta device, so its contents are swapped with those of a new object.
    """
    made = SambaParameter(value.to(parameter.dtype), parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    torch.utils.swap_tensors(parameter, made)  # type: ignore[no-untyped-call]


def _reads_values(func: Callable[..., Any]) -> bool:
    """Return whether a torch function reads its arguments' values, and not only their metadata."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "") in _VALUES
    return name not in _DESCRIBING


def _detached(parameter: torch.Tensor, copies: "HostCopies | None") -> torch.Tensor:
    if not isinstance(parameter, SambaParameter):
        return parameter.detach()
    plain = parameter.data if copies is None else copies.lend(parameter.sn_name, parameter)
    made = SambaParameter(plain, requires_grad=False, name=parameter.sn_name)
    made.__dict__["_detached"] = True
    return made

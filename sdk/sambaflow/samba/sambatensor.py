"""SambaTensor: a wrapper around a torch tensor, with a name that identifies it on the device.

Source: SDK reference 5. It is not a subclass of ``torch.Tensor``, by which programs distinguish the two. A torch
function on SambaTensors computes on the wrapped tensors and wraps the result, so the same code runs on the host and is
traced for the device.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument, TraceError, UnknownTensor
from rdukit_compiler import call_promoting as _call_promoting
from rdukit_compiler import quiet_refusals
from sambaflow.sessions import current_session, has_value, is_loaded, loaded_pef, pull_parameters
from sambaflow.tracing.torch_private import DisableTorchFunctionSubclass

_anonymous = itertools.count()

#: Methods that change the dtype: the result keeps name, batch_dim and dims.
_CASTS = frozenset("float bfloat16 half double int short long bool char byte to type".split())

#: Attributes that an empty tensor also has.
_DESCRIPTIONS = frozenset(
    "size dim ndim ndimension numel nelement device layout is_floating_point itemsize element_size nbytes is_leaf "
    "grad_fn is_cuda is_meta is_sparse".split()
)

#: Attributes that need values: an empty tensor refuses them.
_VALUES = frozenset({"item", "tolist", "numpy", "backward", "data_ptr", "retain_grad", "storage", "untyped_storage"})

#: Attribute that marks a class whose instances count as SambaTensors, such as values of a trace.
STANDS_FOR_SAMBA: Final = "_stands_for_samba"


class _SambaTensorMeta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return type.__instancecheck__(cls, instance) or getattr(type(instance), STANDS_FOR_SAMBA, False)


class SambaTensor(metaclass=_SambaTensorMeta):
    """A named tensor.

    Args:
        torch_tensor: wrapped without copying; a SambaTensor's own tensor is taken. Without it the tensor is empty and
            needs ``shape`` and ``dtype``; ``materializer(tensor, random generator)`` returns its values when needed.
        name: name of the input's symbol. Generated if absent.
        batch_dim: the axis that is divided into micro-batches, without effect on results.
        region_name: device memory region; tensors with one region name share memory.
    """

    def __init__(
        self, torch_tensor: "torch.Tensor | SambaTensor | None" = None, shape: Iterable[int] | None = None,
        dtype: torch.dtype | None = None, name: str | None = None, batch_dim: int | None = None,
        named_dims: Sequence[str | None] | None = None, sized_dims: Sequence[int | None] | None = None,
        materializer: Callable[..., torch.Tensor] | None = None, is_complex: bool | None = None,
        region_name: str | None = None,
    ) -> None:  # fmt: skip
        if isinstance(torch_tensor, SambaTensor):
            torch_tensor = torch_tensor.torch_tensor()
        if torch_tensor is None and shape is None:
            raise InvalidArgument("SambaTensor needs a torch tensor, or a shape and a dtype")
        self._tensor = torch_tensor
        self._empty = None if shape is None else (torch.Size(shape), dtype or torch.float32)
        #: Set on results of a run: function that reads the device's value at the host's first access.
        self._pull: Callable[[], torch.Tensor] | None = None
        #: Set on outputs of a graph that a trace or a run returned.
        self._is_output = False
        self._name = name or None
        self._region = region_name
        self.batch_dim = batch_dim
        self.named_dims = tuple(named_dims) if named_dims is not None else None
        self.sized_dims = tuple(sized_dims) if sized_dims is not None else None
        self.materializer = materializer
        self.is_complex_value = bool(is_complex)
        self.host_memory: bool | None = None
        self.mem_type: str | None = None

    # -- identity ----------------------------------------------------------------------------------------------------

    @property
    def sn_name(self) -> str:
        """The symbol's name; unique in a graph."""
        if self._name is None:
            self._name = f"sambatensor_{next(_anonymous)}"
        return self._name

    @sn_name.setter
    def sn_name(self, name: str) -> None:
        self._name = name

    @property
    def has_name(self) -> bool:
        """Return whether the program or a trace named it."""
        return self._name is not None

    @property
    def sn_region_name(self) -> str:
        """Name of its device memory region; its own name unless set."""
        return self._region or self.sn_name

    @sn_region_name.setter
    def sn_region_name(self, name: str) -> None:
        self._region = name

    # -- values ------------------------------------------------------------------------------------------------------

    def torch_tensor(self) -> torch.Tensor:
        """Return the torch tensor; an output of a run or trace is read from the device.

        Raises:
            InvalidArgument: the tensor is empty and has no materializer.
        """
        if self._pull is not None:
            self._tensor, self._pull = self._pull(), None
        if self._tensor is None:
            if self.materializer is None:
                if self._name is not None and has_value(self._name):
                    device: torch.Tensor = loaded_pef().read(self._name)
                    return device  # a traced output: always the device's current value
                raise InvalidArgument(f"tensor {self.sn_name!r} is empty: it has a shape but no values")
            from sambaflow.samba.lazy_param import value_of

            self._tensor = value_of(self)
        return self._tensor

    @property
    def data(self) -> torch.Tensor:
        """The torch tensor, without autograd history."""
        return self.torch_tensor().detach()

    @data.setter
    def data(self, value: "torch.Tensor | SambaTensor") -> None:
        tensor = value.torch_tensor() if isinstance(value, SambaTensor) else value
        if hasattr(self._tensor, "fake_mode"):  # during a trace of forward
            raise data_refusal(self.shape)
        if self._tensor is not None:
            self._tensor.data = tensor
        else:
            self._tensor = tensor

    @property
    def has_data(self) -> bool:
        """Return whether the tensor holds values; False on the meta device."""
        return self._pull is not None or (self._tensor is not None and self._tensor.device.type != "meta")

    def clear_data(self) -> None:
        """Drop the values, and keep shape and dtype."""
        self._empty = (self.shape, self.dtype)
        self._tensor = self._pull = None

    @property
    def shape(self) -> torch.Size:
        """Shape, also of an empty tensor."""
        if self._tensor is None and self._empty is not None:
            return self._empty[0]
        return self.torch_tensor().shape

    @property
    def dtype(self) -> torch.dtype:
        """dtype, also of an empty tensor."""
        if self._tensor is None and self._empty is not None:
            return self._empty[1]
        return self.torch_tensor().dtype

    @property
    def grad(self) -> "torch.Tensor | None":
        """The host's gradient, as in torch."""
        return self.torch_tensor().grad

    @grad.setter
    def grad(self, value: Any) -> None:
        self.torch_tensor().grad = unwrap(value)

    @property
    def requires_grad(self) -> bool:
        """Return whether the host's autograd follows it."""
        return self._tensor is not None and self._tensor.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.torch_tensor().requires_grad = value

    def requires_grad_(self, value: bool = True) -> "SambaTensor":
        """Set whether autograd follows it, as in torch; returns itself."""
        self.torch_tensor().requires_grad_(value)
        return self

    # -- the device --------------------------------------------------------------------------------------------------

    @property
    def sn_grad(self) -> torch.Tensor | None:
        """The gradient that the device computed; for an output, setting it sets the incoming gradient.

        An input has a gradient if it required one when the graph was compiled; otherwise it is None, as in torch.

        Raises:
            UnknownTensor: backward has not run, or the input requires a gradient now but did not when the graph was
                compiled.
        """
        gradient: torch.Tensor | None = loaded_pef().read_gradient(self.sn_name)
        if gradient is None and self.requires_grad and not loaded_pef().follows_gradient(self.sn_name):
            raise UnknownTensor(
                f"input {self.sn_name!r} requires a gradient, but did not when the PEF was compiled; call "
                "requires_grad_() on the input before compile too, and compile again"
            )
        return gradient

    @sn_grad.setter
    def sn_grad(self, value: "torch.Tensor | SambaTensor | None") -> None:
        loaded_pef().seed_output(self.sn_name, None if value is None else unwrap(value))

    @property
    def dsts(self) -> list[Any]:
        """The operators that read it in traces of ``trace_multigraph``; programs may change their ``inputs``."""
        found: list[Any] = current_session().multigraph.consumers(self.sn_name)
        return found

    @dsts.setter
    def dsts(self, consumers: Iterable[Any]) -> None:
        current_session().multigraph.declare_consumers(self.sn_name, consumers)

    @property
    def sn_data(self) -> torch.Tensor:
        """The device's copy of the value."""
        value: torch.Tensor = loaded_pef().read(self.sn_name)
        return value

    def cpu(self) -> "SambaTensor":
        """Copy the device's value to the host; the host copy is replaced."""
        if is_loaded(self.sn_name):
            value = loaded_pef().read(self.sn_name)
            with torch.no_grad():
                if self._tensor is not None and self._tensor.shape == value.shape:
                    self._tensor.copy_(value)
                else:
                    self._tensor = value
            self._pull = None
        return self

    cpu_ = cpu

    def rdu(self) -> "SambaTensor":
        """Copy the host's value to the device."""
        loaded_pef().program.write(self.sn_name, self.torch_tensor())
        return self

    # -- behaving like a tensor --------------------------------------------------------------------------------------

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        if has_empty((args, kwargs)):
            return infer(func, args, kwargs or {})
        pull_parameters(args, *(kwargs or {}).values())
        plain, named = unwrap(list(args)), unwrap(dict(kwargs or {}))
        return wrap(call_promoting(func, plain, named))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if not hasattr(torch.Tensor, name):
            raise AttributeError(f"'SambaTensor' object has no attribute {name!r}")
        if name not in _DESCRIPTIONS and name not in _VALUES and self._is_empty():
            return self._inferred(name)
        tensor = self._described() if name in _DESCRIPTIONS else self.torch_tensor()
        value = getattr(tensor, name)
        if not callable(value):
            return wrap(value)

        def method(*args: Any, **kwargs: Any) -> Any:
            of_class = getattr(torch.Tensor, name)
            pull_parameters(args, *kwargs.values())
            made = call_promoting(of_class, [tensor, *unwrap(list(args))], unwrap(kwargs))
            if made is tensor:
                return self
            result = wrap(made)
            return self._renamed(result) if name in _CASTS and isinstance(result, SambaTensor) else result

        return method

    def _inferred(self, name: str) -> Any:
        """Return a method or property of an empty tensor, whose results are empty tensors."""
        of_class = getattr(torch.Tensor, name)
        if not callable(of_class):
            return infer(lambda tensor: getattr(tensor, name), (self,), {})
        return lambda *args, **kwargs: infer(of_class, (self, *args), kwargs)

    def _is_empty(self) -> bool:
        """Return whether the tensor has neither values nor a source of values, but only shape and dtype."""
        return (
            self._tensor is None
            and self._pull is None
            and self.materializer is None
            and (self._name is None or not has_value(self._name))
        )

    def _described(self) -> torch.Tensor:
        """Return a tensor with the shape and dtype: the wrapped one, or one without values."""
        if self._tensor is None and self._empty is not None:
            return torch.empty((), dtype=self._empty[1]).expand(self._empty[0])
        return self.torch_tensor()

    def _renamed(self, result: "SambaTensor") -> "SambaTensor":
        """Give ``result``, which has another dtype, the name and dims of this tensor, and return it."""
        result._name, result._region = self._name, self._region
        result.batch_dim, result.named_dims, result.sized_dims = self.batch_dim, self.named_dims, self.sized_dims
        result.host_memory = self.host_memory
        return result

    def __getitem__(self, index: Any) -> Any:
        if self._is_output and self.shape == () and type(index) is int and index in {0, -1}:
            # On the device a scalar loss has shape [1], and published programs index it; ``shape`` stays torch's.
            return self[()]
        if self._is_empty():
            return infer(torch.Tensor.__getitem__, (self, index), {})
        return wrap(self.torch_tensor()[unwrap(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.torch_tensor()[unwrap(index)] = unwrap(value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return (wrap(item) for item in self.torch_tensor())

    def __bool__(self) -> bool:
        return bool(self.torch_tensor())

    def __int__(self) -> int:
        return int(self.torch_tensor())

    def __float__(self) -> float:
        return float(self.torch_tensor())

    def __index__(self) -> int:
        return self.torch_tensor().__index__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        values = self.torch_tensor().detach().numpy()
        return values.astype(dtype, copy=bool(copy)) if dtype is not None else values.copy() if copy else values

    def __dlpack__(self, **arguments: Any) -> Any:
        """Return a capsule for ``torch.as_tensor`` and ``numpy.from_dlpack``."""
        tensor = self.torch_tensor().detach()
        if type(tensor).__name__ == "FakeTensor":  # its memory has no values
            raise RuntimeError("data-dependent: a traced tensor has no values yet")
        return tensor.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.torch_tensor().__dlpack_device__()

    def __hash__(self) -> int:
        return id(self)

    def __format__(self, spec: str) -> str:
        return format(self.torch_tensor(), spec) if spec else str(self)

    def __repr__(self) -> str:
        values = repr(self._tensor) if self._tensor is not None else ("<on device>" if self._pull else "<empty>")
        dims = self.named_dims or (None,) * len(self.shape)
        return (
            f"{values} (name={self._name!r}, shape={tuple(self.shape)}, dtype={self.dtype}, "
            f"batch_dim={self.batch_dim}, named_dims={dims}, materializer_provided={self.materializer is not None})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without process-specific parts, after reading a value that is still on the device."""
        tensor = self.torch_tensor() if self.has_data or self.materializer is not None else None
        return {**self.__dict__, "_tensor": tensor, "_pull": None, "materializer": None}

    #: Another spelling that programs use; last, because it hides the module in this class's body.
    torch = torch_tensor


def from_torch_tensor(
    tensor: "torch.Tensor | SambaTensor", name: str | None = None, batch_dim: int | None = None,
    named_dims: Any = None, sized_dims: Any = None, region_name: str | None = None,
) -> SambaTensor:  # fmt: skip
    """Wrap a torch tensor without copying, so that later writes to it are visible. Graph inputs need a ``name``."""
    return SambaTensor(
        tensor, name=name, batch_dim=batch_dim, named_dims=named_dims, sized_dims=sized_dims, region_name=region_name
    )


class SambaTensors(dict[str, SambaTensor]):
    """Named SambaTensors; iterates over the tensors, in the order of their names' insertion."""

    def __iter__(self) -> Iterator[SambaTensor]:  # type: ignore[override]
        return iter(self.values())


class DimInfo:
    """A dynamic dimension; graphs here are static, so it only carries its largest size."""

    def __init__(self, max: int) -> None:
        self.max = max


def call_promoting(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a torch function; if it refuses floating operands of mixed dtypes, promote them, as the device does."""
    with DisableTorchFunctionSubclass(), quiet_refusals([*args, *kwargs.values()]):
        return _call_promoting(function, args, kwargs)


def data_refusal(shape: Sequence[int]) -> TraceError:
    """Return the error for a forward that assigns ``.data``."""
    return TraceError(
        f"forward assigns .data of a value of shape {list(shape)}, which cannot be traced; use the new value itself, "
        "or write in place under torch.no_grad()"
    )


def has_empty(value: Any) -> bool:
    """Return whether a SambaTensor inside ``value`` is empty."""
    if isinstance(value, SambaTensor):
        return value._is_empty()
    if isinstance(value, Mapping):
        return any(has_empty(item) for item in value.values())
    return isinstance(value, list | tuple) and any(has_empty(item) for item in value)


def infer(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run ``function`` on tensors without values; return empty SambaTensors of the resulting shape and dtype."""

    def described(tensor: Any) -> Any:
        if isinstance(tensor, SambaTensor):
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        return tensor.to("meta")

    def emptied(tensor: Any) -> SambaTensor:
        return SambaTensor(shape=tensor.shape, dtype=tensor.dtype)

    with DisableTorchFunctionSubclass():
        made = function(*_map_tensors(described, tuple(args)), **_map_tensors(described, dict(kwargs)))
        return _map_tensors(emptied, made)


def wrap(value: Any) -> Any:
    """Return ``value`` with its torch tensors, also those in containers, as SambaTensors; values of a trace stay."""
    return _map_tensors(lambda tensor: tensor if isinstance(tensor, SambaTensor) else SambaTensor(tensor), value)


def unwrap(value: Any) -> Any:
    """Return ``value`` with its SambaTensors, also those in containers, as torch tensors."""
    return _map_tensors(lambda tensor: tensor.torch_tensor() if isinstance(tensor, SambaTensor) else tensor, value)


_TENSORS: Final = (torch.Tensor, SambaTensor)


def _map_tensors(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``change`` to the tensors in nested dicts, lists and tuples."""
    if isinstance(value, _TENSORS):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(change, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map_tensors(change, item) for item in value))
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_map_tensors(change, item) for item in value)
    return value


def _install_operators() -> None:
    """Give SambaTensor torch's operators: Python looks them up on the class, not through ``__getattr__``."""

    def operator(name: str) -> Callable[..., Any]:
        def operate(self: SambaTensor, *others: Any) -> Any:
            return SambaTensor.__torch_function__(getattr(torch.Tensor, name), (), (self, *others))

        return operate

    def in_place(name: str) -> Callable[..., Any]:
        def operate(self: SambaTensor, other: Any) -> Any:
            made = getattr(self.torch_tensor(), name)(unwrap(other))
            return made if made is NotImplemented else self

        return operate

    words = (
        "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul neg pos abs "
        "invert and rand or ror xor rxor eq ne lt le gt ge lshift rshift"
    ).split()
    changing = "iadd isub imul idiv itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()
    for make, names in ((operator, words), (in_place, changing)):
        for name in (f"__{word}__" for word in names):
            made = make(name)
            made.__name__ = name
            setattr(SambaTensor, name, made)


_install_operators()

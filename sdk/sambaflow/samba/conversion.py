"""Conversion and creation: converts models in place, wraps and unwraps tensors, and creates random and constant
SambaTensors.

Source: SDK reference 4.1 and 4.2. Values come from torch's global generator, so ``set_seed`` makes them reproducible: a
program creates the same inputs when it compiles and when it runs.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from rdukit.pef.model import flatten_paths
from sambaflow.samba.nn.parameter import convert_parameter_
from sambaflow.samba.sambatensor import SambaTensor, SambaTensors, from_torch_tensor, unwrap
from sambaflow.sessions import current_session
from sambaflow.tracing.torch_private import disabled_torch_function


def from_torch_model_(model: nn.Module, parent_module_prefix: str | None = None) -> nn.Module:
    """Convert a model in place: its parameters get names, which identify them on the device.

    The model's name is its class name in lower case; a parameter's is the module path joined by double underscores.
    ``parent_module_prefix`` is prepended, for several instances of one class. The call is idempotent: parameters that
    were converted before, also inside another model, keep their names unless a prefix is given. A model that is
    converted after a trace with the same names replaces the traced one: ``to_device`` uploads it (SDK reference 6.3).
    Returns the model.
    """
    tie_empty_(model)
    base = re.sub(r"\W+", "", type(model).__name__.lower())
    prefix = f"{parent_module_prefix.strip('_')}__{base}" if parent_module_prefix else base
    model.name = prefix  # type: ignore[assignment]
    model.sn_prefix = f"{prefix}__"  # type: ignore[assignment]
    symbols = symbols_of(model)
    for path, parameter in model.named_parameters():
        if parent_module_prefix or not getattr(parameter, "sn_name", ""):
            convert_parameter_(parameter, symbols[path])
    if (loaded := current_session().loaded) is not None:
        places = {symbols[path]: p for path, p in model.named_parameters(remove_duplicate=False)}
        loaded.adopt(model, {**places, **parameters_of(model), **buffers_of(model)})
    return model


def tie_empty_(model: nn.Module) -> None:
    """Merge parameters without values that share memory into one parameter.

    Libraries that build a model on the meta device create a separate object for each path of tied weights, over shared
    memory (``accelerate.init_empty_weights``).
    """
    first: dict[tuple[object, ...], nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.is_meta or not parameter.numel():
                continue
            memory = parameter.untyped_storage()._cdata
            place = memory, parameter.storage_offset(), parameter.shape, parameter.stride(), parameter.dtype
            module._parameters[name] = first.setdefault(place, parameter)


def name_added_parameters_(model: nn.Module) -> None:
    """Name parameters that a program has added to a converted model, such as those of a weight normalization.

    A model that was not converted does not change.
    """
    added = {path: p for path, p in model.named_parameters() if not getattr(p, "sn_name", "")}
    if not added or not hasattr(model, "sn_prefix"):
        return
    symbols = symbols_of(model)
    for path, parameter in added.items():
        convert_parameter_(parameter, symbols[path])


#: Name in older programs.
from_torch_ = from_torch_model_


from_torch = from_torch_tensor


def from_named_dict(tensors: Mapping[str, Any]) -> SambaTensors:
    """Return SambaTensors named by key, usable as ``input_tensors``."""
    return SambaTensors(
        {name: SambaTensor(tensor, name=name) for name, tensor in tensors.items() if tensor is not None}
    )


class ScalarOutput(torch.Tensor):
    """A scalar output as a torch tensor of shape [] that also takes the index 0, over the same memory.

    On the device a scalar loss has shape [1], and published programs index it. Results computed from it, its copies,
    and saved values are plain torch tensors.
    """

    __torch_function__ = disabled_torch_function  # type: ignore[assignment]

    def plain(self) -> torch.Tensor:
        """Return the same tensor, of torch's own class."""
        return self.as_subclass(torch.Tensor)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.plain() if type(index) is int and index in {0, -1} else self.plain()[index]

    def __format__(self, spec: str) -> str:
        return format(self.plain(), spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.plain())

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return copy.deepcopy(self.plain(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def to_torch(value: Any) -> Any:
    """Return SambaTensors as torch tensors, also inside lists and tuples; torch tensors pass through.

    A scalar output, such as a loss, can be indexed by 0, like its handle: see ``ScalarOutput``.
    """
    if isinstance(value, SambaTensor):
        tensor = value.torch_tensor()
        return tensor.as_subclass(ScalarOutput) if value._is_output and tensor.shape == () else tensor
    if isinstance(value, nn.Parameter):
        return value.data
    if isinstance(value, list | tuple):
        return type(value)(to_torch(item) for item in value)
    return value


def parameters_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a converted model's parameters by symbol name."""
    return {str(getattr(p, "sn_name", "")): p for p in model.parameters()}


def buffers_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a converted model's buffers by symbol name."""
    symbols = symbols_of(model)
    return {symbols[path]: buffer for path, buffer in model.named_buffers()}


def symbols_of(model: nn.Module) -> dict[str, str]:
    """Map the paths of a converted model's parameters and buffers to symbols, unless a conversion named them before.

    Paths that would get the same name, such as ``a__weight`` and ``a.weight``, get different ones.
    """
    prefix = str(getattr(model, "sn_prefix", ""))
    tensors = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    flat = flatten_paths(path for found in tensors for path, _ in found)
    return {path: prefix + name for path, name in flat.items()}


class Creator(Protocol):
    """A torch creation function that also accepts SambaTensor's naming arguments."""

    def __call__(
        self, *args: Any, name: str = "", batch_dim: int | None = None, named_dims: Sequence[str | None] | None = None,
        sized_dims: Sequence[int | None] | None = None, region_name: str | None = None, **torch_arguments: Any,
    ) -> SambaTensor: ...  # fmt: skip


def _creator(function: Callable[..., torch.Tensor]) -> Creator:
    def create(
        *args: Any, name: str = "", batch_dim: int | None = None, named_dims: Sequence[str | None] | None = None,
        sized_dims: Sequence[int | None] | None = None, region_name: str | None = None, **torch_arguments: Any,
    ) -> SambaTensor:  # fmt: skip
        made = function(*unwrap(list(args)), **unwrap(torch_arguments))
        return SambaTensor(
            made, name=name or None, batch_dim=batch_dim, named_dims=named_dims, sized_dims=sized_dims,
            region_name=region_name,
        )  # fmt: skip

    create.__name__ = function.__name__
    create.__doc__ = f"``torch.{function.__name__}`` as a named SambaTensor."
    return create


arange = _creator(torch.arange)
full = _creator(torch.full)
normal = _creator(torch.normal)
ones = _creator(torch.ones)
rand = _creator(torch.rand)
randint = _creator(torch.randint)
randn = _creator(torch.randn)
randn_like = _creator(torch.randn_like)
tensor = _creator(torch.tensor)
zeros = _creator(torch.zeros)

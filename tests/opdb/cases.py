"""The operators of torch's own table ``op_db``, chosen samples of their arguments, and a call of one as a module."""

import contextlib
import inspect
import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from sambaflow import samba

#: Elements of all tensors of a sample together: larger samples are left out.
MAX_ELEMENTS: Final = 40_000


@dataclass(frozen=True, slots=True)
class Case:
    """One sample of one operator.

    ``dtype``: f32, the program's own; bf16, a float32 program at default precision, on values that bf16 has.
    ``training``: with gradients of all differentiable arguments, which are parameters then, not inputs.
    """

    operator: str
    sample: int
    mode: str
    dtype: str
    training: bool
    host_fallback: bool = False


def operator_table() -> dict[str, Any]:
    """Return ``op_db`` by name; variants as ``name.variant``."""
    from torch.testing._internal import common_methods_invocations as listed

    # Samples of random operators come with a seed inside the call, which the device cannot follow.
    vars(listed)["wrapper_set_seed"] = lambda function, *args, **kwargs: function(*args, **kwargs)
    table: dict[str, Any] = {}
    for op in listed.op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if name in table:
            raise AssertionError(f"op_db has two operators {name!r}")
        table[name] = op
    return table


def host_dtype(op: Any) -> torch.dtype:
    """Return f32 where the operator takes it, else the first that it takes."""
    order = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.int32)
    legal = op.supported_dtypes("cpu")
    return next((dtype for dtype in order if dtype in legal), torch.float32)


def chosen_samples(op: Any, limit: int) -> list[Any]:
    """Return at most ``limit`` samples, of as many kinds as there are; equal on every call."""
    torch.manual_seed(0)
    random.seed(0)
    dtype = host_dtype(op)
    differentiable = op.supports_autograd and dtype.is_floating_point
    found = []
    for sample in op.sample_inputs("cpu", dtype, requires_grad=differentiable):
        tensors = [t for t in tree_flatten((sample.input, sample.args, sample.kwargs))[0] if is_tensor(t)]
        if sum(t.numel() for t in tensors) <= MAX_ELEMENTS:
            found.append(sample)
    kinds: dict[Any, list[int]] = {}
    for position, sample in enumerate(found):
        kinds.setdefault(_kind(sample), []).append(position)
    firsts = [positions[0] for positions in kinds.values()]
    chosen = _spread(firsts, limit)
    rest = [position for position in range(len(found)) if position not in chosen]
    chosen += _spread(rest, limit - len(chosen))
    return [found[position] for position in sorted(chosen)]


def _kind(sample: Any) -> object:
    """Return what tells kinds of samples apart: axes and emptiness of tensors, types of the other arguments."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    return str(spec), tuple((t.dim(), t.numel() == 0, t.dtype) if is_tensor(t) else (type(t), _sort(t)) for t in leaves)


def _sort(value: object) -> object:
    """Return words and flags as they are, of whole numbers whether they are negative."""
    if isinstance(value, str | bool):
        return value
    return value < 0 if isinstance(value, int) else None


def _spread(items: Sequence[int], count: int) -> list[int]:
    """Return ``count`` of ``items``, the first and the last among them."""
    if count <= 0 or not items:
        return []
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[0]]
    return sorted({items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)})


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


class Call(nn.Module):
    """A call of an operator: its tensors are parameters or inputs, its other arguments constants.

    ``parameters``: whether tensors that require a gradient are parameters; otherwise they are inputs.
    """

    def __init__(self, op: Any, sample: Any, *, parameters: bool, rounded: bool) -> None:
        super().__init__()
        self.name = "call"
        self._function = op.op
        self._process = sample.output_process_fn_grad
        self._unbound = _names_unbound_methods(op.op)
        leaves, self._spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self._constants: list[Any] = []
        self.given: list[torch.Tensor] = []
        self._places: list[tuple[str, int]] = []
        self._weights = nn.ParameterList()
        self._trains = parameters
        #: Whether the operator gets a copy of its first tensor: it writes there, and inputs cannot be written.
        self.copies = False
        for leaf in leaves:
            if not is_tensor(leaf):
                self._places.append(("constant", len(self._constants)))
                self._constants.append(leaf)
                continue
            tensor = _own(leaf, rounded)
            if parameters and leaf.requires_grad:
                self._places.append(("parameter", len(self._weights)))
                self._weights.append(nn.Parameter(tensor))
            else:
                self._places.append(("input", len(self.given)))
                self.given.append(tensor)

    def forward(self, *inputs: Any) -> Any:
        weights = list(self._weights)
        if self._unbound:  # Python gives torch.Tensor's methods, called through the class, to tensors only
            inputs = tuple(samba.to_torch(tensor) for tensor in inputs)
        sources = {"constant": self._constants, "parameter": weights, "input": inputs}
        values = [sources[kind][position] for kind, position in self._places]
        first, args, kwargs = tree_unflatten(values, self._spec)
        if self.copies:
            first = first.clone()
        function = self._function
        if isinstance(function, MethodDescriptorType | WrapperDescriptorType):
            made = getattr(first, function.__name__)(*args, **kwargs)
        else:
            made = function(first, *args, **kwargs)
        made = self._process(made)
        # Gradients come from real numbers: those of a complex result from its two parts.
        return tree_map(_parts, made) if self._trains else made


def _parts(made: Any) -> Any:
    return torch.view_as_real(made) if isinstance(made, torch.Tensor) and made.is_complex() else made


def _own(tensor: torch.Tensor, rounded: bool) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor.detach()
    made = tensor.detach().clone(memory_format=torch.contiguous_format)
    return made.bfloat16().to(made.dtype) if rounded and made.dtype == torch.float32 else made


def _names_unbound_methods(function: Any) -> bool:
    with contextlib.suppress(OSError, TypeError):
        return "torch.Tensor." in inspect.getsource(function)
    return False


def describe(sample: Any) -> str:
    """Return the arguments of a sample for people: tensors as dtype and shape."""

    def shown(value: Any) -> Any:
        return f"{str(value.dtype)[6:]}{list(value.shape)}" if isinstance(value, torch.Tensor) else value

    return repr(tree_map(shown, (sample.input, sample.args, sample.kwargs)))[:300]

"""Memory of plain calls: a call with the same arguments creates a result like the recorded one.

A deep model makes the same calls layer after layer; torch's own recorder takes about a millisecond for each, most of it
to infer shape and dtype of the result. This module uses private parts of torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from rdukit_compiler.torch_private import (
    FakeTensor,
    get_flash_sdp_enabled,
    get_math_sdp_enabled,
    in_kernel_invocation_manager,
)

#: Types of the literals of a plain call; they are compared by type and value.
_LITERALS: Final = (
    type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


class TensorForm(NamedTuple):
    """Metadata of a plain tensor; the offset in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of a call, in enough detail to create another like it.

    ``shares`` is the position, among the call's tensors, of the one whose memory the result shares; -1 for memory of
    its own.
    """

    form: TensorForm
    device: torch.device
    shares: int

    def make(self, mode: Any, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Create another such tensor, on the meta device."""
        dtype, shape, stride, offset = self.form
        with in_kernel_invocation_manager(mode):
            if self.shares < 0:
                return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            made = torch.empty_strided((0,), (1,), dtype=dtype, device="meta")
            return made.set_(tensors[self.shares].untyped_storage(), offset, shape, stride)


class RecordedCall:
    """The arguments of one call: a key that distinguishes it from others, and the same arguments as nodes of the
    record.
    """

    __slots__ = ("_tracker", "is_plain", "key", "tensors")

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self.is_plain = True
        self.key: list[object] = []
        self.tensors: list[FakeTensor] = []

    def add_all(self, arguments: Sequence[object]) -> tuple[Any, ...]:
        return tuple(self.add(argument) for argument in arguments)

    def add(self, argument: object) -> Any:
        kind = type(argument)
        if kind is FakeTensor:
            return self._add_tensor(argument)
        if kind in {list, tuple}:
            self.key.append(("[", len(argument)))  # type: ignore[arg-type]
            return [self.add(item) for item in argument]  # type: ignore[attr-defined]
        if kind not in _LITERALS:
            self.is_plain = False
            return None
        self.key.append(kind)
        self.key.append(argument)
        return argument

    def _add_tensor(self, tensor: Any) -> Any:
        entry = self._tracker.get(tensor)
        if (
            entry is None or entry.constant is not None or tensor.constant is not None or tensor.requires_grad
            or tensor.is_conj() or tensor.is_neg() or tensor.layout is not torch.strided
        ):  # fmt: skip
            self.is_plain = False
            return None
        self.key.append(form_of(tensor))
        self.key.append(tensor.fake_device)
        self.tensors.append(tensor)
        return entry.proxy.node


def surrounding_state() -> tuple[object, ...]:
    """Return the state, other than its arguments, that decides a call's result."""
    return (
        torch.get_default_dtype(), torch.is_inference_mode_enabled(), torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
        get_flash_sdp_enabled(), get_math_sdp_enabled(),  # the attention of every device
    )  # fmt: skip


def form_of(tensor: torch.Tensor) -> TensorForm:
    return TensorForm(tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()))


def remember_result(made: object, tensors: Sequence[FakeTensor]) -> CallResult | None:
    if type(made) is not FakeTensor or made.constant is not None or made.requires_grad or made.is_conj():
        return None
    if made.is_neg() or made.layout is not torch.strided or any(made is tensor for tensor in tensors):
        return None
    memory = made.untyped_storage()
    shares = next((i for i, t in enumerate(tensors) if t.untyped_storage()._cdata == memory._cdata), -1)
    if shares < 0 and (made.storage_offset() or memory.nbytes() != _packed_bytes(made)):
        return None
    return CallResult(form_of(made), made.fake_device, shares)


def _packed_bytes(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.itemsize

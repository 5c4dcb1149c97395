"""Types and numeric limits of the device. Source: SDK reference 3, 7.2."""

from enum import Enum
from typing import Any

import torch

from rdukit.errors import InvalidArgument

#: Largest relative error when a normal f32 number is truncated to bf16's 8 significant bits.
MAX_BF16_TRUNCATE_NORMAL_REL = 2.0**-7
#: The same when it is rounded to nearest.
MAX_BF16_ROUND_NORMAL_REL = 2.0**-8


class SNType(Enum):
    """Element types of the device."""

    BOOL = "bool"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @staticmethod
    def to_torch_reference_type(t: "SNType") -> torch.dtype:
        """Return the torch dtype that holds every value; for wide unsigned ones the next larger one."""
        return _TORCH[t]


_TORCH = {
    SNType.BOOL: torch.bool, SNType.INT8: torch.int8, SNType.UINT8: torch.uint8, SNType.INT16: torch.int16,
    SNType.UINT16: torch.int32, SNType.INT32: torch.int32, SNType.UINT32: torch.int64, SNType.INT64: torch.int64,
    SNType.BF16: torch.bfloat16, SNType.FP16: torch.float16, SNType.FP32: torch.float32,
}  # fmt: skip


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """Return a torch dtype from a torch dtype, an ``SNType`` or None."""
    return _TORCH[dtype] if isinstance(dtype, SNType) else dtype


def parse_dtype(dtype: Any) -> torch.dtype:
    """Return the torch dtype that a configuration names: ``bfloat16``, ``torch.float32``, ``bf16``, ``fp32`` …

    Raises:
        InvalidArgument: the name is unknown.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    word = str(getattr(dtype, "value", dtype)).strip().lower().removeprefix("torch.")
    found = _TORCH[SNType(word)] if word in {each.value for each in SNType} else getattr(torch, word, None)
    if not isinstance(found, torch.dtype):
        raise InvalidArgument(f"unknown dtype {dtype!r}; expected a name such as bfloat16, float32, bf16 or int32")
    return found

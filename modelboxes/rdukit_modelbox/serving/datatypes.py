"""Datatypes of the Open Inference Protocol: their size, and what they are to torch and in Python's ``array``.

Source: Open Inference Protocol v2, "Tensor Data Types".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Datatype:
    """A fixed-size element type. ``array_code`` is None where JSON has no form for it (FP16, BF16: raw bytes only)."""

    name: str
    size: int
    torch_name: str
    array_code: str | None


DATATYPES: Final[Mapping[str, Datatype]] = {
    datatype.name: datatype
    for datatype in (
        Datatype("BOOL", 1, "bool", "B"),
        Datatype("UINT8", 1, "uint8", "B"),
        Datatype("INT8", 1, "int8", "b"),
        Datatype("INT16", 2, "int16", "h"),
        Datatype("INT32", 4, "int32", "i"),
        Datatype("INT64", 8, "int64", "q"),
        Datatype("FP16", 2, "float16", None),
        Datatype("BF16", 2, "bfloat16", None),
        Datatype("FP32", 4, "float32", "f"),
        Datatype("FP64", 8, "float64", "d"),
    )
}

#: Names that the protocol knows, also those that no model here takes.
KNOWN: Final = frozenset({*DATATYPES, "UINT16", "UINT32", "UINT64", "BYTES"})

BY_TORCH_NAME: Final[Mapping[str, Datatype]] = {datatype.torch_name: datatype for datatype in DATATYPES.values()}

"""Scores as the likeliest classes: ``value:index:label`` instead of numbers, for outputs that were asked for so. Pure.

Source: Triton's classification extension: BYTES [rows, count], the highest value first, values as C++'s ``to_string``
writes them. Ours: a count beyond the classes is refused, not cut; of equal values the smaller index comes first; FP16
and BF16 are classified, too.
"""

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from math import inf
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.serving.requests import InferAnswer
from rdukit_modelbox.serving.signature import Signature, TensorSpec

#: The parameter of a requested output.
PARAMETER: Final = "classification"

_LENGTH: Final = struct.Struct("<I")


def read_count(name: str, value: object) -> int:
    """The parameter of output ``name`` as a number of classes; ``check_classes`` says whether there are so many.

    Raises:
        InvalidArgument: it is no number, or below 1.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgument(f"output {name!r}: {PARAMETER} {value!r} is not legal; legal: a number of classes from 1")
    return value


def check_classes(signature: Signature, counts: Mapping[str, int]) -> None:
    """Before the work: can these outputs be classified? Names that are no outputs are left to ``check_request``.

    Raises:
        InvalidArgument: an output has no dimension of classes, fewer of them, or no numbers to compare.
    """
    for name, count in counts.items():
        spec = signature.output_of.get(name)
        if spec is None:
            continue
        classes = class_count(spec)
        if classes is None:
            raise InvalidArgument(
                f"output {name!r} is {spec.datatype} {[-1, *spec.row_shape]}, which has no classes; "
                f"legal for {PARAMETER}: numbers of shape [-1, classes]"
            )
        if count > classes:
            raise InvalidArgument(f"output {name!r}: {PARAMETER} {count} is not legal; legal: 1 to {classes}")


def class_count(spec: TensorSpec) -> int | None:
    """How many classes an output tells apart; None if it is no row of scores."""
    if not spec.row_shape or not spec.row_elements or spec.datatype == "BOOL":
        return None
    return spec.row_elements if max(spec.row_shape) == spec.row_elements else None


def classify(
    signature: Signature, answer: InferAnswer, counts: Mapping[str, int]
) -> tuple[Signature, InferAnswer]:  # fmt: skip
    """The answer with classes in the place of scores, and a signature that has them as BYTES [rows, count].

    ``counts`` is what ``check_classes`` allowed.
    """
    specs, outputs = [], list(answer.outputs)
    for spec in signature.outputs:
        count = counts.get(spec.name)
        if count is None:
            specs.append(spec)
            continue
        specs.append(TensorSpec(spec.name, "BYTES", (count,), spec.symbol))
        at = answer.names.index(spec.name)
        labels = signature.labels if spec is signature.outputs[0] else ()
        values, size = _values(spec, answer.outputs[at]), spec.row_elements
        rows = (values[first : first + size] for first in range(0, len(values), size))
        outputs[at] = join_strings([text for row in rows for text in _likeliest(row, count, labels)])
    return replace(signature, outputs=tuple(specs)), answer._replace(outputs=outputs)


def join_strings(texts: Sequence[str]) -> bytes:
    """A BYTES tensor on the wire: each element is its length, four bytes, and its UTF-8."""
    encoded = [text.encode() for text in texts]
    return b"".join(part for text in encoded for part in (_LENGTH.pack(len(text)), text))


def split_strings(data: bytes) -> Iterator[bytes]:
    """The elements of what ``join_strings`` made."""
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def _likeliest(values: Sequence[Any], count: int, labels: Sequence[str]) -> Iterator[str]:
    # What is not a number is the least likely.
    keys = [value if value == value else -inf for value in values]
    for index in nlargest(count, range(len(keys)), key=keys.__getitem__):
        value = values[index]
        text = f"{value:f}" if isinstance(value, float) else str(value)
        yield f"{text}:{index}:{labels[index]}" if labels else f"{text}:{index}"


def _values(spec: TensorSpec, data: bytes) -> list[Any]:
    if spec.datatype == "FP16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    if spec.datatype == "BF16":
        # The upper half of a single-precision number.
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return array("f", bytes(wide)).tolist()
    code = spec.type.array_code
    assert code is not None
    return array(code, data).tolist()

"""Checks of a request against a signature, and classification. Pure.

Datatypes, shapes, indices of lookup tables, parameters of requests, and the likeliest classes in place of numbers.
Source: Open Inference Protocol v2; Triton's extensions "sequence", "schedule policy", "shared memory", "binary tensor
data" and "classification".
"""

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from math import inf
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.pef.kernel import KernelGraph, Ref
from rdukit.pef.model import Graph, Pef, SectionType
from rdukit_serving.signature import KNOWN, InferRequest, InferResponse, RawTensor, ServedSignature, ServedTensor


def check_request(signature: ServedSignature, request: InferRequest) -> int:
    """Return the rows of a request, which must fit the signature.

    Raises:
        InvalidArgument: unknown, missing or repeated tensors; another datatype or shape; data of another length than
            the shape says; too many rows, or rows that differ between inputs; an output that does not exist.
    """
    specs = signature.input_of
    inputs = request.inputs
    rows = -1
    for tensor in inputs:
        spec = specs.get(tensor.name)
        if spec is None:
            raise InvalidArgument(f"inputs: there is no input {tensor.name!r}; expected {_names(signature.inputs)}")
        count = _check_tensor(spec, tensor, signature.max_batch)
        if rows not in (-1, count):
            raise InvalidArgument(
                f"input {tensor.name!r} has {count} rows, but {inputs[0].name!r} has {rows}; expected equal numbers"
            )
        rows = count
    if len(inputs) != len(specs):
        given = [tensor.name for tensor in inputs]
        twice = sorted({name for name in given if given.count(name) > 1})
        if twice:
            raise InvalidArgument(f"input {twice[0]!r} is given more than once")
        missing = [name for name in specs if name not in given]
        raise InvalidArgument(f"inputs: {', '.join(map(repr, missing))} missing; expected {_names(signature.inputs)}")
    if len(inputs) > 1 and len({tensor.name for tensor in inputs}) != len(inputs):
        raise InvalidArgument("inputs: an input is given more than once")
    if request.outputs:
        _check_outputs(signature, request.outputs)
    return rows


def _check_tensor(spec: ServedTensor, tensor: RawTensor, most: int) -> int:
    if tensor.datatype != spec.datatype:
        known = "" if tensor.datatype in KNOWN else " (the protocol has no such datatype)"
        raise InvalidArgument(
            f"input {spec.name!r}: datatype {tensor.datatype!r} is not valid{known}; expected {spec.datatype}"
        )
    shape = tensor.shape
    if len(shape) != len(spec.row_shape) + 1 or tuple(shape[1:]) != spec.row_shape:
        raise InvalidArgument(
            f"input {spec.name!r}: shape {list(shape)} is not valid; expected {[f'1..{most}', *spec.row_shape]}"
        )
    rows = shape[0]
    if not 0 < rows <= most:
        raise InvalidArgument(
            f"input {spec.name!r}: shape {list(shape)} has {rows} rows; expected 1 to {most}, the batch of the PEF"
        )
    if len(tensor.data) != rows * spec.row_bytes:
        raise InvalidArgument(
            f"input {spec.name!r}: data has {_elements(len(tensor.data), spec.type.size)}, shape {list(shape)} needs "
            f"{rows * spec.row_elements} of {spec.type.size} bytes"
        )
    return rows


def _check_outputs(signature: ServedSignature, names: Sequence[str]) -> None:
    for name in names:
        if name not in signature.output_of:
            raise InvalidArgument(f"outputs: there is no output {name!r}; expected {_names(signature.outputs)}")
    if len(set(names)) != len(names):
        raise InvalidArgument("outputs: an output is requested more than once")


def _names(specs: Sequence[ServedTensor]) -> str:
    return ", ".join(f"{spec.name} ({spec.datatype} {[-1, *spec.row_shape]})" for spec in specs)


def _elements(count: int, size: int) -> str:
    return f"{count // size} elements" if count % size == 0 else f"{count} bytes"


#: Operators after which a tensor has still the same numbers.
_SAME_NUMBERS: Final = frozenset(
    (
        "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten._to_copy.default",
        "aten.to.dtype", "aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.t.default",
        "aten.permute.default", "aten.transpose.int", "aten.flatten.using_ints", "aten.unsqueeze.default",
        "aten.squeeze.default", "aten.squeeze.dim", "aten.expand.default", "aten.slice.Tensor", "aten.select.int",
    )
)  # fmt: skip


def forward_sections(pef: Pef, graph: Graph) -> tuple[int, ...]:
    """Return ids of the graph's ``fwd`` sections, in schedule order."""
    kinds = {section.id: section.type for section in pef.sections}
    return tuple(number for number in graph.schedule if kinds[number] is SectionType.FWD)


def find_tables(
    pef: Pef, kernels: Mapping[str, KernelGraph], sections: Iterable[int], inputs: Sequence[str]
) -> dict[str, int]:
    """Return rows of the smallest table by the input symbol whose numbers choose from it.

    ``sections`` run in their order; a table is found if an unchanged input reaches it.
    """
    by_id = {section.id: section for section in pef.sections}
    #: Symbol → the input whose numbers it has.
    origins = {name: name for name in inputs}
    rows: dict[str, int] = {}
    for number in sections:
        section = by_id[number]
        kernel = kernels.get(section.kernel)
        if kernel is None:
            continue
        names = [spec.name for spec in kernel.inputs]
        same = {name: origins[s] for name, s in zip(names, section.inputs, strict=True) if s in origins}
        shapes = {spec.name: spec.shape for spec in kernel.inputs}
        for node in kernel.nodes:
            given = [argument.name if isinstance(argument, Ref) else None for argument in node.args]
            if node.op in _SAME_NUMBERS and given and given[0] in same:
                same[node.name] = same[given[0]]
            table, indices, dimension = _lookup(node.op, node.args, given)
            if table in shapes and indices in same:
                origin = same[indices]
                rows[origin] = min(rows.get(origin, shapes[table][dimension]), shapes[table][dimension])
        for symbol, value in zip(section.outputs, kernel.outputs, strict=True):
            if value in same:
                origins[symbol] = same[value]
    return rows


def _lookup(op: str, arguments: Sequence[object], names: Sequence[str | None]) -> tuple[str, str, int]:
    """Return names of table and indices, and the dimension they choose along; empty if it is not a lookup."""
    match op:
        case "aten.embedding.default":
            return names[0] or "", names[1] or "", 0
        case "aten.index_select.default":
            dimension = arguments[1]
            return names[0] or "", names[2] or "", dimension if isinstance(dimension, int) else 0
    return "", "", 0


def check_indices(signature: ServedSignature, request: InferRequest) -> None:
    """Check that all indices choose a row. Other mistakes are left to ``check_request``.

    Raises:
        InvalidArgument: a number is negative or beyond its table.
    """
    for tensor in request.inputs:
        spec = signature.input_of.get(tensor.name)
        if spec is None or spec.rows_of_table is None or tensor.datatype != spec.datatype:
            continue
        code = spec.type.array_code
        if code is None or len(tensor.data) % spec.type.size or not len(tensor.data):
            continue
        numbers = array(code, bytes(tensor.data))
        low, high = min(numbers), max(numbers)
        if low < 0 or high >= spec.rows_of_table:
            wrong = low if low < 0 else high
            raise InvalidArgument(
                f"input {spec.name!r}: {wrong} is not valid; expected 0 to {spec.rows_of_table - 1}, rows of a table"
            )


#: The parameter of a requested output.
PARAMETER: Final = "classification"

_LENGTH: Final = struct.Struct("<I")


def read_count(name: str, value: object) -> int:
    """Return the parameter of output ``name`` as a number of classes; ``check_classes`` compares it.

    Raises:
        InvalidArgument: the value is not a number, or is below 1.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgument(
            f"output {name!r}: {PARAMETER} {value!r} is not valid; expected a number of classes from 1"
        )
    return value


def check_classes(signature: ServedSignature, counts: Mapping[str, int]) -> None:
    """Check that these outputs can be classified. Unknown names are left to ``check_request``.

    Raises:
        InvalidArgument: an output has no dimension of classes, too few classes, or no comparable numbers.
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
            raise InvalidArgument(f"output {name!r}: {PARAMETER} {count} is not valid; expected 1 to {classes}")


def class_count(spec: ServedTensor) -> int | None:
    """Return the number of classes of an output; ``None`` unless its rows are scores."""
    if not spec.row_shape or not spec.row_elements or spec.datatype == "BOOL":
        return None
    return spec.row_elements if max(spec.row_shape) == spec.row_elements else None


def classify(
    signature: ServedSignature, answer: InferResponse, counts: Mapping[str, int]
) -> tuple[ServedSignature, InferResponse]:  # fmt: skip
    """Return response and signature with classes in place of scores, as BYTES [rows, count].

    ``counts``: values that ``check_classes`` has accepted.
    """
    specs, outputs = [], list(answer.outputs)
    for spec in signature.outputs:
        count = counts.get(spec.name)
        if count is None:
            specs.append(spec)
            continue
        specs.append(ServedTensor(spec.name, "BYTES", (count,), spec.symbol))
        at = answer.names.index(spec.name)
        labels = signature.labels if spec is signature.outputs[0] else ()
        values, size = _values(spec, answer.outputs[at]), spec.row_elements
        rows = (values[first : first + size] for first in range(0, len(values), size))
        outputs[at] = join_strings([text for row in rows for text in _likeliest(row, count, labels)])
    return replace(signature, outputs=tuple(specs)), answer._replace(outputs=outputs)


def join_strings(texts: Sequence[str]) -> bytes:
    """Encode a BYTES tensor: each element is its length, four bytes, and its UTF-8."""
    encoded = [text.encode() for text in texts]
    return b"".join(part for text in encoded for part in (_LENGTH.pack(len(text)), text))


def split_strings(data: bytes) -> Iterator[bytes]:
    """Decode a BYTES tensor, as ``join_strings`` encodes it."""
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def _likeliest(values: Sequence[Any], count: int, labels: Sequence[str]) -> Iterator[str]:
    # NaN sorts as the least likely.
    keys = [value if value == value else -inf for value in values]
    for index in nlargest(count, range(len(keys)), key=keys.__getitem__):
        value = values[index]
        text = f"{value:f}" if isinstance(value, float) else str(value)
        yield f"{text}:{index}:{labels[index]}" if labels else f"{text}:{index}"


def _values(spec: ServedTensor, data: bytes) -> list[Any]:
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


#: Expected values, as text, of a REST request's parameters by name.
REQUEST_PARAMETERS: Final[Mapping[str, str]] = {"binary_data_output": "true or false", "timeout": "microseconds"}
INPUT_PARAMETERS: Final[Mapping[str, str]] = {"binary_data_size": "a number of bytes"}
OUTPUT_PARAMETERS: Final[Mapping[str, str]] = {"binary_data": "true or false", PARAMETER: "a number of classes"}
#: Over gRPC, where contents are raw or typed for a whole request.
GRPC_REQUEST_PARAMETERS: Final[Mapping[str, str]] = {"timeout": "microseconds"}
GRPC_OUTPUT_PARAMETERS: Final[Mapping[str, str]] = {PARAMETER: "a number of classes"}

_SEQUENCES: Final = "sequences are not supported, because requests are independent"
_SHARED_MEMORY: Final = "shared memory is not supported; send tensors in the request, and read them from its answer"
#: The protocol's own parameters that mean nothing here, and why.
_NOT_SERVED: Final[Mapping[str, str]] = {
    "sequence_id": _SEQUENCES, "sequence_start": _SEQUENCES, "sequence_end": _SEQUENCES,
    "priority": "requests have no priorities and are answered in order of arrival",
    "shared_memory_region": _SHARED_MEMORY, "shared_memory_offset": _SHARED_MEMORY,
    "shared_memory_byte_size": _SHARED_MEMORY,
}  # fmt: skip
#: Values that mean that a request does not use the parameter.
_UNUSED: Final = (0, "", False)


def check_parameters(given: Mapping[str, object], legal: Mapping[str, str], where: str) -> None:
    """Raise ``InvalidArgument`` for the first parameter that is not in ``legal``, unless it says "not used"."""
    for name, value in given.items():
        if name in legal:
            continue
        reason = _NOT_SERVED.get(name)
        if reason is None:
            listed = ", ".join(legal) or "none"
            raise InvalidArgument(f"{where}: parameter {name[:80]!r} is not served; expected {listed}")
        if value not in _UNUSED:
            raise InvalidArgument(f"{where}: parameter {name!r} is not served: {reason}; leave it out")


def read_timeout(given: Mapping[str, object]) -> int:
    """Return the microseconds for which a request's caller waits for an answer; 0: without limit.

    Source: Triton's extension of schedule policies, the parameter ``timeout``.

    Raises:
        InvalidArgument: the value is not a number of microseconds.
    """
    value = given.get("timeout", 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        shown = repr(value)[:80]
        raise InvalidArgument(f"parameters: timeout {shown} is not valid; expected microseconds, 0 to wait, below 2^63")
    return value

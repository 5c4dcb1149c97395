"""Is a request one that a signature allows? Pure. Every refusal names the tensor, what it has, and what is legal."""

from collections.abc import Sequence

from rdukit.errors import InvalidArgument
from rdukit_modelbox.serving.datatypes import KNOWN
from rdukit_modelbox.serving.requests import GivenTensor, InferRequest
from rdukit_modelbox.serving.signature import Signature, TensorSpec


def check_request(signature: Signature, request: InferRequest) -> int:
    """The rows of a legal request.

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
            raise InvalidArgument(f"inputs: there is no input {tensor.name!r}; legal: {_names(signature.inputs)}")
        count = _check_tensor(spec, tensor, signature.max_batch)
        if rows not in (-1, count):
            raise InvalidArgument(
                f"input {tensor.name!r} has {count} rows, {inputs[0].name!r} has {rows}; legal: equal"
            )
        rows = count
    if len(inputs) != len(specs):
        given = [tensor.name for tensor in inputs]
        twice = sorted({name for name in given if given.count(name) > 1})
        if twice:
            raise InvalidArgument(f"input {twice[0]!r} is given more than once")
        missing = [name for name in specs if name not in given]
        raise InvalidArgument(f"inputs: {', '.join(map(repr, missing))} missing; legal: {_names(signature.inputs)}")
    if len(inputs) > 1 and len({tensor.name for tensor in inputs}) != len(inputs):
        raise InvalidArgument("inputs: an input is given more than once")
    if request.outputs:
        _check_outputs(signature, request.outputs)
    return rows


def _check_tensor(spec: TensorSpec, tensor: GivenTensor, most: int) -> int:
    if tensor.datatype != spec.datatype:
        known = "" if tensor.datatype in KNOWN else " (the protocol has no such datatype)"
        raise InvalidArgument(
            f"input {spec.name!r}: datatype {tensor.datatype!r} is not legal{known}; legal: {spec.datatype}"
        )
    shape = tensor.shape
    if len(shape) != len(spec.row_shape) + 1 or tuple(shape[1:]) != spec.row_shape:
        raise InvalidArgument(
            f"input {spec.name!r}: shape {list(shape)} is not legal; legal: {[f'1..{most}', *spec.row_shape]}"
        )
    rows = shape[0]
    if not 0 < rows <= most:
        raise InvalidArgument(
            f"input {spec.name!r}: shape {list(shape)} has {rows} rows; legal: 1 to {most}, the batch of the PEF"
        )
    if len(tensor.data) != rows * spec.row_bytes:
        raise InvalidArgument(
            f"input {spec.name!r}: data has {_elements(len(tensor.data), spec.type.size)}, shape {list(shape)} needs "
            f"{rows * spec.row_elements} of {spec.type.size} bytes"
        )
    return rows


def _check_outputs(signature: Signature, names: Sequence[str]) -> None:
    for name in names:
        if name not in signature.output_of:
            raise InvalidArgument(f"outputs: there is no output {name!r}; legal: {_names(signature.outputs)}")
    if len(set(names)) != len(names):
        raise InvalidArgument("outputs: an output is asked for more than once")


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} ({spec.datatype} {[-1, *spec.row_shape]})" for spec in specs)


def _elements(count: int, size: int) -> str:
    return f"{count // size} elements" if count % size == 0 else f"{count} bytes"

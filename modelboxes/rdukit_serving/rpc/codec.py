"""Inference requests and answers as the protocol's gRPC messages. Pure.

Source: Open Inference Protocol v2, "gRPC": contents are typed or raw, for all tensors alike, never mixed.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from google.protobuf.unknown_fields import UnknownFieldSet

from rdukit.errors import InvalidArgument
from rdukit.proto import inference_pb2 as pb
from rdukit_serving.checks import (
    GRPC_OUTPUT_PARAMETERS,
    GRPC_REQUEST_PARAMETERS,
    INPUT_PARAMETERS,
    PARAMETER,
    check_parameters,
    read_count,
    read_timeout,
    split_strings,
)
from rdukit_serving.signature import DATATYPES, KNOWN, InferRequest, InferResponse, RawTensor, ServedSignature

#: Datatype -> field of the typed contents.
_CONTENTS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip

#: Numbers of rows and choices of outputs that are remembered.
MAX_FORMS: Final = 256


def parse_infer(message: Any) -> tuple[InferRequest, bool]:
    """Return the request, and whether its contents are raw.

    Raises:
        InvalidArgument: raw and typed contents together, another number of raw contents than of inputs, typed
            contents in another field than the datatype's, or a parameter or field, at any depth, that is not served.
    """
    raw = message.raw_input_contents
    if len(UnknownFieldSet(message)):
        _refuse_unknown(message, "the request")
    timeout_us = 0
    if message.parameters:
        given = parameter_values(message.parameters)
        check_parameters(given, GRPC_REQUEST_PARAMETERS, "parameters")
        timeout_us = read_timeout(given)
    for tensor in message.inputs:
        if len(UnknownFieldSet(tensor)):
            _refuse_unknown(tensor, f"input {tensor.name!r}")
        if tensor.parameters:
            # KServe's client also sends the size over gRPC; only the size of the contents is checked.
            check_parameters(parameter_values(tensor.parameters), INPUT_PARAMETERS, f"input {tensor.name!r}")
    outputs, classes = _outputs(message.outputs) if message.outputs else ((), None)
    if raw:
        inputs = message.inputs
        if len(raw) != len(inputs):
            raise InvalidArgument(
                f"raw_input_contents has {len(raw)} entries for {len(inputs)} inputs; expected one each"
            )
        tensors = []
        for tensor, data in zip(inputs, raw, strict=True):
            if tensor.HasField("contents"):
                raise InvalidArgument(
                    f"input {tensor.name!r} has both contents and raw_input_contents; expected one of them"
                )
            given = tensor.parameters
            if given and "binary_data_size" in given and parameter_values(given)["binary_data_size"] != len(data):
                raise InvalidArgument(
                    f"input {tensor.name!r}: binary_data_size is not valid; expected {len(data)}, the "
                    "raw bytes, or none"
                )
            tensors.append(RawTensor(tensor.name, tensor.datatype, tensor.shape, data))
        return InferRequest(tensors, outputs, message.id, classes, timeout_us), True
    tensors = [RawTensor(t.name, t.datatype, t.shape, _typed(t)) for t in message.inputs]
    return InferRequest(tensors, outputs, message.id, classes, timeout_us), False


def render_infer(
    name: str, version: str, signature: ServedSignature, request: InferRequest, answer: InferResponse, is_raw: bool,
    load_us: int = 0,
) -> Any:  # fmt: skip
    """Return the answer in the caller's form; its parameters include the times of its phases in microseconds.

    Requests compile nothing; ``load_us`` is the time of loading the version once.
    """
    response = _fixed_part(name, version, signature, answer, load_us)
    for tensor, data in zip(response.outputs, answer.outputs, strict=True):
        if is_raw:
            response.raw_output_contents.append(data)
        elif tensor.datatype == "BYTES":
            tensor.contents.bytes_contents.extend(split_strings(data))
        else:
            code = DATATYPES[tensor.datatype].array_code
            assert code is not None
            getattr(tensor.contents, _CONTENTS[tensor.datatype]).extend(array(code, data))
    response.MergeFrom(_own_part(request, answer))
    return response


class RawAnswers:
    """Encoder of raw answers of one version; their common part is encoded once."""

    def __init__(self, name: str, version: str, signature: ServedSignature, load_us: int) -> None:
        self.signature = signature
        self._of = name, version, signature
        self._load_us = load_us
        self._fixed: dict[tuple[int, tuple[str, ...]], bytes] = {}

    def render(self, request: InferRequest, answer: InferResponse) -> bytes:
        """Encode a message of two parts, whose concatenation is their union. Source: protobuf's encoding."""
        key = answer.rows, tuple(answer.names)
        fixed = self._fixed.get(key)
        if fixed is None:
            fixed = _fixed_part(*self._of, answer, self._load_us).SerializeToString()
            if len(self._fixed) < MAX_FORMS:
                self._fixed[key] = fixed
        own = _own_part(request, answer)
        own.raw_output_contents.extend(answer.outputs)
        rest: bytes = own.SerializeToString()
        return fixed + rest


def _fixed_part(name: str, version: str, signature: ServedSignature, answer: InferResponse, load_us: int) -> Any:
    """Encode the common part of all answers with this many rows of these outputs."""
    response = pb.ModelInferResponse(model_name=name, model_version=version)
    for output in answer.names:
        spec = signature.output_of[output]
        response.outputs.add(name=output, datatype=spec.datatype, shape=(answer.rows, *spec.row_shape))
    response.parameters["load_us"].int64_param = load_us
    response.parameters["compile_us"].int64_param = 0
    return response


def _own_part(request: InferRequest, answer: InferResponse) -> Any:
    """Encode the part that only this answer has, except the contents."""
    response, timing = pb.ModelInferResponse(id=request.id), answer.timing
    response.parameters["queue_us"].int64_param = timing.queue
    response.parameters["compute_us"].int64_param = timing.copy_in + timing.compute + timing.copy_out
    return response


def needs_raw_outputs(signature: ServedSignature, request: InferRequest) -> bool:
    """Return whether an output has no typed form; then all of the answer goes out raw."""
    classes = request.classes or ()
    return any(
        spec.datatype not in _CONTENTS and spec.name not in classes
        for spec in signature.outputs
        if not request.outputs or spec.name in request.outputs
    )


def parameter_values(parameters: Mapping[str, Any]) -> dict[str, object]:
    """Return plain values of a map of parameters."""
    values: dict[str, object] = {}
    for name, parameter in parameters.items():
        if len(UnknownFieldSet(parameter)):
            _refuse_unknown(parameter, f"parameter {name!r}")
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise InvalidArgument(f"parameter {name!r} has no value")
        values[name] = getattr(parameter, kind)
    return values


def _refuse_unknown(message: Any, what: str) -> NoReturn:
    number, kind = UnknownFieldSet(message)[0].field_number, message.DESCRIPTOR.name
    raise InvalidArgument(f"{what} has a field {number}, which the protocol's {kind} lacks; leave it out")


def _outputs(given: Sequence[Any]) -> tuple[list[str], Mapping[str, int] | None]:
    """Return the names of the requested outputs, and the number of classes for some of them."""
    names: list[str] = []
    classes: dict[str, int] = {}
    for output in given:
        names.append(output.name)
        if len(UnknownFieldSet(output)):
            _refuse_unknown(output, f"output {output.name!r}")
        if output.parameters:
            values = parameter_values(output.parameters)
            check_parameters(values, GRPC_OUTPUT_PARAMETERS, f"output {output.name!r}")
            if PARAMETER in values:
                classes[output.name] = read_count(output.name, values[PARAMETER])
    return names, classes or None


def _typed(tensor: Any) -> bytes:
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        if tensor.datatype in DATATYPES:
            raise InvalidArgument(f"input {tensor.name!r}: {tensor.datatype} has no typed contents; send raw bytes")
        known = ", which is not served" if tensor.datatype in KNOWN else ""
        raise InvalidArgument(
            f"input {tensor.name!r}: datatype {tensor.datatype!r}{known}; expected {', '.join(DATATYPES)}"
        )
    contents = tensor.contents
    if len(UnknownFieldSet(contents)):
        _refuse_unknown(contents, f"contents of input {tensor.name!r}")
    values: Sequence[Any] = getattr(contents, field)
    if not values:
        given = [other.name for other, _ in contents.ListFields()]
        if given:
            raise InvalidArgument(f"input {tensor.name!r} is {tensor.datatype} but has {given[0]}; expected {field}")
    code = DATATYPES[tensor.datatype].array_code
    assert code is not None
    try:
        return array(code, values).tobytes()
    except OverflowError as cause:
        raise InvalidArgument(
            f"input {tensor.name!r}: contents have a value that {tensor.datatype} cannot hold"
        ) from cause

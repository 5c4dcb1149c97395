"""One inference over REST: check its headers and body, queue it, and write the response. Never waits.

JSON bodies, and binary tensors behind them. Source: Open Inference Protocol v2, "HTTP/REST"; Triton's extensions for
binary data and classification.
"""

import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from rdukit.errors import ERROR_HEADER, InvalidArgument, RdukitError, RequestTooLarge
from rdukit.settings import resolve
from rdukit.strict_json import refuse_duplicates
from rdukit.telemetry.model import SpanContext
from rdukit_serving.access import Access, AccessLog
from rdukit_serving.checks import (
    INPUT_PARAMETERS,
    OUTPUT_PARAMETERS,
    PARAMETER,
    REQUEST_PARAMETERS,
    check_parameters,
    classify,
    read_count,
    read_timeout,
    split_strings,
)
from rdukit_serving.models.tracing import TRACE_HEADER, find_wanted, tell_batch, tell_spans
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.settings import MAX_INFER_BYTES
from rdukit_serving.signature import DATATYPES, KNOWN, InferRequest, InferResponse, RawTensor, Reply, ServedSignature

Header = tuple[bytes, bytes]

JSON: Final = (b"content-type", b"application/json")
_BINARY: Final = (b"content-type", b"application/octet-stream")


class RestRequest(InferRequest):
    """Request, and the outputs that are wanted as binary."""

    __slots__ = ("binary",)

    def __init__(
        self, inputs: Sequence[RawTensor], outputs: Sequence[str], id: str, binary: frozenset[str] | bool,
        classes: Mapping[str, int] | None = None, timeout_us: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(inputs, outputs, id, classes, timeout_us)
        #: Names of outputs that go out as binary; True: all.
        self.binary = binary


class QueuedInference(NamedTuple):
    """Request that waits for the device."""

    name: str
    version: ModelVersion
    request: RestRequest
    #: Trace of a caller who requested timing.
    trace: SpanContext | None = None


class RequestHead(NamedTuple):
    """Headers of an inference, read: bytes of the JSON part if binary tensors follow it, and the caller's trace."""

    length: int | None = None
    trace: SpanContext | None = None


class RestInference:
    """Steps of one inference; ``max_bytes`` is the longest body."""

    def __init__(self, access: Access, access_log: AccessLog) -> None:
        self._access = access
        self._log = access_log
        self.max_bytes: int = resolve(MAX_INFER_BYTES)

    def read_headers(self, headers: Iterable[Header]) -> RequestHead:
        """Check the token, and parse the other headers.

        Raises:
            Unauthenticated: no token that the box knows. InvalidArgument: an encoding that is not served.
        """
        length, authorization, trace = None, None, None
        for key, value in headers:
            if key == b"inference-header-content-length":
                length = _number(value)
            elif key == b"authorization":
                authorization = value
            elif key == TRACE_HEADER:
                trace = find_wanted(value)
            elif key == b"content-encoding":
                raise InvalidArgument(
                    f"Content-Encoding {value.decode('latin-1')!r} is not supported; send the body without encoding"
                )
        self._access.check(authorization)
        return RequestHead(length, trace)

    def check_size(self, size: int) -> None:
        """Raise ``RequestTooLarge`` for a body that is longer than the setting allows."""
        if size > self.max_bytes:
            raise RequestTooLarge(f"the body is longer than {self.max_bytes} bytes (box.max_infer_bytes)")

    def queue(self, name: str, version: ModelVersion, body: bytes, head: RequestHead, reply: Reply) -> QueuedInference:
        """Check the body and queue the request for ``reply``.

        Raises:
            InvalidArgument: the signature does not allow it. Overloaded: too many wait.
            Unavailable: the version is not loaded.
        """
        signature = version.signature
        try:
            request = parse_infer(body, head.length)
            if needs_form_check(signature):
                check_forms(signature, request)
        except InvalidArgument:
            version.statistics.count_failed(1)
            raise
        version.enqueue(request, reply)
        return QueuedInference(name, version, request, head.trace)

    def answer(self, queued: QueuedInference, answer: InferResponse) -> tuple[list[Header], bytes]:
        """Return headers without the length, and the body."""
        name, version, request, trace = queued
        signature = version.signature
        if request.classes:
            signature, answer = classify(signature, answer, request.classes)
        text, length = render_infer(name, version.version, signature, request, answer)
        timing = answer.timing
        if self._log.is_on:
            self._log.add("rest", name, version.version, 200, answer.rows, timing.queue, timing.compute)
        # Milliseconds; nothing is compiled for a request. Source: W3C Server Timing.
        work = (timing.copy_in + timing.compute + timing.copy_out) / 1000
        spent = (timing.queue / 1000, work, version.load_seconds * 1000)
        milliseconds = b"queue;dur=%.3f, compute;dur=%.3f, load;dur=%.0f, compile;dur=0" % spent
        if trace is not None:
            milliseconds += tell_batch(answer)
            tell_spans(trace, name, version.version, answer)
        headers = [JSON if length is None else _BINARY, (b"server-timing", milliseconds)]
        if length is not None:
            headers.append((b"inference-header-content-length", b"%d" % length))
        return headers, text

    def refuse(self, name: str, error: RdukitError) -> tuple[bytes, tuple[bytes, bytes]]:
        """Return the body for a request that is refused or failed, and a header with the error's code."""
        if self._log.is_on:
            self._log.add("rest", name, "", error.http_status, 0, 0, 0)
        return orjson.dumps({"error": error.message}), (ERROR_HEADER.encode(), error.code.encode())


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 12:
        raise InvalidArgument(
            f"Inference-Header-Content-Length {text.decode('latin-1')!r} is not valid; expected a number"
        )
    return int(text)


_NUMPY: Final[Mapping[str, str]] = {
    "BOOL": "?", "UINT8": "u1", "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP32": "<f4",
    "FP64": "<f8",
}  # fmt: skip


_NO_DATA: Final = msgspec.Raw(b"")

#: Outputs from this size on are written by way of numpy.
_LONG_BYTES: Final = 2048


#: Parameters: absent, null, or by name.
_Parameters = dict[str, Any] | msgspec.UnsetType | None


class _Input(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    name: str
    shape: list[int]
    datatype: str
    data: msgspec.Raw = _NO_DATA
    parameters: _Parameters = msgspec.UNSET


class _Output(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    name: str
    parameters: _Parameters = msgspec.UNSET


class _Request(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    inputs: list[_Input]
    id: str | msgspec.UnsetType = msgspec.UNSET
    outputs: list[_Output] | msgspec.UnsetType | None = msgspec.UNSET
    parameters: _Parameters = msgspec.UNSET


_decode_request: Final[Callable[[bytes | memoryview], _Request]] = msgspec.json.Decoder(_Request).decode
_decode_floats: Final = msgspec.json.Decoder(list[float]).decode
_decode_ints: Final = msgspec.json.Decoder(list[int]).decode
_decode_bools: Final = msgspec.json.Decoder(list[bool]).decode


def parse_infer(body: bytes, header_length: int | None) -> RestRequest:
    """Read a request; with ``header_length``, the JSON is only so long and binary tensors follow.

    Raises:
        InvalidArgument: not JSON, a field that is missing, unknown, given twice or of another type, a parameter that is
            not served, data that does not fit its datatype, or binary data that does not add up.
    """
    json_part: bytes | memoryview = body
    rest = memoryview(b"")
    if header_length is not None:
        if not 0 <= header_length <= len(body):
            raise InvalidArgument(
                f"Inference-Header-Content-Length {header_length} is not valid; expected 0 to {len(body)}, the body"
            )
        json_part, rest = memoryview(body)[:header_length], memoryview(body)[header_length:]
    try:
        request = _decode_request(json_part)
    except msgspec.ValidationError as cause:
        raise InvalidArgument(f"the request is malformed: {cause}") from cause
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"the request is not JSON: {cause}") from cause
    except RecursionError as cause:
        raise InvalidArgument("the request is malformed: it is nested too deeply") from cause
    _check_keys(request, json_part)
    inputs, at = [], 0
    for given in request.inputs:
        size = given.parameters.get("binary_data_size") if given.parameters else None
        if size is None:
            data: bytes | memoryview = _from_json(given)
        else:
            data = _from_binary(given, size, rest, at)
            at += len(data)
        inputs.append(RawTensor(given.name, given.datatype, given.shape, data))
    if at != len(rest):
        raise InvalidArgument(f"{len(rest)} bytes follow the JSON, but the inputs' binary_data_size add up to {at}")
    identity = request.id or ""
    if not request.outputs and not request.parameters:
        return RestRequest(inputs, (), identity, False)
    outputs = request.outputs or ()
    return RestRequest(
        inputs, [o.name for o in outputs], identity, _wanted_as_binary(request), _wanted_as_classes(outputs),
        read_timeout(request.parameters or {}),
    )  # fmt: skip


def render_infer(
    name: str, version: str, signature: ServedSignature, request: RestRequest, answer: InferResponse
) -> tuple[bytes, int | None]:
    """Return the body, and the length of its JSON part when binary tensors follow.

    Values that are not finite become ``NaN``, ``Infinity`` or ``-Infinity``, which JSON lacks. The protocol's own
    clients (``tritonclient``) read them; strict readers refuse the answer. As null, an infinity would be read as NaN.

    Raises:
        InvalidArgument: an FP16 or BF16 output was requested as JSON, which cannot hold it.
    """
    binary = request.binary
    outputs: list[dict[str, object]] = []
    blobs: list[bytes] = []
    specs = signature.output_of
    for output, data in zip(answer.names, answer.outputs, strict=True):
        spec = specs[output]
        value: dict[str, object] = {
            "name": output, "datatype": spec.datatype, "shape": [answer.rows, *spec.row_shape],
        }  # fmt: skip
        if binary is True or (binary and output in binary):
            value["parameters"] = {"binary_data_size": len(data)}
            blobs.append(data)
        else:
            value["data"] = _numbers(data, spec.datatype)
        outputs.append(value)
    body: dict[str, object] = {"model_name": name, "model_version": version}
    if request.id:
        body["id"] = request.id
    body["outputs"] = outputs
    text = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in text:  # what orjson writes for values that are no numbers
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False, default=lambda a: a.tolist()).encode()
    return (b"".join((text, *blobs)), len(text)) if blobs else (text, None)


def _numbers(data: bytes, datatype: str) -> object:
    """Return a list of numbers in the form that orjson writes. Long ones go through numpy, which costs 13 MB once."""
    if datatype == "BYTES":
        return [text.decode() for text in split_strings(data)]
    if len(data) < _LONG_BYTES:
        code = DATATYPES[datatype].array_code
        assert code is not None
        numbers = array(code, data).tolist()
        return list(map(bool, numbers)) if datatype == "BOOL" else numbers
    import numpy as np

    return np.frombuffer(data, _NUMPY[datatype])


def check_forms(signature: ServedSignature, request: RestRequest) -> None:
    """Check that every output has the requested form.

    Raises:
        InvalidArgument: FP16 and BF16 have no JSON form.
    """
    if request.binary is True:
        return
    classes = request.classes or ()
    for spec in signature.outputs:
        is_wanted = (not request.outputs or spec.name in request.outputs) and spec.name not in classes
        if is_wanted and spec.datatype not in _NUMPY and not (request.binary and spec.name in request.binary):
            raise InvalidArgument(
                f'output {spec.name!r} is {spec.datatype}, which JSON lacks; request "binary_data": true'
            )


def needs_form_check(signature: ServedSignature) -> bool:
    """Return whether an output has no JSON form, so that ``check_forms`` may refuse."""
    return any(spec.datatype not in _NUMPY for spec in signature.outputs)


def _check_keys(request: _Request, text: bytes | memoryview) -> None:
    """Check that no key comes twice and that all parameters are served.

    A repeated key adds a colon that the read keys do not explain; if other text has colons, all is read again.
    """
    keys = 1 + (request.id is not msgspec.UNSET) + (request.outputs is not msgspec.UNSET)
    keys += _count(request.parameters, REQUEST_PARAMETERS, "parameters")
    for given in request.inputs:
        keys += 3 + (given.data is not _NO_DATA)
        keys += _count(given.parameters, INPUT_PARAMETERS, "input", given.name)
    for output in request.outputs or ():
        keys += 1 + _count(output.parameters, OUTPUT_PARAMETERS, "output", output.name)
    whole = bytes(text)
    if whole.count(b":") != keys:
        refuse_duplicates(whole)


def _count(parameters: _Parameters, legal: Mapping[str, str], kind: str, name: str | None = None) -> int:
    """Check parameters, and return their number of JSON keys, with the key ``parameters`` itself."""
    if parameters is msgspec.UNSET:
        return 0
    if not parameters:
        return 1
    check_parameters(parameters, legal, kind if name is None else f"{kind} {name!r}")
    return 1 + len(parameters)


def _wanted_as_binary(request: _Request) -> frozenset[str] | bool:
    every = _flag(request.parameters, "binary_data_output", "parameters")
    named = set()
    for output in request.outputs or ():
        if _flag(output.parameters, "binary_data", f"output {output.name!r}", default=every):
            named.add(output.name)
    if not request.outputs:
        return every
    return frozenset(named)


def _wanted_as_classes(outputs: Sequence[_Output]) -> Mapping[str, int] | None:
    wanted = [(o.name, o.parameters) for o in outputs if o.parameters and PARAMETER in o.parameters]
    return {name: read_count(name, parameters[PARAMETER]) for name, parameters in wanted} or None


def _flag(parameters: _Parameters, name: str, where: str, default: bool = False) -> bool:
    value = parameters.get(name, default) if parameters else default
    if not isinstance(value, bool):
        raise InvalidArgument(f"{where}: {name} {value!r} is not valid; expected true or false")
    return value


def _from_binary(given: _Input, size: object, rest: memoryview, at: int) -> memoryview:
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InvalidArgument(
            f"input {given.name!r}: binary_data_size {size!r} is not valid; expected a number of bytes"
        )
    if given.data is not _NO_DATA:
        raise InvalidArgument(f"input {given.name!r} has both data and binary_data_size; expected one of them")
    if at + size > len(rest):
        raise InvalidArgument(
            f"input {given.name!r}: binary_data_size is {size}, but {len(rest) - at} bytes are left in the body"
        )
    return rest[at : at + size]


def _from_json(given: _Input) -> bytes:
    if given.data is _NO_DATA:
        raise InvalidArgument(f"input {given.name!r} has neither data nor the parameter binary_data_size")
    datatype = DATATYPES.get(given.datatype)
    if datatype is None:
        known = ", which is not served" if given.datatype in KNOWN else ""
        raise InvalidArgument(
            f"input {given.name!r}: datatype {given.datatype!r}{known}; expected {', '.join(DATATYPES)}"
        )
    if datatype.array_code is None:
        raise InvalidArgument(f"input {given.name!r}: JSON has no form for {given.datatype}; send it as binary data")
    values = _read_values(given, datatype.name)
    try:
        packed = array(datatype.array_code, values)
    except OverflowError as cause:
        raise InvalidArgument(f"input {given.name!r}: data has a value that {given.datatype} cannot hold") from cause
    if datatype.array_code == "f" and not isfinite(sum(packed)):
        raise InvalidArgument(f"input {given.name!r}: data has a value that {given.datatype} cannot hold")
    return packed.tobytes()


def _read_values(given: _Input, datatype: str) -> list[Any]:
    decode: Callable[[Any], list[Any]] = _decode_floats if datatype[0] == "F" else _decode_ints
    if datatype == "BOOL":
        decode = _decode_bools
    try:
        return decode(given.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as flat:
        try:
            values = _flatten(msgspec.json.decode(given.data), given.shape)
            return decode(msgspec.json.encode(values))
        except (msgspec.DecodeError, RecursionError, _NotNested):
            raise InvalidArgument(f"input {given.name!r}: data must be {datatype} numbers: {flat}") from flat


class _NotNested(Exception):
    """Raised for data that is neither flat nor nested according to its shape."""


def _flatten(value: object, shape: Sequence[int]) -> list[Any]:
    """Flatten nested lists by their shape."""
    if not shape:
        return [value]
    if not isinstance(value, list) or len(value) != shape[0]:
        raise _NotNested
    return [item for part in value for item in _flatten(part, shape[1:])]

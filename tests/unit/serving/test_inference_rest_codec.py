"""The REST form of the Open Inference Protocol: JSON and binary tensors, read and written."""

import json
import math
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from tritonclient.http import InferResult

from rdukit.errors import InvalidArgument
from rdukit_serving.rest.inference import RestRequest, check_forms, parse_infer, render_infer
from rdukit_serving.rest.routes import path_parts
from rdukit_serving.signature import InferResponse, RequestTiming, ServedSignature, ServedTensor
from support import shows

pytestmark = shows("inference")

SIGNATURE = ServedSignature(
    (ServedTensor("x", "FP32", (2,), "x"),),
    (ServedTensor("y", "FP32", (2,), "y"), ServedTensor("h", "FP16", (1,), "h")),
    4,
    4,
)


def body(**changes: object) -> bytes:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5], **changes}
    return json.dumps({"id": "7", "inputs": [tensor]}).encode()


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_json_numbers_become_little_endian_bytes() -> None:
    request = parse_infer(body(), None)
    assert request.id == "7"
    assert bytes(request.inputs[0].data) == floats(1, 2.5)
    nested = parse_infer(body(shape=[2, 2], data=[[1, 2], [3, 4]]), None)
    assert bytes(nested.inputs[0].data) == floats(1, 2, 3, 4)
    integers = parse_infer(body(datatype="INT16", data=[-1, 300]), None)
    assert bytes(integers.inputs[0].data) == struct.pack("<2h", -1, 300)
    truths = parse_infer(body(datatype="BOOL", data=[True, False]), None)
    assert bytes(truths.inputs[0].data) == b"\x01\x00"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"inputs": 3}', r"\$.inputs"),
        (b"[]", "malformed"),
        (b"\xff\xfe", "not JSON"),
        (body(data=["a", "b"]), "data must be FP32 numbers"),
        (body(data=[True, 1]), "data must be FP32 numbers"),
        (body(data=None), "data must be FP32 numbers"),
        (body(data=[[1], [2]], shape=[1, 2]), "data must be"),
        (body(datatype="INT8", data=[1, 300]), "cannot hold"),
        (body(data=[1e300, 0]), "cannot hold"),
        (body(datatype="INT32", data=[1.5, 2]), "data must be INT32"),
        (body(datatype="FP16"), "no form for FP16"),
        (body(datatype="FLOAT32"), "datatype 'FLOAT32'; expected BOOL"),
        (body(datatype="BYTES"), "not served"),
        (body(shape="two"), r"\$.inputs\[0\].shape"),
        (body(parameters={"binary_data_size": 4}), "both data and binary_data_size"),
        (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32"}]}', "neither data nor"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        parse_infer(text, None)


def binary(size: object = 8, extra: bytes = b"") -> tuple[bytes, int]:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + floats(1, 2) + extra, len(head)


def test_binary_tensors_follow_the_json() -> None:
    request = parse_infer(*binary())
    assert bytes(request.inputs[0].data) == floats(1, 2)
    assert request.binary is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (binary(size=9), "binary_data_size is 9, but 8 bytes"),
        (binary(size=4), "add up to 4"),
        (binary(extra=b"more"), "12 bytes follow"),
        (binary(size=-1), "binary_data_size -1 is not valid"),
        (binary(size=True), "not valid"),
        (binary(size="8"), "not valid"),
        ((b"{}", 9), "Inference-Header-Content-Length 9"),
    ],
)
def test_binary_data_that_does_not_add_up_is_refused(text: tuple[bytes, int], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        parse_infer(*text)


ANSWER = InferResponse(1, [floats(0.25, 2), b"\x00\x3c"], ["y", "h"], RequestTiming(1, 2, 3, 4))


def test_an_answer_goes_out_as_asked() -> None:
    request = parse_infer(body(), None)
    text, length = render_infer("m", "3", SIGNATURE, request, ANSWER._replace(outputs=ANSWER.outputs[:1], names=["y"]))
    assert length is None
    assert json.loads(text) == {
        "model_name": "m", "model_version": "3", "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0.25, 2.0]}],
    }  # fmt: skip
    text, length = render_infer("m", "3", SIGNATURE, parse_infer(*binary()), ANSWER)
    assert length is not None
    assert text[length:] == floats(0.25, 2) + b"\x00\x3c"
    outputs = json.loads(text[:length])["outputs"]
    assert [output["parameters"]["binary_data_size"] for output in outputs] == [8, 2]


def test_half_floats_have_no_json_form() -> None:
    with pytest.raises(InvalidArgument, match="'h' is FP16"):
        check_forms(SIGNATURE, parse_infer(body(), None))
    check_forms(SIGNATURE, parse_infer(*binary()))


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_data_nested_without_end_is_the_callers_fault(depth: int) -> None:
    text = body(shape=[1] * min(depth, 5_000), data="@").replace(b'"@"', b"[" * depth + b"1" + b"]" * depth)
    with pytest.raises(InvalidArgument, match=r"nested|data"):
        parse_infer(text, None)
    with pytest.raises(InvalidArgument):
        parse_infer(b'{"inputs": ' + b"[" * depth, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters": {"sequence_id": 7}}, "parameter 'sequence_id' is not served: sequences"),
        ({"parameters": {"sequence_start": True}}, "'sequence_start' is not served"),
        ({"parameters": {"sequence_end": True}}, "'sequence_end' is not served"),
        ({"parameters": {"priority": 1}}, "'priority' is not served"),
        ({"parameters": {"timeout": -1}}, "timeout -1 is not valid; expected microseconds, 0 to wait"),
        ({"parameters": {"timeout": 1.5}}, "timeout 1.5 is not valid"),
        ({"parameters": {"timeout": 10**400}}, r"timeout 10{79} is not valid; .* below 2\^63"),
        ({"parameters": {"timeout": True}}, "timeout True is not valid"),
        ({"parameters": {"colour": "red"}}, "'colour' is not served; expected binary_data_output"),
        ({"colour": 1}, "unknown field `colour`"),
        ({"outputs": [{"name": "y", "colour": 1}]}, "unknown field `colour`"),
        ({"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]}, "output 'y'.*shared memory"),
        ({"outputs": [{"name": "y", "parameters": {"shared_memory_offset": 8}}]}, "output 'y'.*shared memory"),
        ({"outputs": [{"name": "y", "parameters": {"shared_memory_byte_size": 8}}]}, "output 'y'.*shared memory"),
        ({"outputs": [{"name": "y", "parameters": {"colour": 1}}]}, "expected binary_data, classification"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        parse_infer(json.dumps({**json.loads(body()), **change}).encode(), None)


@pytest.mark.parametrize("name", ["shared_memory_region", "colour"])
def test_parameters_and_fields_of_inputs_are_known_or_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"input 'x': parameter '{name}' is not served"):
        parse_infer(body(parameters={name: "r"}), None)
    with pytest.raises(InvalidArgument, match=f"unknown field `{name}`"):
        parse_infer(body(**{name: "r"}), None)


def test_parameters_that_say_not_used_are_legal() -> None:
    unused = {"sequence_id": 0, "sequence_start": False, "sequence_end": False, "priority": 0, "timeout": 0}
    request = parse_infer(json.dumps({**json.loads(body()), "parameters": unused}).encode(), None)
    assert bytes(request.inputs[0].data) == floats(1, 2.5) and request.timeout_us == 0
    unused["timeout"] = 250_000
    assert parse_infer(json.dumps({**json.loads(body()), "parameters": unused}).encode(), None).timeout_us == 250_000


TENSOR = '{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"id": "a", "id": "b", "inputs": [TENSOR]}', "id"),
        ('{"inputs": [TENSOR], "inputs": [TENSOR]}', "inputs"),
        ('{"inputs": [TENSOR], "\\u0069nputs": [TENSOR]}', "inputs"),
        ('{"inputs": [{"name": "y", "name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}', "name"),
        ('{"inputs": [{"data": [9, 9], "name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}', "data"),
        ('{"inputs": [TENSOR], "outputs": [{"name": "h", "name": "y"}]}', "name"),
        ('{"inputs": [TENSOR], "parameters": {"timeout": 5, "timeout": 0}}', "timeout"),
        ('{"id": "\\u003a", "id": "\\u003a", "inputs": [TENSOR]}', "id"),
    ],
)
def test_a_key_that_comes_twice_is_refused_by_its_name(text: str, key: str) -> None:
    with pytest.raises(InvalidArgument, match=f"the key '{key}' twice"):
        parse_infer(text.replace("TENSOR", TENSOR).encode(), None)


def test_colons_and_escapes_in_text_are_no_keys() -> None:
    request = parse_infer(
        b'{"id": "urn:\\u003a:", "outputs": [], "parameters": null, "inputs": [%s]}' % TENSOR.encode(), None
    )
    assert request.id == "urn:::"
    with pytest.raises(InvalidArgument, match="malformed"):
        parse_infer(
            b'{"id": ":", "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": '
            + b"[" * 9000
            + b"]" * 9000
            + b"}]}",
            None,
        )


@pytest.mark.parametrize("rows", [1, 400])
def test_values_that_are_no_numbers_are_read_as_such_by_the_protocols_own_client(rows: int) -> None:
    given = [math.nan, math.inf, -math.inf, 0.1] * rows
    signature = ServedSignature((), (ServedTensor("y", "FP32", (4,), "y"),), 400, 400)
    answer = InferResponse(rows, [floats(*given)], ["y"], RequestTiming(0, 0, 0, 0))
    text, length = render_infer("m", "1", signature, RestRequest([], (), "null", False), answer)
    assert length is None and b"null," not in text.replace(b'"null"', b"")
    response = SimpleNamespace(get=lambda name: None, read=lambda: text)
    read = InferResult(response, verbose=False).as_numpy("y")
    np.testing.assert_array_equal(read, np.array(given, np.float32).reshape(rows, 4))
    assert InferResult(response, verbose=False).get_response()["id"] == "null"


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/v2", []),
        ("/v2/models/stats", ["models", "stats"]),
        ("/v2/models/a", ["models", "a"]),
        ("/v2/models/a/b/infer", ["models", "a/b", "infer"]),
        ("/v2/models/a/b/versions/1", ["models", "a/b", "versions", "1"]),
        ("/v2/models/a/versions/1/ready", ["models", "a", "versions", "1", "ready"]),
        ("/v2/models/versions/1", ["models", "versions/1"]),
        ("/v2/repository/models/a/b/load", ["repository", "models", "a/b", "load"]),
        ("/v2/repository/index", ["repository", "index"]),
    ],
)
def test_a_models_name_is_one_part_of_a_path(path: str, parts: list[str]) -> None:
    assert path_parts(path) == parts

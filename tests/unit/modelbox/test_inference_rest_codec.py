"""The REST form of the Open Inference Protocol: JSON and binary tensors, read and written."""

import json
import struct

import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.serving.requests import InferAnswer, Timing
from rdukit_modelbox.serving.rest_codec import check_forms, parse_infer, render_infer
from rdukit_modelbox.serving.signature import Signature, TensorSpec

SIGNATURE = Signature(
    (TensorSpec("x", "FP32", (2,), "x"),),
    (TensorSpec("y", "FP32", (2,), "y"), TensorSpec("h", "FP16", (1,), "h")),
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
        (body(datatype="FLOAT32"), "datatype 'FLOAT32'; legal: BOOL"),
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
        (binary(size=-1), "binary_data_size -1 is not legal"),
        (binary(size=True), "not legal"),
        (binary(size="8"), "not legal"),
        ((b"{}", 9), "Inference-Header-Content-Length 9"),
    ],
)
def test_binary_data_that_does_not_add_up_is_refused(text: tuple[bytes, int], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        parse_infer(*text)


ANSWER = InferAnswer(1, [floats(0.25, 2), b"\x00\x3c"], ["y", "h"], Timing(1, 2, 3, 4))


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

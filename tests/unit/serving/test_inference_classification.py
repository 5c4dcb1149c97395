"""Scores as the likeliest classes: what is legal, which classes, and how both wires write them."""

import json
import struct
from typing import Any

import pytest

from rdukit.errors import InvalidArgument
from rdukit.proto import inference_pb2 as pb
from rdukit_serving.checks import check_classes, classify, join_strings, read_count, split_strings
from rdukit_serving.models.version import why_unused
from rdukit_serving.rest import inference as rest_codec
from rdukit_serving.rpc import codec as grpc_codec
from rdukit_serving.signature import InferResponse, RequestTiming, ServedSignature, ServedTensor
from support import shows

pytestmark = shows("inference")

SCORES = ServedTensor("scores", "FP32", (3,), "s")
SIGNATURE = ServedSignature(
    (ServedTensor("x", "FP32", (1,), "x"),),
    (
        SCORES,
        ServedTensor("half", "FP16", (2, 1), "h"),
        ServedTensor("brain", "BF16", (2,), "b"),
        ServedTensor("count", "INT64", (3,), "c"),
        ServedTensor("image", "FP32", (2, 2), "i"),
        ServedTensor("loss", "FP32", (), "l"),
        ServedTensor("truth", "BOOL", (2,), "t"),
        ServedTensor("nothing", "FP32", (0,), "n"),
    ),
    4,
    4,
    ("ape", "bee: big", "ünï"),
)


def answer(name: str, data: bytes, rows: int = 1) -> InferResponse:
    return InferResponse(rows, [data], [name], RequestTiming(1, 2, 3, 4))


def classes(name: str, data: bytes, count: int, rows: int = 1) -> list[str]:
    signature, found = classify(SIGNATURE, answer(name, data, rows), {name: count})
    spec = signature.output_of[name]
    assert (spec.datatype, spec.row_shape) == ("BYTES", (count,))
    return [text.decode() for text in split_strings(found.outputs[0])]


def test_the_likeliest_classes_come_first_with_value_index_and_label() -> None:
    two_rows = struct.pack("<6f", 0.25, -1, 1e9, 3, 2, 1)
    assert classes("scores", two_rows, 2, rows=2) == [
        "1000000000.000000:2:ünï", "0.250000:0:ape", "3.000000:0:ape", "2.000000:1:bee: big",
    ]  # fmt: skip


def test_equal_values_are_in_order_and_what_is_no_number_comes_last() -> None:
    assert classes("scores", struct.pack("<3f", 1, float("nan"), 1), 3) == [
        "1.000000:0:ape", "1.000000:2:ünï", "nan:1:bee: big",
    ]  # fmt: skip
    low = struct.pack("<3q", -(2**63), 2**63 - 1, -(2**63))
    assert classes("count", low, 3) == [f"{2**63 - 1}:1", f"{-(2**63)}:0", f"{-(2**63)}:2"]


def test_half_floats_of_both_kinds_have_classes_too_and_labels_are_of_the_first_output() -> None:
    assert classes("half", struct.pack("<2e", -2, 1.5), 1) == ["1.500000:1"]
    brain = struct.pack("<f", -2)[2:] + struct.pack("<f", 1.5)[2:]
    assert classes("brain", brain, 2) == ["1.500000:1", "-2.000000:0"]


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "2", None, [1]])
def test_a_count_is_a_number_of_classes(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"output 'scores': classification .* is not valid; expected a number"):
        read_count("scores", value)


@pytest.mark.parametrize(
    ("name", "count", "words"),
    [
        ("scores", 4, "classification 4 is not valid; expected 1 to 3"),
        ("image", 1, r"'image' is FP32 \[-1, 2, 2\], which has no classes"),
        ("loss", 1, r"'loss' is FP32 \[-1\], which has no classes"),
        ("truth", 1, "'truth' is BOOL"),
        ("nothing", 1, "'nothing' is FP32"),
    ],
)
def test_what_has_no_such_classes_is_refused(name: str, count: int, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        check_classes(SIGNATURE, {name: count})


def test_what_is_legal_passes_and_unknown_names_are_left_to_the_check_of_the_request() -> None:
    check_classes(SIGNATURE, {"scores": 3, "half": 2, "brain": 1, "count": 3, "other": 9})


def test_strings_survive_the_wire() -> None:
    texts = ["", "ünï", "a" * 300]
    assert [text.decode() for text in split_strings(join_strings(texts))] == texts


def rest_body(**parameters: object) -> bytes:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    return json.dumps({"inputs": [tensor], "outputs": [{"name": "half", "parameters": parameters}]}).encode()


@pytest.mark.parametrize("is_binary", [False, True])
def test_over_rest_classes_are_strings_or_a_binary_tensor(is_binary: bool) -> None:
    request = rest_codec.parse_infer(rest_body(classification=1, binary_data=is_binary), None)
    # The scores would have no JSON form; their classes have one.
    rest_codec.check_forms(SIGNATURE, request)
    assert request.classes == {"half": 1}
    signature, found = classify(SIGNATURE, answer("half", struct.pack("<2e", 3, 1)), request.classes)
    text, length = rest_codec.render_infer("m", "1", signature, request, found)
    (output,) = json.loads(text[:length])["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [1, 1])
    if is_binary:
        assert list(split_strings(text[length:])) == [b"3.000000:0"]
    else:
        assert output["data"] == ["3.000000:0"]


def message(**parameters: Any) -> Any:
    made = pb.ModelInferRequest(model_name="m")
    made.inputs.add(name="x", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(1)
    output = made.outputs.add(name="scores")
    for key, value in parameters.items():
        setattr(output.parameters["classification"], key, value)
    return made


def test_over_grpc_classes_are_typed_or_raw_as_the_request() -> None:
    request, is_raw = grpc_codec.parse_infer(message(int64_param=1))
    assert request.classes == {"scores": 1} and not is_raw
    signature, found = classify(SIGNATURE, answer("scores", struct.pack("<3f", 1, 2, 3)), request.classes)
    typed = grpc_codec.render_infer("m", "1", signature, request, found, False)
    assert list(typed.outputs[0].contents.bytes_contents) == ["3.000000:2:ünï".encode()]
    raw = grpc_codec.render_infer("m", "1", signature, request, found, True)
    assert list(raw.raw_output_contents) == [join_strings(["3.000000:2:ünï"])]
    assert not raw.outputs[0].HasField("contents")


@pytest.mark.parametrize("parameters", [{"int64_param": 0}, {"bool_param": True}, {"string_param": "1"}])
def test_over_grpc_a_count_of_another_kind_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="classification"):
        grpc_codec.parse_infer(message(**parameters))


def test_a_typed_request_gets_a_raw_answer_where_an_output_has_no_typed_form() -> None:
    request, _ = grpc_codec.parse_infer(message())
    assert not grpc_codec.needs_raw_outputs(SIGNATURE, request)
    request.outputs = ["scores", "half"]
    assert grpc_codec.needs_raw_outputs(SIGNATURE, request)
    request.classes = {"half": 1}
    assert not grpc_codec.needs_raw_outputs(SIGNATURE, request)
    request.outputs, request.classes = (), None
    assert grpc_codec.needs_raw_outputs(SIGNATURE, request)


@pytest.mark.parametrize(("outputs", "is_used"), [(("logits",), True), (("loss", "logits"), False)])
def test_preprocessed_rows_need_a_pef_of_one_input_and_classes(outputs: tuple[str, ...], is_used: bool) -> None:
    rows = (ServedTensor("rows", "FP32", (4,), "r"),)
    signature = ServedSignature(rows, tuple(ServedTensor(name, "FP32", (3,), "o") for name in outputs), 4, 4)
    assert (why_unused(signature) == "") == is_used
    assert "inputs rows, more and the first output" in why_unused(
        ServedSignature((*rows, ServedTensor("more", "FP32", (1,), "m")), signature.outputs, 4, 4)
    )

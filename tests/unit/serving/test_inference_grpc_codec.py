"""The gRPC form of the Open Inference Protocol: what a message may have besides tensors."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from rdukit.errors import InvalidArgument
from rdukit.proto import inference_pb2 as pb
from rdukit_serving.rpc.codec import parse_infer
from support import shows

pytestmark = shows("inference")


def message() -> Any:
    request = pb.ModelInferRequest(model_name="m", id="7")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    request.outputs.add(name="y")
    request.raw_input_contents.append(bytes(8))
    return request


def test_a_request_without_parameters_is_read() -> None:
    request, is_raw = parse_infer(message())
    assert (request.id, is_raw, list(request.outputs)) == ("7", True, ["y"])


@pytest.mark.parametrize("name", ["sequence_id", "priority", "colour", "binary_data_output"])
def test_parameters_that_are_not_served_are_refused_by_name(name: str) -> None:
    request = message()
    request.parameters[name].int64_param = 5
    with pytest.raises(InvalidArgument, match=f"parameter '{name}' is not served"):
        parse_infer(request)


def test_a_timeout_is_a_number_of_microseconds() -> None:
    request = message()
    request.parameters["timeout"].int64_param = 1500
    assert parse_infer(request)[0].timeout_us == 1500
    assert parse_infer(message())[0].timeout_us == 0
    for wrong in ({"int64_param": -1}, {"bool_param": True}, {"string_param": "1"}):
        request.parameters["timeout"].CopyFrom(pb.InferParameter(**wrong))
        with pytest.raises(InvalidArgument, match=r"timeout .* is not valid; expected microseconds, 0 to wait"):
            parse_infer(request)


@pytest.mark.parametrize("name", ["sequence_start", "sequence_end"])
def test_a_sequence_that_begins_or_ends_is_refused_and_one_that_does_not_is_legal(name: str) -> None:
    request = message()
    request.parameters[name].bool_param = False
    parse_infer(request)
    request.parameters[name].bool_param = True
    with pytest.raises(InvalidArgument, match=f"parameter '{name}' is not served: sequences"):
        parse_infer(request)


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("name", ["shared_memory_region", "shared_memory_byte_size", "colour"])
def test_tensors_have_no_parameters_but_classes(side: str, name: str) -> None:
    request = message()
    getattr(request, side)[0].parameters[name].string_param = "r"
    with pytest.raises(InvalidArgument, match=f"{side[:-1]} '[xy]': parameter '{name}' is not served"):
        parse_infer(request)


def test_a_field_that_the_protocol_lacks_is_refused_by_its_number() -> None:
    # Field 99, a number.
    data = message().SerializeToString() + b"\x98\x06\x01"
    assert service_pb2.ModelInferRequest.FromString(data).model_name == "m"
    with pytest.raises(InvalidArgument, match="field 99"):
        parse_infer(pb.ModelInferRequest.FromString(data))


@pytest.mark.parametrize("where", ["input 'x'", "output 'y'", "contents of input 'x'", "parameter 'classification'"])
def test_so_is_one_inside_of_a_tensor(where: str) -> None:
    request = message()
    if where.startswith("contents"):
        request.ClearField("raw_input_contents")
        request.inputs[0].contents.fp32_contents.extend([1, 2])
    request.outputs[0].parameters["classification"].int64_param = 1
    parse_infer(request)
    part = {
        "input 'x'": request.inputs[0],
        "output 'y'": request.outputs[0],
        "contents of input 'x'": request.inputs[0].contents,
        "parameter 'classification'": request.outputs[0].parameters["classification"],
    }[where]
    part.MergeFromString(b"\x98\x06\x01")
    with pytest.raises(InvalidArgument, match=f"{where} has a field 99, which the protocol's Infer"):
        parse_infer(pb.ModelInferRequest.FromString(request.SerializeToString()))


def test_the_size_that_kserves_client_sends_is_legal_if_it_is_right() -> None:
    request = message()
    request.inputs[0].parameters["binary_data_size"].int64_param = 8
    parse_infer(request)
    request.inputs[0].parameters["binary_data_size"].int64_param = 4
    with pytest.raises(InvalidArgument, match="binary_data_size is not valid; expected 8"):
        parse_infer(request)

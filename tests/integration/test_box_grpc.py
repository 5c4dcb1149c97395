"""The box's own gRPC service with independent clients: error details, streams, deadlines, health, reflection."""

import random
import threading
from collections.abc import Iterator

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status

from rdukit.proto import modelbox_pb2 as pb
from rdukit.proto import modelbox_pb2_grpc
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from support import shows
from support.platform.warm import start_box

pytestmark = shows("wire", "operations", "logreg")

SERVICE = "rdukit.modelbox.v1.ModelBox"
UNARY = ("Describe", "Compile", "Train", "Preprocess", "Evaluate", "Infer", "Cancel", "GetOperation", "ListOperations")
CALLERS_FAULT = {
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED, grpc.StatusCode.OK,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}  # fmt: skip


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    box = start_box(BoxSpec("logreg", tmp_path_factory.mktemp("box")))
    yield box
    box.stop()


@pytest.fixture(scope="module")
def channel(box: ProcessBox) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(box.grpc_address) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> modelbox_pb2_grpc.ModelBoxStub:
    return modelbox_pb2_grpc.ModelBoxStub(channel)


def details_of(error: grpc.RpcError) -> tuple[ErrorInfo, BadRequest]:
    """What ``grpc-status-details-bin`` says, read by the library for it."""
    info, fields = ErrorInfo(), BadRequest()
    for detail in rpc_status.from_call(error).details:
        detail.Unpack(info) if detail.Is(ErrorInfo.DESCRIPTOR) else detail.Unpack(fields)
    return info, fields


@pytest.mark.parametrize(
    ("method", "request_", "reason", "field"),
    [
        ("Compile", {"parameters": {"batch_size": 33}}, "ILLEGAL_VALUE", "parameters.batch_size"),
        ("Compile", {"parameters": {"speed": 1}}, "UNKNOWN_PARAMETER", "parameters.speed"),
        ("Compile", {"timeout_s": -1}, "INVALID_ARGUMENT", "timeout_s"),
        ("Compile", {"output": "/etc"}, "INVALID_ARGUMENT", "output"),
        ("Train", {"inputs": {"nothing": "x"}}, "INVALID_ARGUMENT", "inputs.nothing"),
        ("Infer", {}, "INVALID_ARGUMENT", "rows"),
        ("ListOperations", {"state": "x"}, "INVALID_ARGUMENT", "state"),
        ("ListOperations", {"page_size": -1}, "INVALID_ARGUMENT", "page_size"),
        ("ListOperations", {"page_token": "x"}, "INVALID_ARGUMENT", "page_token"),
        ("GetOperation", {"id": "x"}, "NOT_FOUND", "id"),
        ("Cancel", {"id": "x"}, "NOT_FOUND", "id"),
    ],
)
def test_the_details_name_the_reason_and_the_field(
    stub: modelbox_pb2_grpc.ModelBoxStub, method: str, request_: dict[str, object], reason: str, field: str
) -> None:
    from google.protobuf.json_format import ParseDict

    kinds = {
        "Infer": pb.InferRequest, "ListOperations": pb.ListOperationsRequest, "GetOperation": pb.OperationRequest,
        "Cancel": pb.OperationRequest,
    }  # fmt: skip
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, method)(ParseDict(request_, kinds.get(method, pb.VerbRequest)()), timeout=60)
    info, fields = details_of(caught.value)
    assert (info.reason, info.domain) == (reason, "rdukit.dev")
    assert [violation.field for violation in fields.field_violations] == [field]
    # Numbers come as doubles and are told as they were given.
    assert ".0 is not valid" not in caught.value.details() or "timeout" in field


def test_values_that_json_does_not_have_are_refused_like_others(stub: modelbox_pb2_grpc.ModelBoxStub) -> None:
    for value in (float("nan"), float("inf")):
        request = pb.VerbRequest()
        request.parameters.update({"batch_size": value})
        with pytest.raises(grpc.RpcError) as caught:
            stub.Compile(request, timeout=60)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_thousand_messages_of_random_bytes_are_the_callers_fault(box: ProcessBox, channel: grpc.Channel) -> None:
    dice = random.Random(3)
    request = pb.VerbRequest(output="/nowhere", inputs={"pef": "x"})
    request.parameters.update({"a": [1, {"b": None}]})
    seed = request.SerializeToString()
    for number in range(1000):
        data = bytearray(seed if dice.random() < 0.7 else dice.randbytes(dice.randrange(1, 60)))
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        method = channel.unary_unary(f"/{SERVICE}/{UNARY[number % len(UNARY)]}")
        call = method.future(bytes(data), timeout=60)
        assert call.code() in CALLERS_FAULT, (number, bytes(data), call.details())
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{SERVICE}/Compile")(b"\xff\xff", timeout=60)
    assert details_of(caught.value)[0].reason == "MALFORMED_REQUEST"
    assert box.is_alive()
    assert "Traceback" not in box.logs()


def test_a_wrong_message_in_a_stream_does_not_end_it(channel: grpc.Channel) -> None:
    encode = pb.InferRequest.SerializeToString
    messages = [
        encode(pb.InferRequest(id="1")), b"\xff\xff", encode(pb.InferRequest(id="3", dataset=pb.VerbRequest())),
        encode(pb.InferRequest(id="4", rows=pb.Rows(rows=[pb.Row(values=[1.0])]))),
    ]  # fmt: skip
    method = channel.stream_stream(f"/{SERVICE}/InferStream", response_deserializer=pb.InferStreamResponse.FromString)
    answers = list(method(iter(messages), timeout=60))
    assert [answer.id for answer in answers] == ["1", "", "3", "4"]
    assert [answer.error.code for answer in answers] == [
        "invalid-argument", "malformed-request", "invalid-argument", "invalid-argument",
    ]  # fmt: skip
    assert answers[2].error.detail["field"] == "dataset"
    assert "not trained or served one since its start" in answers[3].error.message


def test_a_deadline_ends_a_call_and_not_the_operation(stub: modelbox_pb2_grpc.ModelBoxStub) -> None:
    asked = stub.Preprocess(pb.VerbRequest(output="deadline"), timeout=60)
    with pytest.raises(grpc.RpcError) as caught:
        for _ in stub.Watch(pb.WatchRequest(id=asked.id), timeout=0.05):
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    events = list(stub.Watch(pb.WatchRequest(id=asked.id), timeout=60))
    assert events[-1].operation.state == "succeeded"
    assert not events[1].HasField("progress")


def test_health_is_watched_and_an_unknown_service_is_unknown(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    kinds = health_pb2.HealthCheckResponse
    for name, status in (("", kinds.SERVING), (SERVICE, kinds.SERVING), ("other", kinds.SERVICE_UNKNOWN)):
        watched = stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=60)
        assert next(watched).status == status
        watched.cancel()


def test_reflection_answers_under_its_released_name_too(channel: grpc.Channel) -> None:
    for version in ("v1", "v1alpha"):
        method = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        listed, described = method(iter(asked), timeout=60)
        assert SERVICE in [service.name for service in listed.list_services_response.service]
        assert described.file_descriptor_response.file_descriptor_proto


def test_watching_costs_nothing_when_the_watchers_leave(box: ProcessBox, stub: modelbox_pb2_grpc.ModelBoxStub) -> None:
    asked = stub.Preprocess(pb.VerbRequest(output="watched"), timeout=60)
    watches = [stub.Watch(pb.WatchRequest(id=asked.id), timeout=60) for _ in range(20)]
    for watch in watches:
        next(watch)
        watch.cancel()
    ended = list(stub.Watch(pb.WatchRequest(id=asked.id), timeout=60))[-1].operation
    assert ended.state == "succeeded"
    assert box.is_alive()


def test_a_cancel_is_heard_while_another_caller_waits_for_the_end(stub: modelbox_pb2_grpc.ModelBoxStub) -> None:
    asked = stub.Preprocess(pb.VerbRequest(output="cancelled"), timeout=60)
    ends = list[str]()
    waiting = threading.Thread(
        target=lambda: ends.append(list(stub.Watch(pb.WatchRequest(id=asked.id), timeout=60))[-1].operation.state)
    )
    waiting.start()
    assert stub.Cancel(pb.OperationRequest(id=asked.id), timeout=60).state == "cancelled"
    waiting.join(60)
    assert ends == ["cancelled"]

"""A serving box under a thousand wrong requests a wire: every answer names the fault, none is the box's own failure."""

import contextlib
import copy
import json
import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import torch
from safetensors.torch import save_file

from rdukit.proto import inference_pb2 as pb
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from rdukit_zoo.mlp import MultiLayerPerceptron
from support import shows
from support.boxes import children_of, run_verb
from support.platform.warm import start_box

pytestmark = [shows("inference", "mlp"), pytest.mark.long]

#: Of each wire. The bar is 1,000; FUZZ_REQUESTS says another number, FUZZ_SEED another sequence.
REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "1000"))
SEED = int(os.environ.get("FUZZ_SEED", "7"))
ROW = [round(((i * 37) % 64) / 64 - 0.5, 6) for i in range(64)]
RAW = struct.pack("<64f", *ROW)
SERVICE = "/inference.GRPCInferenceService/"
#: What a caller's fault may be over gRPC; OK where a mutation happens to be legal.
LEGAL = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    folder = tmp_path_factory.mktemp("fuzzed")
    os.environ["RDUKIT_KERNELS"] = "portable"
    pef = run_verb("mlp", "compile", folder, purpose="serve", batch_size=8).outputs["pef"]
    torch.manual_seed(0)
    save_file(dict(MultiLayerPerceptron().state_dict()), folder / "mlp.safetensors")
    environment = {
        "RDUKIT_BOX_PEF": str(pef), "RDUKIT_BOX_CHECKPOINT": str(folder / "mlp.safetensors"),
        "RDUKIT_BOX_MAX_INFER_BYTES": "200000", "RDUKIT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    box = start_box(BoxSpec("mlp", folder / "state", [folder], environment))
    yield box
    box.stop()


def memory_and_descriptors(box: ProcessBox) -> tuple[float, int]:
    """Resident megabytes and open descriptors of the box's own process."""
    status = Path(f"/proc/{box.pid}/status").read_text()
    kilobytes = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    return kilobytes / 1000, len(os.listdir(f"/proc/{box.pid}/fd"))


class Wire:
    """One connection that is opened again when the box closes it. Reads exactly one answer a request."""

    def __init__(self, box: ProcessBox) -> None:
        host, _, port = box.rest_url.removeprefix("http://").partition(":")
        self._address = (host, int(port))
        self._socket: socket.socket | None = None

    def exchange(self, data: bytes) -> tuple[int, bytes]:
        """Status and body of the answer; 0 where the box closed the connection without one."""
        connection = self._socket or socket.create_connection(self._address, 10)
        self._socket = connection
        with contextlib.suppress(OSError):
            connection.sendall(data)
        answer = b""
        while b"\r\n\r\n" not in answer:
            block = self._read(connection)
            if not block:
                break
            answer += block
        head, _, body = answer.partition(b"\r\n\r\n")
        lowered = head.lower()
        length = int(lowered.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        while len(body) < length and (block := self._read(connection)):
            body += block
        if not answer or b"connection: close" in lowered:
            self.close()
        return (int(head.split(maxsplit=2)[1]) if answer else 0), body[:length]

    def close(self) -> None:
        """Hang up; the next request opens a new connection."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    @staticmethod
    def _read(connection: socket.socket) -> bytes:
        try:
            return connection.recv(1 << 16)
        except ConnectionResetError:
            return b""


def good() -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": "rows", "shape": [1, 64], "datatype": "FP32", "data": list(ROW)}
    return {"id": "7", "inputs": [tensor], "outputs": [{"name": "logits"}], "parameters": {}}


JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1e300, 2**63, 10**40, "", "x", "\x00", "ü" * 50, "rows", [], [[]], [None], {}, {"a": 1},
    [1] * 65, [-1, 64], [1, 63], [64], [1, 1, 64], [0, 64], [9, 64], [2**62, 64], ["1", 64], "FP99", "BYTES", "INT32",
    "FP16", "x" * 5000, [float(n) for n in range(64)] + ["a"],
)  # fmt: skip
#: A request, the words of which one must be in the answer if it is refused, and further headers.
Mutant = tuple[bytes, tuple[str, ...], dict[str, str]]


def change_a_field(dice: random.Random) -> Mutant:
    """Junk in one place, or the place is gone."""
    value = good()
    tensor = value["inputs"][0]
    place, key = dice.choice([
        (value, "id"), (value, "inputs"), (value, "outputs"), (value, "parameters"), (tensor, "name"),
        (tensor, "shape"), (tensor, "datatype"), (tensor, "data"), (tensor, "parameters"),
        (value["outputs"][0], "name"), (value["outputs"][0], "parameters"),
    ])  # fmt: skip
    if dice.random() < 0.2:
        place.pop(key, None)
    else:
        place[key] = dice.choice(JUNK)
    words = {"id": ("id",), "parameters": ("parameters", "Object", "object")}.get(key, ("input", "output"))
    return json.dumps(value).encode(), words, {}


def change_the_data(dice: random.Random) -> Mutant:
    """One number is none, or is missing, or is too much; or the nesting is odd."""
    value = good()
    data: Any = value["inputs"][0]["data"]
    at = dice.randrange(64)
    match dice.randrange(6):
        case 0:
            data[at] = dice.choice(["a", None, [], {}, True, [1.0], 1e39, 10**400])
        case 1:
            del data[at]
        case 2:
            data.insert(at, 1.0)
        case 3:
            value["inputs"][0]["data"] = [data[:at], data[at:]]
        case 4:
            value["inputs"].append(copy.deepcopy(value["inputs"][0]))
        case 5:
            value["outputs"].append({"name": "logits"})
    return json.dumps(value).encode(), ("input", "output", "out of range"), {}


def break_the_text(dice: random.Random) -> Mutant:
    """Truncated, with bytes changed or put in, not a number, or nested without end."""
    text = bytearray(json.dumps(good()).encode())
    match dice.randrange(6):
        case 0:
            del text[dice.randrange(len(text)) :]
        case 1:
            for _ in range(dice.randrange(1, 6)):
                text[dice.randrange(len(text))] = dice.randrange(256)
        case 2:
            at = dice.randrange(len(text))
            text[at:at] = dice.choice([b"\x00", b"\xff\xfe", b"\\ud800", b"{", b"]", b'"', b",", b"NaN"])
        case 3:
            text = bytearray(
                bytes(text).replace(b"0.5", dice.choice([b"NaN", b"Infinity", b"1e999", b"0x1", b"--1"]), 1)
            )
        case 4:
            depth = dice.choice([100, 1_000, 50_000])
            text = bytearray(json.dumps({**good(), "id": 0}).encode().replace(b"0", b"[" * depth + b"]" * depth, 1))
        case 5:
            depth = dice.choice([100, 1_000, 50_000])
            value = good()
            value["inputs"][0].update(shape=[1] * min(depth, 20_000), data="@")
            text = bytearray(json.dumps(value).encode().replace(b'"@"', b"[" * depth + b"1" + b"]" * depth))
    return bytes(text), (), {}


def lie_about_binary(dice: random.Random) -> Mutant:
    """The binary extension with lengths that are not so."""
    value = good()
    tensor = value["inputs"][0]
    del tensor["data"]
    size: Any = 256
    tail = RAW
    words = ("binary_data", "follow the JSON", "rows")
    match dice.randrange(5):
        case 0:
            size = dice.choice([0, 255, 257, 512, -1, 2**63, "256", None, True, 1.5, [256]])
        case 1:
            tail = RAW[: dice.randrange(256)]
        case 2:
            tail = RAW + b"x" * dice.randrange(1, 300)
        case 3:
            tensor["data"] = ROW
        case 4:
            tensor["datatype"] = dice.choice(["BYTES", "FP16", "FP64", "", "fp32"])
    tensor["parameters"] = {"binary_data_size": size}
    value["outputs"][0]["parameters"] = {"binary_data": dice.choice([True, False, 1, "yes"])}
    text = json.dumps(value).encode()
    length: Any = len(text)
    if dice.random() < 0.4:
        length = dice.choice([0, 1, length - 1, length + 1, length + len(tail) + 1, -5, "abc", "1e3", 10**30, "", "٣"])
        words = ()
    return text + tail, words, {"inference-header-content-length": str(length)}


def break_the_request(dice: random.Random) -> Mutant:
    """Headers too large, too many or odd; a body that is too long."""
    body = json.dumps(good()).encode()
    headers = dice.choice([
        {"x-long": "y" * 40_000}, {f"h{n}": "v" for n in range(3_000)}, {"content-encoding": "gzip"},
        {"content-encoding": "\x80"}, {"content-type": "text/plain"}, {"authorization": "Bearer \x80"},
        {"inference-header-content-length": "9" * 5000}, {"x": "v"},
    ])  # fmt: skip
    if dice.random() < 0.1:
        return body + b" " * 250_000, ("200000",), {}
    return body, (), headers


MUTATORS: tuple[Callable[[random.Random], Mutant], ...] = (
    change_a_field, change_a_field, change_the_data, break_the_text, lie_about_binary, lie_about_binary,
    break_the_request,
)  # fmt: skip
PATHS = ("/v2/models/mlp/infer",) * 12 + (
    "/v2/models/mlp/versions/1/infer", "/v2/models/mlp/versions/²/infer", "/v2/models/mlp/versions/99/infer",
    "/v2/models/%00/infer", "/v2/models/mlp/versions/%f0%9f/infer", "/v2/models//infer", "/v2/models/stats/infer",
    "/v2/repository/index", "/v2/repository/models/mlp/unload/x", "/v2/repository/models/x/load", "/v2/%2e%2e/v2",
    "/v2/models/mlp/config/1", "/v2/logging", "/v2/models/mlp/" + "x" * 3000,
)  # fmt: skip


def as_http(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("utf-8") + body


def check_one(wire: Wire, dice: random.Random, number: int) -> int:
    """Send one wrong request and look at its answer; the status."""
    mutator = dice.choice(MUTATORS)
    body, words, headers = mutator(dice)
    path = dice.choice(PATHS)
    status, answer = wire.exchange(as_http(path, body, headers))
    told = (number, mutator.__name__, path, str(headers)[:100], status, answer[:300], body[:300])
    assert 200 <= status < 500, told
    if status >= 400 and path.endswith("mlp/infer") and mutator is not break_the_request:
        assert list(json.loads(answer)) == ["error"], told
        assert not words or any(word in json.loads(answer)["error"] for word in words), told
    return status


def test_no_wrong_request_over_rest_is_answered_with_a_5xx(box: ProcessBox) -> None:
    dice = random.Random(SEED)
    statuses: dict[int, int] = {}
    with contextlib.closing(Wire(box)) as wire:
        for number in range(REQUESTS):
            status = check_one(wire, dice, number)
            statuses[status] = statuses.get(status, 0) + 1
    assert statuses[400] > REQUESTS / 2
    assert box.is_alive(), box.logs()[-2000:]
    assert "Traceback" not in box.logs()


def message() -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="mlp", id="7")
    request.inputs.add(name="rows", datatype="FP32", shape=[1, 64])
    request.raw_input_contents.append(RAW)
    return request


def wrong_message(dice: random.Random) -> bytes:
    """A message that says something wrong."""
    request = message()
    tensor = request.inputs[0]
    for _ in range(dice.randrange(1, 3)):
        match dice.randrange(10):
            case 0:
                request.model_name = dice.choice(["", "x", "\x00", "ü" * 3000])
            case 1:
                request.model_version = dice.choice(["²", "99", "-1", "9" * 5000, "x"])
            case 2:
                tensor.name = dice.choice(["", "x", "ROWS", "r" * 10_000])
            case 3:
                tensor.datatype = dice.choice(["", "FP64", "BYTES", "fp32", "FP99", "BF16"])
            case 4:
                del tensor.shape[:]
                tensor.shape.extend(dice.choice([[], [64], [0, 64], [-1, 64], [2**62, 64], [9, 64], [1] * 500]))
            case 5:
                request.raw_input_contents[0] = RAW[: dice.randrange(256)]
            case 6:
                request.raw_input_contents.append(b"")
            case 7:
                tensor.contents.fp32_contents.extend(ROW[: dice.randrange(1, 64)])
            case 8:
                del request.raw_input_contents[:]
                request.raw_input_contents.append(b"")
                field = dice.choice(["bool", "int", "int64", "uint", "uint64", "fp64"])
                getattr(tensor.contents, f"{field}_contents").extend([1] * 64)
            case 9:
                request.outputs.add(name=dice.choice(["", "zzz", "logits", "logits\n"]))
                request.inputs.add(name="rows", datatype="FP32", shape=[1, 64])
        if not request.raw_input_contents:
            request.raw_input_contents.append(RAW)
    return bytes(request.SerializeToString())


def wrong_bytes(dice: random.Random) -> bytes:
    """A message with bytes changed, cut, repeated or put in; or any bytes."""
    data = bytearray(message().SerializeToString())
    match dice.randrange(5):
        case 0:
            del data[dice.randrange(len(data)) :]
        case 1:
            for _ in range(dice.randrange(1, 8)):
                data[dice.randrange(len(data))] = dice.randrange(256)
        case 2:
            at = dice.randrange(len(data))
            data[at:at] = dice.randbytes(dice.randrange(1, 20))
        case 3:
            return dice.randbytes(dice.randrange(300))
        case 4:
            data += data[dice.randrange(len(data)) :] * 3
    return bytes(data)


def test_no_wrong_request_over_grpc_is_internal_or_unknown(box: ProcessBox) -> None:
    dice = random.Random(SEED)
    codes: dict[str, int] = {}
    others = (
        "ModelMetadata", "ModelReady", "ModelConfig", "ModelStatistics", "RepositoryIndex", "ServerMetadata",
        "TraceSetting", "ModelStreamInfer",
    )  # fmt: skip
    methods = ("ModelInfer",) * 10 + others
    with grpc.insecure_channel(box.grpc_address) as channel:
        for number in range(REQUESTS):
            method = dice.choice(methods)
            data = dice.choice([wrong_message, wrong_bytes])(dice)
            metadata = dice.choice([(), (), (), (("x-bin", dice.randbytes(1000)),), (("x-long", "y" * 4000),)])
            try:
                if method == "ModelStreamInfer":
                    list(channel.stream_stream(SERVICE + method)(iter([data]), timeout=60, metadata=metadata))
                else:
                    channel.unary_unary(SERVICE + method)(data, timeout=60, metadata=metadata)
                code, details = "OK", "no error"
            except grpc.RpcError as error:
                code, details = error.code().name, error.details()
            codes[code] = codes.get(code, 0) + 1
            assert code in LEGAL, (number, method, data[:300], code, details)
            assert details, (number, method, data[:300], code)
    assert codes["INVALID_ARGUMENT"] > REQUESTS / 3
    assert "Traceback" not in box.logs()


@pytest.mark.parametrize("version", ["²", "٣", "0", "-1", "9" * 5000, "1.0"])
def test_a_version_that_is_no_number_is_the_callers_fault(box: ProcessBox, version: str) -> None:
    body = {"parameters": {"version": version}}
    answer = httpx.post(f"{box.rest_url}/v2/repository/models/mlp/load", json=body, trust_env=False)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


def test_statistics_of_a_version_that_is_not_there_are_not_found(box: ProcessBox) -> None:
    with grpc.insecure_channel(box.grpc_address) as channel:
        request = pb.ModelStatisticsRequest(version="99").SerializeToString()
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(SERVICE + "ModelStatistics")(request, timeout=60)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_wrong_requests_leave_nothing_behind(box: ProcessBox) -> None:
    dice = random.Random(SEED + 1)

    def ask(count: int) -> None:
        with contextlib.closing(Wire(box)) as wire:
            for _ in range(count):
                body, _, headers = dice.choice(MUTATORS)(dice)
                wire.exchange(as_http("/v2/models/mlp/infer", body, headers))

    ask(REQUESTS // 4)
    memory, descriptors = memory_and_descriptors(box)
    ask(REQUESTS // 2)
    assert memory_and_descriptors(box)[0] - memory < 8  # megabytes: the allocator's arenas move a little
    assert memory_and_descriptors(box)[1] <= descriptors + 2
    answer = httpx.post(f"{box.rest_url}/v2/models/mlp/infer", json=good(), trust_env=False)
    assert answer.status_code == 200
    assert httpx.get(f"{box.rest_url}/v2/health/ready", trust_env=False).status_code == 200


def device_process(box: ProcessBox) -> int:
    """The process that holds the model, once there is one."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for child in children_of(box.pid):
            with contextlib.suppress(OSError):
                if b"rdukit_serving.device.process" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        time.sleep(0.02)
    raise AssertionError(f"box {box.pid} has no process of a model among {children_of(box.pid)}")


def test_under_load_and_kills_every_request_is_answered_and_memory_stays(box: ProcessBox) -> None:
    """Seconds of what benchmarks/programs/soak_serving.py does for minutes."""
    statuses: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=box.rest_url, trust_env=False, timeout=60) as client:
            while not stop.is_set():
                statuses.append(client.post("/v2/models/mlp/infer", json=good()).status_code)

    callers = [threading.Thread(target=ask) for _ in range(2)]
    for caller in callers:
        caller.start()
    memory, descriptors = memory_and_descriptors(box)
    for _ in range(2):
        os.kill(device_process(box), signal.SIGKILL)
        seen, deadline = len(statuses), time.monotonic() + 60
        while len(statuses) < seen + 20:
            assert time.monotonic() < deadline, "no answer after the process was killed"
            time.sleep(0.02)
    stop.set()
    for caller in callers:
        caller.join()
    assert set(statuses) == {200}  # waited for the next process, or were tried once more
    assert memory_and_descriptors(box)[0] - memory < 8  # megabytes
    assert memory_and_descriptors(box)[1] <= descriptors + 4

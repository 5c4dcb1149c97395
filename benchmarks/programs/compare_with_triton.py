"""The same bytes to a real Triton and to a box: is the status of the same class, the shape and the values the same?

Good requests (JSON, flat and nested, binary in and out, several rows, versions, outputs) and malformed ones go to both
over REST, and messages over gRPC. Prints a row each; ends with 1 if an answer to a good request differs, or if the box
takes what Triton refuses. ::

    python benchmarks/programs/compare_with_triton.py --peers-home ~/peers [--json FILE]

Triton comes from the wheel nvidia-pytriton in the environment ``v-triton``; docs/bench.md says how it is made.
"""

import argparse
import contextlib
import json
import os
import struct
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import serving_model
from bench_serving import answers_rightly, is_near, prepare, targets_of
from rdukit_bench.comparisons.machine import write_json
from serving_peers import SERVERS, TOKEN, Files, Server, box_command, free_ports, triton_command, why_missing
from serving_process import ServerProcess

ROW = serving_model.sample()
RAW = serving_model.raw_row()


@dataclass(frozen=True, slots=True)
class Case:
    """A request. ``is_good``: both must answer it, with the same values."""

    name: str
    body: bytes
    is_good: bool = False
    header_length: int | str | None = None
    path: str = serving_model.INFER_PATH


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: HTTP status or gRPC code, the form of an error's body, shapes and values of the outputs."""

    status: str
    error: str = ""
    shapes: list[list[int]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """2xx, 4xx, 5xx; over gRPC OK, CALLER or SERVER."""
        if self.status.isdigit():
            return f"{self.status[0]}xx"
        return "OK" if self.status == "OK" else "CALLER" if self.status in _CALLERS else "SERVER"


_CALLERS = {"INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "FAILED_PRECONDITION", "UNIMPLEMENTED"}


def tensor(**changes: Any) -> dict[str, Any]:
    """Return the one input, with changes; None leaves a field out."""
    value = {"name": serving_model.INPUT, "shape": [1, 64], "datatype": "FP32", "data": ROW, **changes}
    return {key: each for key, each in value.items() if each is not None}


def request(*inputs: dict[str, Any], **more: Any) -> bytes:
    """Return a request's JSON."""
    return json.dumps({"id": "7", "inputs": list(inputs), **more}).encode()


def binary(text: bytes, tail: bytes, **changes: Any) -> dict[str, Any]:
    """Fields of a case whose tensors follow the JSON."""
    return {"body": text + tail, "header_length": len(text), **changes}


def rest_cases() -> list[Case]:
    """Good ones first."""
    wanted = [{"name": serving_model.OUTPUT}]
    as_binary = [{"name": serving_model.OUTPUT, "parameters": {"binary_data": True}}]
    sized = {"data": None, "parameters": {"binary_data_size": 256}}
    good = [
        Case("one row", request(tensor()), True),
        Case("nested data", request(tensor(data=[ROW])), True),
        Case("three rows", request(tensor(shape=[3, 64], data=ROW * 3)), True),
        Case("a full batch", request(tensor(shape=[32, 64], data=ROW * 32)), True),
        Case("the output by name", request(tensor(), outputs=wanted), True),
        Case("version 1", request(tensor()), True, path="/v2/models/mlp/versions/1/infer"),
        Case("integers for floats", request(tensor(data=[1] * 64)), True),
        Case("binary in, JSON out", is_good=True, **binary(request(tensor(**sized), outputs=wanted), RAW)),
        Case("binary in and out", is_good=True, **binary(request(tensor(**sized), outputs=as_binary), RAW)),
        Case("JSON in, binary out", request(tensor(), outputs=as_binary), True),
        Case("binary for all outputs", request(tensor(), parameters={"binary_data_output": True}), True),
        Case("unknown request parameter", request(tensor(), parameters={"mine": 1}), True),
    ]
    wrong = {
        "broken JSON": b"{not json", "empty body": b"", "no inputs": b'{"id": "7"}', "empty inputs": request(),
        "wrong name": request(tensor(name="wrong")), "wrong type": request(tensor(datatype="INT32")),
        "unknown type": request(tensor(datatype="FP99")), "wrong shape": request(tensor(shape=[1, 63])),
        "more rows than data": request(tensor(shape=[2, 64])), "too little data": request(tensor(data=ROW[:10])),
        "negative shape": request(tensor(shape=[-1, 64])), "no data": request(tensor(data=None)),
        "textual data": request(tensor(data=["a"] * 64)),
        "unknown output": request(tensor(), outputs=[{"name": "zzz"}]),
        "batch too large": request(tensor(shape=[64, 64], data=ROW * 64)),
        "an input twice": request(tensor(), tensor()),
        "shape without batch": request(tensor(shape=[64])), "no rows": request(tensor(shape=[0, 64], data=[])),
        "null in the data": request(tensor(data=[None, *ROW[1:]])),
        "a value beyond FP32": request(tensor(data=[1e39, *ROW[1:]])),
        "a list for an object": b"[]", "inputs is no list": b'{"inputs": 7}',
    }  # fmt: skip
    text = request(tensor(**sized))
    return [
        *good, *(Case(name, body) for name, body in wrong.items()),
        Case("binary: too short", **binary(text, RAW[:100])),
        Case("binary: too long", **binary(text, RAW + b"xxxx")),
        Case("binary: size is a lie", **binary(
            request(tensor(data=None, parameters={"binary_data_size": 128})), RAW[:128])),
        Case("binary: size is text", **binary(
            request(tensor(data=None, parameters={"binary_data_size": "256"})), RAW)),
        Case("binary: negative size", **binary(request(tensor(data=None, parameters={"binary_data_size": -1})), RAW)),
        Case("binary: header longer than body", text + RAW, header_length=len(text) + 1000),
        Case("binary: header is no number", text + RAW, header_length="abc"),
        Case("binary: header cuts the JSON", text + RAW, header_length=10),
        Case("binary: data too", **binary(request(tensor(parameters={"binary_data_size": 256})), RAW)),
        Case("unknown model", request(tensor()), path="/v2/models/nope/infer"),
        Case("unknown version", request(tensor()), path="/v2/models/mlp/versions/99/infer"),
        Case("version is no number", request(tensor()), path="/v2/models/mlp/versions/x/infer"),
    ]  # fmt: skip


def grpc_cases() -> list[Case]:
    """Return the same over gRPC, where they can be said."""
    from rdukit.proto import inference_pb2 as pb

    def message(raw: list[bytes] | None = None, typed: list[float] | None = None, **changes: Any) -> bytes:
        version = changes.pop("version", "")
        made = pb.ModelInferRequest(model_name=changes.pop("model", "mlp"), model_version=version, id="7")
        outputs = changes.pop("outputs", ())
        for _ in range(changes.pop("times", 1)):
            given = {"name": serving_model.INPUT, "datatype": "FP32", "shape": [1, 64], **changes}
            made.inputs.add(**given).contents.fp32_contents.extend(typed or ())
            if not typed:
                made.inputs[-1].ClearField("contents")
        for name in outputs:
            made.outputs.add(name=name)
        made.raw_input_contents.extend([RAW] if raw is None and typed is None else raw or [])
        return bytes(made.SerializeToString())

    good = {
        "raw": message(), "typed": message(typed=ROW), "three rows": message([RAW * 3], shape=[3, 64]),
        "the output by name": message(outputs=[serving_model.OUTPUT]), "version 1": message(version="1"),
    }  # fmt: skip
    wrong = {
        "wrong name": message(name="wrong"), "wrong type": message(datatype="INT32"),
        "unknown type": message(datatype="FP99"), "wrong shape": message(shape=[1, 63]),
        "negative shape": message(shape=[-1, 64]), "no rows": message([b""], shape=[0, 64]),
        "batch too large": message([RAW * 64], shape=[64, 64]), "raw too short": message([RAW[:100]]),
        "raw too long": message([RAW + b"xxxx"]), "two raw contents": message([RAW, RAW]),
        "raw and typed": message([RAW], ROW), "no contents": message([]), "too few typed": message(typed=ROW[:10]),
        "an input twice": message([RAW, RAW], times=2), "unknown output": message(outputs=["zzz"]),
        "no inputs": message([], times=0), "unknown model": message(model="nope"), "no model": message(model=""),
        "unknown version": message(version="99"), "version is no number": message(version="x"),
        "not a message": b"\xff\xff\xff",
    }  # fmt: skip
    return [Case(name, body, True) for name, body in good.items()] + [Case(name, body) for name, body in wrong.items()]


def ask_rest(port: int, case: Case) -> Answer:
    """Send a case's bytes and read the answer."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    if case.header_length is not None:
        headers["Inference-Header-Content-Length"] = str(case.header_length)
    sent = urllib.request.Request(f"http://127.0.0.1:{port}{case.path}", case.body, headers, method="POST")
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sent, timeout=10) as answer:
            data, length = answer.read(), answer.headers.get("Inference-Header-Content-Length")
    except urllib.error.HTTPError as error:
        return Answer(str(error.code), error.read().decode(errors="replace")[:200])
    except OSError as error:
        return Answer("599", repr(error)[:200])
    split = int(length) if length else len(data)
    body, rest = json.loads(data[:split]), data[split:]
    shapes, values = [], []
    for output in body["outputs"]:
        shapes.append([int(size) for size in output["shape"]])
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            values += output["data"]
        else:
            values += struct.unpack(f"<{size // 4}f", rest[:size])
            rest = rest[size:]
    return Answer("200", "", shapes, values)


def ask_grpc(port: int, case: Case) -> Answer:
    """Return the same over gRPC."""
    import grpc

    from rdukit.proto import inference_pb2 as pb

    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(serving_model.GRPC_METHOD)
        try:
            data = call(case.body, timeout=10, metadata=(("authorization", f"Bearer {TOKEN}"),))
        except grpc.RpcError as error:
            return Answer(error.code().name, str(error.details())[:200])
    response = pb.ModelInferResponse.FromString(data)
    values: list[float] = []
    for index, output in enumerate(response.outputs):
        raw = response.raw_output_contents[index] if response.raw_output_contents else b""
        values += struct.unpack(f"<{len(raw) // 4}f", raw) if raw else output.contents.fp32_contents
    return Answer("OK", "", [list(output.shape) for output in response.outputs], values)


def judge(case: Case, theirs: Answer, ours: Answer) -> str:
    """Judge two answers: same, stricter, politer (4xx where Triton has 5xx), or WRONG. Pure."""
    if case.is_good:
        is_same = ours.kind == theirs.kind and ours.shapes == theirs.shapes and is_near(ours.values, theirs.values)
        return "same" if is_same and ours.kind in {"2xx", "OK"} else "WRONG"
    if ours.kind in {"2xx", "OK", "5xx", "SERVER"}:
        return "same" if ours.kind == theirs.kind == "2xx" else "WRONG"
    if theirs.kind in {"2xx", "OK"}:
        return "stricter"
    return "same" if ours.kind == theirs.kind else "politer"


def main() -> int:
    """Start both, ask both, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-home", type=Path, required=True)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    server: Server = next(server for server in SERVERS if server.name == "Triton")
    if missing := why_missing(server, options.peers_home):
        print(f"compare_with_triton: {missing}", file=sys.stderr)
        return 0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="triton-") as folder, contextlib.ExitStack() as stack:
        pef, checkpoint, expected = prepare(Path(folder))
        ports = []
        for name in ("triton", "box"):
            files = Files(pef, checkpoint, Path(folder, name))
            files.folder.mkdir()
            is_triton = name == "triton"
            started = (
                triton_command(options.peers_home, files) if is_triton else box_command(files, *free_ports(2))
            )  # fmt: skip
            targets = targets_of(server, started)
            environment = {"HOME": str(files.folder), **started.environment}
            stack.enter_context(
                ServerProcess.start(
                    started.command,
                    environment,
                    files.folder,
                    None,
                    lambda targets=targets: all(answers_rightly(each, expected) for each in targets.values()),
                )
            )
            ports.append((started.rest_port or 0, started.grpc_port or 0))
        for wire, cases, ask in (("rest", rest_cases(), ask_rest), ("grpc", grpc_cases(), ask_grpc)):
            for case in cases:
                theirs, ours = (ask(each[wire == "grpc"], case) for each in ports)
                verdict = judge(case, theirs, ours)
                rows.append({
                    "wire": wire, "case": case.name, "good": case.is_good, "triton": asdict(theirs),
                    "box": asdict(ours), "verdict": verdict,
                })  # fmt: skip
                print(f"{wire:<5} {case.name:<34} {theirs.status:<18} {ours.status:<18} {verdict:<9} {ours.error[:60]}")
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in ("same", "politer", "stricter")}
    wrong = [row for row in rows if row["verdict"] == "WRONG"]
    print(f"{len(rows)} requests: {counts}, wrong: {len(wrong)}")
    if options.json:
        write_json(options.json, {"rows": rows})
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())

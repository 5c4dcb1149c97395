"""The Open Inference Protocol under independent clients: tritonclient, KServe, health, schemathesis."""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import schemathesis
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hypothesis import HealthCheck, Phase, given, settings
from safetensors.torch import save_file
from tritonclient.utils import InferenceServerException

from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from rdukit_zoo.mlp import MultiLayerPerceptron
from support import shows
from support.boxes import run_verb
from support.platform.warm import start_box

pytestmark = shows("inference", "mlp")

ROWS = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
#: The protocol's routes, with paths as OpenAPI has them (the published file writes ``${NAME}``); ours.
TENSOR = {
    "type": "object", "required": ["name", "shape", "datatype", "data"],
    "properties": {
        "name": {"type": "string"}, "datatype": {"enum": ["FP32", "INT32", "BOOL", "FP16", "BYTES"]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "data": {"type": "array", "items": {"type": "number"}}, "parameters": {"type": "object"},
    },
}  # fmt: skip
REQUEST = {
    "type": "object", "required": ["inputs"],
    "properties": {
        "id": {"type": "string"}, "inputs": {"type": "array", "items": TENSOR}, "parameters": {"type": "object"},
        "outputs": {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string"}, "parameters": {"type": "object"}}}},
    },
}  # fmt: skip
ERROR = {
    "type": "object", "required": ["error"], "properties": {"error": {"type": "string"}},
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    folder = tmp_path_factory.mktemp("protocol")
    os.environ["RDUKIT_KERNELS"] = "portable"
    pef = run_verb("mlp", "compile", folder, purpose="serve", batch_size=8).outputs["pef"]
    save_file(dict(MultiLayerPerceptron().state_dict()), folder / "mlp.safetensors")
    environment = {
        "RDUKIT_BOX_PEF": str(pef), "RDUKIT_BOX_CHECKPOINT": str(folder / "mlp.safetensors"),
        "RDUKIT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    started = start_box(BoxSpec("mlp", folder / "state", [folder], environment))
    yield started
    started.stop()


def address(box: ProcessBox) -> str:
    return box.rest_url.removeprefix("http://")


def infer(box: ProcessBox, is_binary: bool, wants_binary: bool, **more: Any) -> Any:
    with triton_http.InferenceServerClient(address(box)) as client:
        tensor = triton_http.InferInput("rows", [3, 64], "FP32")
        tensor.set_data_from_numpy(ROWS, binary_data=is_binary)
        wanted = triton_http.InferRequestedOutput("logits", binary_data=wants_binary)
        return client.infer("mlp", [tensor], outputs=[wanted], **more)


def test_binary_and_json_tensors_give_the_same_values_to_the_last_bit(box: ProcessBox) -> None:
    answers = [infer(box, given, wanted).as_numpy("logits") for given in (True, False) for wanted in (True, False)]
    assert answers[0].shape == (3, 10)
    for other in answers[1:]:
        assert (other == answers[0]).all()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_a_compressed_request_is_refused_by_name_and_a_compressed_answer_may_be_asked_for(
    box: ProcessBox, algorithm: str
) -> None:
    with pytest.raises(InferenceServerException, match="Content-Encoding") as caught:
        infer(box, True, True, request_compression_algorithm=algorithm)
    assert caught.value.status() == "400"
    # It need not be compressed, says HTTP.
    assert infer(box, True, True, response_compression_algorithm=algorithm).as_numpy("logits").shape == (3, 10)


@pytest.mark.parametrize("wire", ["http", "grpc"])
async def test_asynchronous_clients_get_their_own_answers_side_by_side(box: ProcessBox, wire: str) -> None:
    module: Any = triton_http_aio if wire == "http" else triton_grpc_aio
    client = module.InferenceServerClient(address(box) if wire == "http" else box.grpc_address)

    async def ask(rows: Any) -> Any:
        tensor = module.InferInput("rows", [1, 64], "FP32")
        tensor.set_data_from_numpy(rows)
        return (await client.infer("mlp", [tensor])).as_numpy("logits")[0]

    expected = infer(box, True, True).as_numpy("logits")
    found = await asyncio.gather(*(ask(ROWS[index % 3 : index % 3 + 1]) for index in range(24)))
    await client.close()
    for index, row in enumerate(found):
        # A batch of another size may sum in another order.
        np.testing.assert_allclose(row, expected[index % 3], rtol=1e-5, atol=1e-6)


def test_health_and_reflection_clients_find_the_protocol(box: ProcessBox) -> None:
    with grpc.insecure_channel(box.grpc_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="nothing"), timeout=60)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        file = database.FindFileContainingSymbol("inference.GRPCInferenceService")
        request = next(message for message in file.message_type if message.name == "ModelInferRequest")
        assert {field.name: field.number for field in request.field}["raw_input_contents"] == 7


def description() -> dict[str, Any]:
    """What the protocol says of its routes, as OpenAPI; ``%m`` is a model's name, once right and once any."""

    def operation(*names: str, body: Any = None) -> dict[str, Any]:
        refused = {"description": "", "content": {"application/json": {"schema": ERROR}}}
        value: dict[str, Any] = {"responses": {"200": {"description": ""}, "4XX": refused}}
        value["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
        if body:
            value["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        return value

    paths: dict[str, Any] = {
        "/v2": {"get": operation()}, "/v2/health/live": {"get": operation()}, "/v2/models/{m}": {"get": operation("m")},
        "/v2/models/{m}/versions/{v}/ready": {"get": operation("m", "v")},
        "/v2/models/mlp/infer": {"post": operation(body=REQUEST)},
        "/v2/models/{m}/versions/{v}/infer": {"post": operation("m", "v", body=REQUEST)},
        "/v2/models/{m}/stats": {"get": operation("m")}, "/v2/models/{m}/config": {"get": operation("m")},
        "/v2/repository/index": {"post": operation(body={"type": "object"})},
    }  # fmt: skip
    return {"openapi": "3.0.3", "info": {"title": "Open Inference Protocol", "version": "2"}, "paths": paths}


def run_schemathesis(schema: Any, base_url: str, examples: int) -> int:
    """Send generated requests and let schemathesis judge the answers; how many were sent."""
    sent = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=examples, deadline=None, derandomize=True, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        def check(case: Any) -> None:
            nonlocal sent
            sent += 1
            response = case.call(base_url=base_url)
            case.validate_response(response, checks=[schemathesis.checks.not_a_server_error, response_schema])
            assert response.status_code < 500

        check()
    return sent


def response_schema(context: Any, response: Any, case: Any) -> None:
    """The part of schemathesis that holds an answer against its description."""
    from schemathesis.specs.openapi.checks import response_schema_conformance

    response_schema_conformance(context, response, case)


@pytest.mark.long
def test_schemathesis_finds_no_answer_that_is_not_as_described(box: ProcessBox) -> None:
    schema = schemathesis.openapi.from_dict(description())
    assert run_schemathesis(schema, box.rest_url, 6) >= 20


def test_the_boxs_own_openapi_is_one_and_names_every_control_route(box: ProcessBox) -> None:
    found = httpx.get(f"{box.rest_url}/openapi.json", trust_env=False).json()
    assert {"/v1/describe", "/v1/operations", "/v1/completions"} <= found["paths"].keys()
    # Those of the inference protocol, too, and each is one that is answered.
    told = {
        (method.upper(), path) for path, methods in found["paths"].items() for method in methods if path[:3] == "/v2"
    }
    named = {re.sub(r"\{\w+\}", "{}", path) for _, path in told}
    assert named >= {re.sub(r"\{\w+\}|mlp", "{}", path) for path in description()["paths"]}
    for method, path in told:
        if not path.endswith("load"):
            url = f"{box.rest_url}{path.format(model='mlp', version='1')}"
            answer = httpx.request(
                method, url, json={"inputs": []} if path.endswith("infer") else None, trust_env=False
            )
            assert answer.status_code in {200, 400} and "this route does not exist" not in answer.text, (
                path,
                answer.text,
            )
    schema = schemathesis.openapi.from_dict(found)
    schema = schema.include(path_regex="^/v1/(describe|operations|completions|embeddings|models)", method="GET")
    assert run_schemathesis(schema, box.rest_url, 3) >= 3


def test_kserves_client_works_unchanged(box: ProcessBox) -> None:
    python = Path(os.environ.get("PEERS_HOME", ""), "v-kserve", "bin", "python")
    if not python.is_file():
        pytest.skip(
            "PEERS_HOME names no folder with the environment v-kserve (docs/bench.md): KServe's client was not run"
        )
    script = Path(__file__).parents[2] / "benchmarks" / "programs" / "peers" / "kserve_client.py"
    ended = subprocess.run(
        [str(python), str(script), box.rest_url, box.grpc_address], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == {"rest": [3, 10], "grpc": [3, 10], "refused": True}

"""A box that serves a model: standard clients, wrong requests, swaps, kills and hangs, with the real device process."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from safetensors.torch import save_file
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from rdukit.proto import modelbox_pb2, modelbox_pb2_grpc
from rdukit.telemetry.otlp_lines import read_span_file
from rdukit_zoo.mlp import MultiLayerPerceptron
from support import shows, wait_until
from support.served_box import BATCH, HEADERS, ROW, TOKEN, Asking, Served, exchange, raw, request, serving_mlp

pytestmark = shows("inference", "observability", "mlp")

METADATA = (("authorization", f"Bearer {TOKEN}"),)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "portable")
        with serving_mlp(tmp_path_factory.mktemp("served")) as found:
            yield found


MALFORMED: dict[str, object] = {
    "broken JSON": b"{not json", "empty body": b"", "no inputs": {"id": "7"}, "empty inputs": {"inputs": []},
    "wrong name": request(name="wrong"), "wrong type": request(datatype="INT32"),
    "unknown type": request(datatype="FP99"), "wrong shape": request(shape=[1, 63]),
    "more rows than data": request(shape=[2, 64]), "too little data": request(data=ROW[:10]),
    "negative shape": request(shape=[-1, 64]), "no data": request(data=None), "textual data": request(data=["a"] * 64),
    "unknown output": {**request(), "outputs": [{"name": "zzz"}]},
    "batch too large": request(shape=[64, 64], data=ROW * 64),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_malformed_is_refused_as_the_protocol_says(served: Served, case: str) -> None:
    answer = served.infer(MALFORMED[case])
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert isinstance(answer.json()["error"], str)


def test_unknown_models_versions_routes_and_methods_are_4xx(served: Served) -> None:
    for path in ("/v2/models/nope/infer", "/v2/models/mlp/versions/99/infer", "/v2/nothing"):
        answer = served.infer(request(), path)
        assert (answer.status_code, list(answer.json())) == (404, ["error"])
    for path in ("/v2/models/nope", "/v2/models/mlp/versions/99/ready", "/v2/models/nope/ready"):
        assert served.http.get(path).status_code == 404
    refused = served.http.get("/v2/models/mlp/infer")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert served.http.post("/v2/repository/index", json={"ready": "yes"}).status_code == 400
    assert served.http.get("/v2/systemsharedmemory/status").status_code == 400


@pytest.mark.parametrize("field", ["name", "datatype", "shape", "raw"])
def test_over_grpc_the_same_faults_are_invalid_arguments(served: Served, field: str) -> None:
    with grpc.insecure_channel(served.box.grpc_address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        wrong = service_pb2.ModelInferRequest(model_name="mlp")
        tensor = wrong.inputs.add(name="rows", datatype="FP32", shape=[1, 64])
        wrong.raw_input_contents.append(np.asarray(ROW, "<f4").tobytes())
        match field:
            case "name":
                tensor.name = "wrong"
            case "datatype":
                tensor.datatype = "INT32"
            case "shape":
                tensor.shape[1] = 63
            case "raw":
                wrong.raw_input_contents[0] = b"short"
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(wrong, timeout=60, metadata=METADATA)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        unknown = service_pb2.ModelInferRequest(model_name="mlp", model_version="99")
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(unknown, timeout=60, metadata=METADATA)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_tritonclient_works_unchanged(served: Served, wire: str) -> None:
    module: Any = triton_http if wire == "http" else triton_grpc
    address = served.address if wire == "http" else served.box.grpc_address
    client = module.InferenceServerClient(address)
    assert client.is_server_live(headers=dict(HEADERS))
    assert client.is_server_ready(headers=dict(HEADERS))
    assert client.is_model_ready("mlp", headers=dict(HEADERS))
    rows = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    tensor = module.InferInput("rows", [3, 64], "FP32")
    tensor.set_data_from_numpy(rows)
    wanted = module.InferRequestedOutput("logits")
    answer = client.infer("mlp", [tensor], request_id="r-1", outputs=[wanted], headers=dict(HEADERS), model_version="1")
    # float32, the same products in another order
    np.testing.assert_allclose(answer.as_numpy("logits"), served.expected(rows), rtol=1e-5, atol=1e-6)
    given = answer.get_response()
    assert (given["id"] if wire == "http" else given.id) == "r-1"
    as_json: dict[str, Any] = {} if wire == "http" else {"as_json": True}
    metadata = client.get_model_metadata("mlp", headers=dict(HEADERS), **as_json)
    assert metadata["inputs"] == [{"name": "rows", "datatype": "FP32", "shape": metadata["inputs"][0]["shape"]}]
    assert [int(size) for size in metadata["inputs"][0]["shape"]] == [-1, 64]
    configuration = client.get_model_config("mlp", headers=dict(HEADERS), **as_json)
    assert configuration.get("config", configuration)["max_batch_size"] == BATCH
    statistics = client.get_inference_statistics("mlp", headers=dict(HEADERS), **as_json)["model_stats"][0]
    assert int(statistics["inference_count"]) >= 3
    with pytest.raises(InferenceServerException, match="no output 'zzz'"):
        client.infer("mlp", [tensor], outputs=[module.InferRequestedOutput("zzz")], headers=dict(HEADERS))
    client.close()


def test_a_box_says_which_kernels_it_runs_and_why(served: Served) -> None:
    told = served.http.get("/v2/models/mlp").json()["properties"]["kernels"]
    assert told.startswith("portable: the PEF has no libraries") and "rdukit pef build" in told
    assert f"kernels={told}" in served.box.logs()


def test_json_in_gives_json_out_and_says_where_the_time_went(served: Served) -> None:
    answer = served.infer({**request(shape=[2, 64], data=[ROW, ROW]), "outputs": [{"name": "logits"}]})
    value = answer.json()
    assert (value["id"], value["model_name"], value["model_version"]) == ("7", "mlp", "1")
    assert value["outputs"][0]["shape"] == [2, 10]
    rows = np.asarray([ROW, ROW], np.float32)
    given = np.asarray(value["outputs"][0]["data"], np.float32).reshape(2, 10)
    np.testing.assert_allclose(given, served.expected(rows), rtol=1e-5, atol=1e-6)
    assert {part.split(";")[0].strip() for part in answer.headers["server-timing"].split(",")} == {
        "queue", "compute", "load", "compile",
    }  # fmt: skip


def test_a_sampled_request_has_spans_of_queue_batch_and_device_in_its_callers_trace(served: Served) -> None:
    trace, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    spans = served.folder / "spans.jsonl"
    body = request(shape=[2, 64], data=[ROW, ROW])
    for flags in ("00", "01"):  # the first one is not sampled: nothing is told of it
        sent = {"traceparent": f"00-{trace}-{caller}-{flags}"}
        answer = served.http.post("/v2/models/mlp/infer", json=body, headers=sent)
    assert 'desc="requests=1 rows=2 most=' in answer.headers["server-timing"]
    wait_until(lambda: spans.exists() and spans.read_text().count('"infer"') == 1)
    of_trace = [span for span in read_span_file(spans, 1000, 1 << 20) if span.context.trace_id == trace]
    found = {span.name: span for span in of_trace}
    assert sorted(span.name for span in of_trace) == ["batch", "device", "infer", "queue"]
    infer = found["infer"]
    assert (infer.context.trace_id, infer.parent_id, infer.attributes["rdukit.rows"]) == (trace, caller, 2)
    for name in ("queue", "batch", "device"):
        assert (found[name].parent_id, found[name].context.trace_id) == (infer.context.span_id, trace)
    assert found["queue"].end_ns == found["batch"].start_ns and found["batch"].end_ns == found["device"].start_ns
    device = found["device"].attributes
    assert (device["rdukit.batch.requests"], device["rdukit.batch.rows"]) == (1, 2)
    assert device["rdukit.batch.most_rows"] == BATCH and device["rdukit.compute_us"] > 0


def test_typed_contents_and_streams_work_over_grpc(served: Served) -> None:
    with grpc.insecure_channel(served.box.grpc_address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        good = service_pb2.ModelInferRequest(model_name="mlp", id="a")
        good.inputs.add(name="rows", datatype="FP32", shape=[1, 64]).contents.fp32_contents.extend(ROW)
        bad = service_pb2.ModelInferRequest(model_name="mlp", id="b")
        answers = list(stub.ModelStreamInfer(iter([good, bad, good]), timeout=60, metadata=METADATA))
    assert [bool(answer.error_message) for answer in answers] == [False, True, False]
    expected = served.expected(np.asarray([ROW], np.float32))[0]
    found = answers[2].infer_response.outputs[0].contents.fp32_contents
    np.testing.assert_allclose(list(found), expected, rtol=1e-5, atol=1e-6)
    spent = {name: value.int64_param for name, value in answers[0].infer_response.parameters.items()}
    assert spent.keys() == {"queue_us", "compute_us", "load_us", "compile_us"}
    assert spent["compute_us"] > 0 and spent["load_us"] > 1000 and spent["compile_us"] == 0


def test_reflection_has_the_protocols_own_service(served: Served) -> None:
    with grpc.insecure_channel(served.box.grpc_address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService")
        (answer,) = stub.ServerReflectionInfo(iter([asked]), timeout=60, metadata=METADATA)
    assert len(answer.file_descriptor_response.file_descriptor_proto) == 1


def test_without_a_token_only_health_answers(served: Served) -> None:
    with httpx.Client(base_url=served.box.rest_url, trust_env=False) as stranger:
        assert stranger.get("/v2/health/ready").status_code == 200
        assert stranger.get("/health/ready").status_code == 200
        for path in ("/v2", "/v2/models/mlp", "/v1/describe", "/v1/operations"):
            answer = stranger.get(path)
            assert answer.status_code == 401, path
        assert stranger.post("/v2/models/mlp/infer", json=request()).status_code == 401
        wrong = stranger.post("/v2/models/mlp/infer", json=request(), headers={"Authorization": "Bearer other"})
        assert wrong.status_code == 401
    with grpc.insecure_channel(served.box.grpc_address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive is not None
        with pytest.raises(grpc.RpcError) as caught:
            stub.ServerMetadata(service_pb2.ServerMetadataRequest(), timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        own = modelbox_pb2_grpc.ModelBoxStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            own.Describe(modelbox_pb2.DescribeRequest(), timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert own.Describe(modelbox_pb2.DescribeRequest(), timeout=60, metadata=METADATA).name == "mlp"
        with pytest.raises(grpc.RpcError) as caught:
            list(own.Watch(modelbox_pb2.WatchRequest(id="x"), timeout=60))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(reflected.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert health.status == health_pb2.HealthCheckResponse.SERVING


def test_requests_are_in_the_access_log_and_the_metrics(served: Served) -> None:
    before = served.metric("nv_inference_request_success")
    served.infer(request())
    assert served.metric("nv_inference_request_success") == before + 1
    log = served.folder / "access.log"
    wait_until(lambda: log.is_file() and '"status":200' in log.read_text())
    json.loads(log.read_text().splitlines()[0])
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: the metrics' names and help were not linted")
    text = served.http.get("/metrics").text
    checked = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True, check=False)
    # Triton's names are as they are; promtool would name some of them otherwise.
    lints = [line for line in checked.stderr.splitlines() if not line.startswith("nv_inference_")]
    assert checked.returncode in {0, 3}, checked.stderr
    assert lints == []


def test_a_version_is_swapped_under_load_without_a_failed_request(served: Served) -> None:
    fresh = MultiLayerPerceptron()
    path = served.folder / "fresh.safetensors"
    save_file(dict(fresh.state_dict()), path)
    before = served.http.get("/v2/models/mlp").json()["versions"]
    with Asking(served) as load:
        body = {"parameters": {"pef": str(served.pef), "checkpoint": str(path)}}
        answer = served.http.post("/v2/repository/models/mlp/load", json=body)
        assert answer.status_code == 200, answer.text
        wait_until(lambda: served.http.get("/v2/models/mlp").json()["versions"] not in (before, []))
    assert set(load.statuses) == {200}
    wait_until(lambda: len(served.http.get("/v2/models/mlp").json()["versions"]) == 1)
    served.model = fresh.eval()
    found = served.infer(request()).json()
    assert int(found["model_version"]) > int(before[0])
    expected = served.expected(np.asarray([ROW], np.float32))[0]
    np.testing.assert_allclose(found["outputs"][0]["data"], expected, rtol=1e-5, atol=1e-6)


def test_a_model_that_cannot_be_loaded_leaves_the_old_one_answering(served: Served) -> None:
    torn = served.folder / "torn.safetensors"
    torn.write_bytes(b"\0" * 20)
    body = {"parameters": {"pef": str(served.pef), "checkpoint": str(torn)}}
    answer = served.http.post("/v2/repository/models/mlp/load", json=body)
    assert (answer.status_code, list(answer.json())) == (400, ["error"]), answer.text
    outside = served.http.post("/v2/repository/models/mlp/load", json={"parameters": {"pef": "/etc/passwd"}})
    assert outside.status_code == 400
    assert served.infer(request()).status_code == 200


@pytest.mark.long
def test_what_was_unloaded_says_that_it_loads_and_comes_back_under_its_number(served: Served) -> None:
    before = served.infer(request()).json()
    repository = "/v2/repository/models/mlp"
    assert served.http.post(f"{repository}/unload", json={}).status_code == 200
    gone = served.infer(request())
    assert (gone.status_code, "no version that is loaded; loaded: none" in gone.json()["error"]) == (404, True)
    answers: list[httpx.Response] = []

    def load() -> None:
        with httpx.Client(base_url=served.box.rest_url, headers=dict(HEADERS), trust_env=False, timeout=60) as client:
            answers.append(client.post(f"{repository}/load", json={}))

    loading = threading.Thread(target=load)
    loading.start()
    # How long it loads is the machine's affair; whoever asks meanwhile is told so, and not that there is nothing.
    while loading.is_alive():
        told = served.infer(request())
        if told.status_code == 503:
            assert "is loading (version" in told.json()["error"]
        else:
            assert told.status_code == 200 or "loaded: none" in told.json()["error"], told.text
    loading.join()
    assert answers[0].status_code == 200, answers[0].text
    after = served.infer(request()).json()
    assert (after["model_version"], after["outputs"]) == (before["model_version"], before["outputs"])


@pytest.mark.long
def test_a_version_that_is_named_is_loaded_with_its_own_files(served: Served) -> None:
    def answer(version: str) -> object:
        return served.infer(request(), f"/v2/models/mlp/versions/{version}/infer").json()["outputs"][0]["data"]

    path = served.folder / "other.safetensors"
    save_file(dict(MultiLayerPerceptron().state_dict()), path)
    current = served.infer(request()).json()["model_version"]
    load, unload = (f"/v2/repository/models/mlp/{verb}" for verb in ("load", "unload"))
    files = {"pef": str(served.pef), "checkpoint": str(path), "version": "70", "keep_others": True}
    assert served.http.post(load, json={"parameters": files}).status_code == 200
    other = answer("70")
    assert other != answer(current)
    assert served.http.post(unload, json={"parameters": {"version": "70"}}).status_code == 200
    again = served.http.post(load, json={"parameters": {"version": "70", "keep_others": True}})
    assert again.status_code == 200, again.text
    assert answer("70") == other
    assert served.http.post(unload, json={"parameters": {"version": "70"}}).status_code == 200
    assert served.infer(request()).json()["model_version"] == current


def test_fields_of_the_repository_are_known_and_come_once(served: Served) -> None:
    index, load = "/v2/repository/index", "/v2/repository/models/mlp/load"
    for path, body, words in (
        (index, b'{"raedy": true}', "'raedy'; expected ready"),
        (index, b'{"ready": true, "ready": false}', "'ready' twice"),
        (load, b'{"pef": "x"}', "'pef'; expected parameters"),
        (load, b'{"parameters": {"version": "1", "version": "2"}}', "'version' twice"),
    ):
        answer = served.http.post(path, content=body)
        assert (answer.status_code, words in answer.json()["error"]) == (400, True), answer.text


def test_a_killed_device_process_loses_no_request(served: Served) -> None:
    with Asking(served) as load:
        wait_until(lambda: len(load.statuses) > 20)
        os.kill(served.pid(), signal.SIGKILL)
        seen = len(load.statuses)
        wait_until(lambda: len(load.statuses) > seen + 50)
    assert set(load.statuses) == {200}
    assert served.metric("rdukit_box_model_restarts_total") >= 1
    assert served.http.get("/v2/health/ready").status_code == 200


@pytest.mark.long
def test_a_hung_device_turns_readiness_off_and_is_replaced(served: Served) -> None:
    served.http.get("/v2/health/ready")
    hung = served.pid()
    os.kill(hung, signal.SIGSTOP)
    answer = served.http.get("/v2/health/ready")
    assert answer.status_code == 503
    wait_until(lambda: served.http.get("/v2/health/ready").status_code == 200)
    assert served.pid() != hung
    assert served.infer(request()).status_code == 200


def test_a_caller_that_goes_away_takes_its_request_back(served: Served) -> None:
    hung = served.pid()
    os.kill(hung, signal.SIGSTOP)

    async def wait_pending(count: int) -> None:
        await asyncio.to_thread(wait_until, lambda: served.metric("nv_inference_pending_request_count") == count)

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=served.box.rest_url, headers=dict(HEADERS), trust_env=False) as client:
            asking = [asyncio.create_task(client.post("/v2/models/mlp/infer", json=request()))]
            await wait_pending(1)  # it is on the device, and those that come later wait behind it
            asking += [asyncio.create_task(client.post("/v2/models/mlp/infer", json=request())) for _ in range(2)]
            await wait_pending(3)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    before = served.metric("nv_inference_request_success")
    asyncio.run(leave())
    time.sleep(0.2)  # until the box has seen it: nothing says so
    os.kill(hung, signal.SIGCONT)
    assert served.infer(request()).status_code == 200
    # The one on the device was computed for nobody; those behind it never ran.
    wait_until(lambda: served.metric("nv_inference_pending_request_count") == 0)
    assert served.metric("nv_inference_request_success") - before <= 2


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_a_request_with_a_timeout_is_answered_when_it_has_passed(served: Served, wire: str) -> None:
    module: Any = triton_http if wire == "http" else triton_grpc
    client = module.InferenceServerClient(served.address if wire == "http" else served.box.grpc_address)
    tensor = module.InferInput("rows", [1, 64], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 64), np.float32))
    assert client.infer("mlp", [tensor], headers=dict(HEADERS), timeout=600_000_000).as_numpy("logits").shape[0] == 1
    failed = served.metric("nv_inference_request_failure")
    hung = served.pid()
    os.kill(hung, signal.SIGSTOP)
    try:
        with pytest.raises(InferenceServerException, match="no answer within 50000 microseconds") as caught:
            client.infer("mlp", [tensor], headers=dict(HEADERS), timeout=50_000)
        assert caught.value.status() == ("504" if wire == "http" else "StatusCode.DEADLINE_EXCEEDED")
        if wire == "grpc":
            with pytest.raises(InferenceServerException, match=r"(?i)deadline"):
                client.infer("mlp", [tensor], headers=dict(HEADERS), client_timeout=0.05)
    finally:
        os.kill(hung, signal.SIGCONT)
    wait_until(lambda: served.metric("nv_inference_pending_request_count") == 0)
    assert served.metric("nv_inference_request_failure") - failed == 1
    client.close()


def test_connections_are_kept_pipelined_and_closed_as_http_says(served: Served) -> None:
    assert served.infer(request()).status_code == 200
    whole, wrong, refused = raw(), raw(body=b"{not json"), served.infer(b"{not json").status_code
    assert exchange(served, whole, wrong, whole) == [200, refused, 200, 200]
    assert exchange(served, whole * 3 + raw("/v2/models/nobody/infer") + whole) == [200, 200, 200, 404, 200, 200]
    assert exchange(served, whole[:40], whole[40:150], whole[150:]) == [200, 200]
    assert exchange(served, raw(more="connection: close\r\n")) == [200]
    assert exchange(served, raw(version="1.0")) == [200]
    assert exchange(served, raw(more="expect: 100-continue\r\n")) == [100, 200, 200]
    assert exchange(served, whole.replace(TOKEN.encode(), b"nobody"), whole) == [401, 200, 200]
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(json.dumps(request())), json.dumps(request()).encode())
    head = raw(body=b"", more="transfer-encoding: chunked\r\n").replace(b"content-length: 0\r\n", b"")
    assert exchange(served, head + chunked) == [200, 200]
    assert exchange(served, raw(more="content-encoding: gzip\r\n")) == [refused, 200]

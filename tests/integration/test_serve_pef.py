"""``rdukit serve``: a PEF by itself behind the inference protocol, asked by standard clients."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton_grpc
from safetensors.torch import save_file

from rdukit_zoo.mlp import MultiLayerPerceptron
from support import shows, wait_until
from support.boxes import run_verb

pytestmark = shows("serve", "inference", "mlp")

RDUKIT = Path(sys.executable).with_name("rdukit")
BATCH = 4


class Served:
    """A running server and the model that it serves."""

    def __init__(self, rest: str, grpc: str, model: MultiLayerPerceptron) -> None:
        self.http = httpx.Client(base_url=rest, trust_env=False, timeout=60)
        self.grpc, self.model = grpc, model
        self.rows = np.linspace(-1, 1, BATCH * 64, dtype=np.float32).reshape(BATCH, 64)

    def expected(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        with torch.inference_mode():
            answer: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = self.model(torch.from_numpy(self.rows)).numpy()
        return answer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve-pef")
    environment = {**os.environ, "RDUKIT_KERNELS": "portable", "RDUKIT_HOME": str(folder / "home")}
    os.environ["RDUKIT_KERNELS"] = "portable"
    pef = run_verb("mlp", "compile", folder, purpose="serve", batch_size=BATCH).outputs["pef"]
    torch.manual_seed(0)
    model = MultiLayerPerceptron().eval()
    save_file(dict(model.state_dict()), folder / "mlp.safetensors")
    announced, log = folder / "announced.json", folder / "log"
    command = [
        RDUKIT, "serve", pef, "--checkpoint", folder / "mlp.safetensors", "--name", "small",
        "--rest-port", "0", "--grpc-port", "0", "--announce", announced,
    ]  # fmt: skip
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    try:
        wait_until(lambda: announced.exists() or process.poll() is not None, 60)
        assert announced.exists(), log.read_text()
        addresses = json.loads(announced.read_text())
        served = Served(addresses["rest"], addresses["grpc"], model)
        yield served
        served.http.close()
    finally:
        process.terminate()
        assert process.wait(20) == 0
    assert not announced.exists()


def test_rest_answers_with_the_models_numbers(served: Served) -> None:
    body = {
        "inputs": [{"name": "rows", "shape": [BATCH, 64], "datatype": "FP32", "data": served.rows.ravel().tolist()}]
    }
    answer = served.http.post("/v2/models/small/infer", json=body)
    assert answer.status_code == 200, answer.text
    logits = np.array(answer.json()["outputs"][0]["data"], np.float32).reshape(BATCH, -1)
    np.testing.assert_allclose(logits, served.expected(), atol=0.05)  # bf16 on the device


def test_grpc_answers_the_same(served: Served) -> None:
    with triton_grpc.InferenceServerClient(served.grpc) as client:
        assert client.is_server_ready()
        tensor = triton_grpc.InferInput("rows", [BATCH, 64], "FP32")
        tensor.set_data_from_numpy(served.rows)
        logits = client.infer("small", [tensor]).as_numpy("logits")
    np.testing.assert_allclose(logits, served.expected(), atol=0.05)  # bf16 on the device


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/small", "/metrics", "/v1/models", "/openapi.json"])
def test_everything_beside_inferences_answers(served: Served, path: str) -> None:
    answer = served.http.get(path)
    assert answer.status_code == 200, answer.text
    assert path != "/metrics" or "nv_inference_request_success" in answer.text


def test_an_unknown_route_and_another_file_are_refused(served: Served) -> None:
    assert served.http.get("/v1/describe").json()["error"]["code"] == "not-found"
    body = {"parameters": {"pef": "/etc/passwd"}}
    answer = served.http.post("/v2/repository/models/small/load", json=body)
    assert answer.status_code == 400
    assert "serves one PEF" in answer.json()["error"]


def test_a_missing_checkpoint_ends_it_with_the_reason(served: Served, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.pef"
    nothing.write_bytes(b"no PEF")
    ended = subprocess.run(
        [RDUKIT, "serve", nothing, "--rest-port", "0", "--grpc-port", "0"], capture_output=True, text=True, check=False
    )
    assert ended.returncode not in (0, 1)
    assert "nothing.pef" in ended.stderr

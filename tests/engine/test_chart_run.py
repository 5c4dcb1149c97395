"""Pods of the chart really run, by podman: the whole platform with a job, and a box. No API server is there to do it.

What podman lacks is done here: a Pod is made of each workload, claims of StatefulSets are made, commands of probes are
run by hand. Image, command, variables, secrets, volumes, users, limits and hardening are the chart's own.
"""

import base64
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from chart_values import render_chart

from support import shows

NETWORK = "rdukit-chart"
IMAGE = "localhost/rdukit/all"
RELEASE = "chart"

pytestmark = [shows("kubernetes", "images", "logreg"), pytest.mark.timeout(600), pytest.mark.long]


class Podman:
    """Podman with storage of its own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {key: value for key, value in environment.items() if key != "RDUKIT_PODMAN_URL"}

    def run(self, *command: str, timeout_s: float = 180.0) -> str:
        """What a command prints."""
        done = self.try_run(*command, timeout_s=timeout_s)
        assert done.returncode == 0, f"podman {' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def try_run(self, *command: str, timeout_s: float = 180.0) -> "subprocess.CompletedProcess[str]":
        """A command that may fail."""
        return subprocess.run(
            ["podman", *command], env=self._environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )


def make_claim(name: str) -> dict[str, Any]:
    """A claim whose volume belongs to the containers' user, as fsGroup does it in a cluster."""
    owner = {"volume.podman.io/uid": "10001", "volume.podman.io/gid": "10001"}
    access = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": name, "annotations": owner}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": access}


def make_pod(workload: dict[str, Any], ports: Mapping[str, int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A workload's Pod under the workload's name, with host ports for ``ports`` (by name), and the claims it needs."""
    name, template = workload["metadata"]["name"], workload["spec"]["template"]
    spec = template["spec"]
    claims = []
    for claim in workload["spec"].get("volumeClaimTemplates", []):
        full = f"{claim['metadata']['name']}-{name}-0"
        claims.append(make_claim(full))
        spec["volumes"].append({"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": full}})
    for container in spec["containers"]:
        for key in ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle"):
            container.pop(key, None)
        for port in container.get("ports", []):
            if port["name"] in ports:
                port |= {"hostPort": ports[port["name"]], "hostIP": "127.0.0.1"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": template["metadata"]["labels"]},
            "spec": spec}, claims  # fmt: skip


def free_port() -> int:
    """A port of the loopback address that nobody has at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, is_so: Callable[[], bool], timeout_s: float = 90.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"{what} was not so after {timeout_s:g} s"
        time.sleep(0.3)


@pytest.fixture(scope="module")
def podman(podman_environment: dict[str, str], layout: Path, tmp_path_factory: pytest.TempPathFactory) -> Podman:
    """Podman with one image that has all parts."""
    found = Podman(podman_environment)
    image = found.run("pull", "--quiet", f"oci:{layout}:logreg").split()[-1]
    # A box's image has no time zones; the worker's broker library reads that of UTC.
    folder = tmp_path_factory.mktemp("image")
    (folder / "UTC").write_bytes(Path("/usr/share/zoneinfo/UTC").read_bytes())
    (folder / "Dockerfile").write_text(f"FROM {image}\nCOPY UTC /usr/share/zoneinfo/UTC\n")
    found.run("build", "--quiet", "--tag", f"{IMAGE}:1", str(folder))
    return found


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {name: free_port() for name in ("http", "rest", "grpc")}


@pytest.fixture(scope="module")
def played(podman: Podman, ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The release, played: its workloads by component."""
    image = {"repository": IMAGE, "tag": "1"}
    objects = render_chart(
        RELEASE,
        {
            "images": {**dict.fromkeys(("platform", "snd", "modelbox"), image), "pullPolicy": "Never"},
            "boxes": [{"name": "digits", "box": "logreg", "threads": 1}],
            # There is no API to ask for pods.
            "jobs": {"boxes": "worker"},
            "worker": {"resources": {"limits": {"cpu": "4", "memory": "8Gi"}}},
            "logLevel": "INFO",
        },
    )
    folder = tmp_path_factory.mktemp("chart")
    items: list[dict[str, Any]] = []
    workloads: dict[str, Any] = {}
    for item in objects:
        kind = item["kind"]
        if kind == "Secret":
            # Podman 4.3 reads variables from the JSON of a secret's data, which it does not make itself.
            data = {key: base64.b64encode(text.encode()).decode() for key, text in item["stringData"].items()}
            (folder / "secret.json").write_text(json.dumps(data))
            podman.run("secret", "create", item["metadata"]["name"], str(folder / "secret.json"))
        elif kind == "PersistentVolumeClaim":
            items.append(make_claim(item["metadata"]["name"]))
        elif kind in {"Deployment", "DaemonSet", "StatefulSet"}:
            part = item["metadata"]["labels"]["app.kubernetes.io/component"]
            workloads[part] = json.loads(json.dumps(item))
            pod, claims = make_pod(item, ports)
            items += [*claims, pod]
    items.sort(key=lambda item: item["kind"] == "Pod")
    file = folder / "release.yaml"
    file.write_text(yaml.safe_dump_all(items))
    podman.run("network", "create", NETWORK)
    try:
        podman.run("play", "kube", "--network", NETWORK, str(file))
        yield workloads
    finally:
        podman.try_run("play", "kube", "--down", str(file))
        for item in items:
            if item["kind"] == "PersistentVolumeClaim":
                podman.try_run("volume", "rm", "--force", item["metadata"]["name"])
        podman.try_run("secret", "rm", f"{RELEASE}-rdukit-generated")
        podman.try_run("network", "rm", "--force", NETWORK)


def containers(workloads: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Podman's name, and the chart's container, of each workload."""
    for workload in workloads.values():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        yield f"{workload['metadata']['name']}-{container['name']}", container


def test_the_release_becomes_ready_and_its_probes_say_so(
    podman: Podman, played: dict[str, Any], ports: dict[str, int]
) -> None:
    def is_well(probe: Mapping[str, Any], name: str) -> bool:
        if "exec" in probe:
            return podman.try_run("exec", name, *probe["exec"]["command"]).returncode == 0
        try:
            path, port = probe["httpGet"]["path"], ports[probe["httpGet"]["port"]]
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    assert set(played) == {"node", "gateway", "scheduler", "worker", "broker", "box"}
    for name, container in containers(played):
        actions = []
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            action = {key: container[kind][key] for key in ("exec", "httpGet") if key in container[kind]}
            if action not in actions:
                actions.append(action)
                wait_for(f"{kind} of {name}", lambda name=name, action=action: is_well(action, name))  # type: ignore[misc]

    def is_ready() -> bool:
        health = httpx.get(f"http://127.0.0.1:{ports['http']}/health", timeout=10).json()
        return bool(health["status"] == "ready")

    wait_for("gateway ready", is_ready, 30)


def test_a_job_runs_through_the_pods(podman: Podman, played: dict[str, Any], ports: dict[str, int]) -> None:
    program = "print(open('/var/lib/rdukit/home/token').read())"  # this image has no cat
    token = podman.run("exec", f"{RELEASE}-rdukit-gateway-gateway", "python", "-c", program).strip()
    steps = [
        {"name": "data", "box": "logreg", "verb": "preprocess", "parameters": {"limit": 640}},
        {"name": "pef", "box": "logreg", "verb": "compile"},
        {
            "name": "train", "box": "logreg", "verb": "train", "parameters": {"epochs": 1},
            "inputs": {"dataset": "@data.dataset", "pef": "@pef.pef"},
        },
    ]  # fmt: skip
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{ports['http']}", headers=headers, timeout=60) as gateway:
        made = gateway.post("/v1/pipelines", json={"name": "digits", "steps": steps}).raise_for_status().json()

        def is_over() -> bool:
            state = gateway.get(f"/v1/pipelines/{made['id']}").json()["state"]
            return state in {"succeeded", "failed", "cancelled"}

        wait_for("pipeline's end", is_over, 600)
        found = gateway.get(f"/v1/pipelines/{made['id']}").json()
        assert found["state"] == "succeeded", found
        (node,) = gateway.get("/v1/nodes").json()["nodes"]
        assert (node["name"], node["platform"]) == (f"{RELEASE}-rdukit", "SN30-8")


def test_the_box_of_the_chart_answers_by_itself(played: dict[str, Any], ports: dict[str, int]) -> None:
    described = httpx.get(f"http://127.0.0.1:{ports['rest']}/v1/describe", timeout=30).json()
    assert described["name"] == "logreg"


def test_the_containers_are_as_the_chart_says(podman: Podman, played: dict[str, Any]) -> None:
    program = (
        "import os; status = dict(l.split(':', 1) for l in open('/proc/self/status'));"
        "print(os.getuid(), int(status['CapEff'], 16), status['NoNewPrivs'].strip(), os.access('/etc', os.W_OK),"
        "any((os.environ.get('BROKER_PASSWORD') or chr(7) * 9) in open(f'/proc/{p}/cmdline').read()"
        "    for p in os.listdir('/proc') if p.isdigit()))"
    )
    for name, _ in containers(played):
        assert podman.run("exec", name, "python", "-c", program).split() == ["10001", "0", "1", "False", "False"]
        (shown,) = json.loads(podman.run("inspect", name))
        assert shown["HostConfig"]["ReadonlyRootfs"] is True and shown["HostConfig"]["Memory"] > 0, name


def test_the_broker_wants_its_password(podman: Podman, played: dict[str, Any]) -> None:
    program = f"import redis; redis.Redis('{RELEASE}-rdukit-broker').ping()"
    done = podman.try_run("exec", f"{RELEASE}-rdukit-worker-worker", "python", "-c", program)
    assert done.returncode != 0 and "AUTH" in done.stderr, done.stderr

"""Pods of jobs, whose commands are really run: the API is imitated, and each Pod is a process of this machine.

So the way from a Pod's manifest to a box that answers at its socket is tried, and what happens where the network is not
shut; not what a cluster does with mounts, users and policies (``tests/engine/test_kubernetes.py``).
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit.box.client import BoxClient
from rdukit.errors import Unavailable
from rdukit.files.home import make_folder
from rdukit_platform.backends.contract import BoxLimits, BoxOwner, BoxSpec, ClaimedFolder
from rdukit_platform.backends.kubernetes import KubernetesBackend
from support import shows, wait_until

pytestmark = shows("kubernetes", "job-boxes")

PODS = "/api/v1/namespaces/boxes/pods"


class LocalCluster:
    """Runs each Pod's command; ``api_port`` is where Pods find the API."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api_port = 0
        self.pods: dict[str, tuple[dict[str, Any], subprocess.Popen[bytes]]] = {}

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        name = path.removeprefix(PODS).strip("/").partition("/")[0]
        if request.method == "POST":
            pod = json.loads(request.content)
            self.pods[pod["metadata"]["name"]] = (pod, self._run(pod))
            return httpx.Response(201, json=pod)
        if name not in self.pods:
            return httpx.Response(404, json={"message": "not found"})
        if path.endswith("/log"):
            return httpx.Response(200, text=(self.folder / name).read_text())
        pod, process = self.pods[name]
        if request.method == "DELETE":
            process.terminate()
            process.wait(30)
            del self.pods[name]
            return httpx.Response(200, json=pod)
        code = process.poll()
        if code is None:
            return httpx.Response(200, json={**pod, "status": {"phase": "Running"}})
        state = {"terminated": {"exitCode": code, "finishedAt": "1970-01-01T00:01:00Z"}}
        phase = "Failed" if code else "Succeeded"
        return httpx.Response(200, json={**pod, "status": {"phase": phase, "containerStatuses": [{"state": state}]}})

    def _run(self, pod: dict[str, Any]) -> "subprocess.Popen[bytes]":
        (container,) = pod["spec"]["containers"]
        environment = {each["name"]: each["value"] for each in container["env"]} if "env" in container else {}
        environment |= {
            "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.api_port),
        }
        with (self.folder / pod["metadata"]["name"]).open("wb") as log:
            return subprocess.Popen(container["args"], env=environment, stdout=log, stderr=log, cwd="/")

    def close(self) -> None:
        for _, process in self.pods.values():
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    (tmp_path / "logs").mkdir()
    found = LocalCluster(tmp_path / "logs")
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def backend(cluster: LocalCluster, tmp_path: Path) -> Iterator[KubernetesBackend]:
    client = httpx.Client(base_url="https://cluster", transport=httpx.MockTransport(cluster.answer))
    opened = KubernetesBackend("image", "boxes", [ClaimedFolder(tmp_path, "home")], client)
    # The processes run as this one does; containers of root's would run as the image's user.
    opened.rules = replace(opened.rules, user=os.getuid())
    yield opened
    opened.close()


@pytest.fixture
def api() -> Iterator[socket.socket]:
    """What Pods of an open network reach."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def spec(tmp_path: Path) -> BoxSpec:
    make_folder(tmp_path / "job")
    (tmp_path / "job/in").mkdir()
    return BoxSpec(
        "logreg", tmp_path / "job/attempt-1", [tmp_path / "job/in"], {"RDUKIT_LEASE": "7:secret"},
        owner=BoxOwner("job", 1), outputs=[tmp_path / "job/out"], has_sockets=True,
    )  # fmt: skip


def shut_port(listening: socket.socket) -> int:
    """A port at which nothing answers, until the test ends."""
    port = int(listening.getsockname()[1])
    listening.close()
    return port


def test_a_jobs_box_answers_at_its_socket_and_has_its_variables(
    backend: KubernetesBackend, cluster: LocalCluster, spec: BoxSpec, api: socket.socket
) -> None:
    cluster.api_port = shut_port(api)
    assert backend.try_network() == ""
    box = backend.start(replace(spec, limits=BoxLimits(pids=30_000)), 120)
    assert box.rest_url.startswith("http+unix://") and box.grpc_address.startswith("unix:")
    with BoxClient(box.rest_url) as client:
        assert client.describe()["name"] == "logreg"
    ((pod, process),) = cluster.pods.values()
    assert "--shut-within" in pod["spec"]["containers"][0]["args"]
    variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    assert b"RDUKIT_LEASE=7:secret" in variables
    limits = dict(line.rsplit(None, 3)[:2] for line in Path(f"/proc/{process.pid}/limits").read_text().splitlines()[1:])
    assert limits["Max processes"] == "30000" and box.limits["pids"].startswith("applied: 30000")
    assert not list(spec.state.glob("pod-variables*")), "nobody finds them there later"
    assert box.is_alive() and box.is_ready()
    box.stop()
    assert not cluster.pods and not box.is_alive()


@pytest.mark.long
def test_a_box_whose_network_is_open_does_not_begin(
    backend: KubernetesBackend, cluster: LocalCluster, spec: BoxSpec, api: socket.socket
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        cluster.api_port = nobody.getsockname()[1]
        assert backend.try_network() == ""
    cluster.api_port = api.getsockname()[1]
    with pytest.raises(Unavailable, match=r"ended with status 77: the network is open: this pod reaches the cluster's"):
        backend.start(spec, 120)
    assert not cluster.pods
    assert [path.name for path in spec.state.iterdir()] == ["pod-variables.json"], "the box has not begun"


@pytest.mark.long
def test_an_open_network_is_found_before_any_job(
    backend: KubernetesBackend, cluster: LocalCluster, spec: BoxSpec, api: socket.socket
) -> None:
    cluster.api_port = api.getsockname()[1]
    why = backend.try_network()
    assert f"reaches the cluster's API at 127.0.0.1:{cluster.api_port}" in why
    assert not cluster.pods
    box = backend.start(spec, 120)  # of the one tenant that there may be
    assert "--shut-within" not in next(iter(cluster.pods.values()))[0]["spec"]["containers"][0]["args"]
    box.stop()


def test_a_network_that_nobody_can_try_is_not_shut(backend: KubernetesBackend, cluster: LocalCluster) -> None:
    cluster.api_port = "none"  # type: ignore[assignment]
    with pytest.raises(Unavailable, match="was not tested: KUBERNETES_SERVICE_HOST"):
        backend.try_network()


def test_a_box_that_puts_something_else_at_its_socket_is_not_called(
    backend: KubernetesBackend, cluster: LocalCluster, spec: BoxSpec, tmp_path: Path
) -> None:
    """What a hostile box would do: a link to a socket of another."""
    victim = tmp_path / "victim"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(victim))
        listening.listen()
        listening.settimeout(0)
        spec.state.mkdir()
        (spec.state / "rest.sock").symlink_to(victim)
        with pytest.raises(Unavailable, match="not its own socket"):
            backend.start(replace(spec, box="no-such-box"), 120)
        with pytest.raises(BlockingIOError):
            listening.accept()
    wait_until(lambda: not cluster.pods)

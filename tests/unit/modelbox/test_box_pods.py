"""The calls of the Kubernetes backend, against an imitation of the API that keeps pods in a dictionary.

It shows that the calls fit together; ``tests/engine/test_kubernetes.py`` asks a real one.
"""

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit.box_backends import BoxSpec, EventKind, Owner
from rdukit.errors import Cancelled, Unavailable
from rdukit.testing import FakeClock
from rdukit_modelbox.backends.kubernetes import KubernetesBackend
from rdukit_modelbox.backends.kubernetes_manifests import ClaimedFolder


class ImitatedCluster:
    """Pods become ready at the second look, unless ``fate`` says how they end."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.fate: dict[str, Any] | None = None
        self.refused = ""
        #: The node does not answer, which has the logs.
        self.is_away = False
        #: No container has started, so that there is no log.
        self.is_silent = False
        self.address = "10.1.2.3"

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if request.method == "POST":
            if path.endswith(self.refused or "no"):
                return httpx.Response(403, json={"kind": "Status", "message": "exceeded quota"})
            value = json.loads(request.content)
            self.objects[f"{path}/{value['metadata']['name']}"] = {**value, "looks": 0}
            return httpx.Response(201, json=value)
        if request.method == "GET" and path.endswith("/pods"):
            key, _, wanted = request.url.params["labelSelector"].partition("=")
            pods = [o for p, o in self.objects.items() if "/pods/" in p and key in o["metadata"]["labels"]]
            found = [o for o in pods if not wanted or o["metadata"]["labels"][key] == wanted]
            return httpx.Response(200, json={"items": found})
        if path.endswith("/log") and self.is_silent:
            return httpx.Response(400, json={"kind": "Status", "message": "waiting to start: ContainerCreating"})
        if path.endswith("/log") and self.is_away:
            return httpx.Response(500, json={"kind": "Status", "message": "dial tcp 10.0.0.2:10250: i/o timeout"})
        if path.endswith("/log") and path.removesuffix("/log") in self.objects:
            return httpx.Response(200, text="two\n" if "tailLines" in request.url.params else "one\ntwo\n")
        found = self.objects.get(path)
        if found is None:
            return httpx.Response(404, json={"kind": "Status", "message": "not found"})
        if request.method == "DELETE":
            del self.objects[path]
            return httpx.Response(200, json=found)
        found["looks"] += 1
        ready = {
            "phase": "Running", "podIP": self.address, "conditions": [{"type": "Ready", "status": "True"}],
        }  # fmt: skip
        return httpx.Response(
            200, json={**found, "status": self.fate or (ready if found["looks"] > 1 else {"phase": "Pending"})}
        )


@pytest.fixture
def cluster() -> ImitatedCluster:
    return ImitatedCluster()


@pytest.fixture
def backend(cluster: ImitatedCluster) -> KubernetesBackend:
    client = httpx.Client(base_url="https://cluster", transport=httpx.MockTransport(cluster.answer))
    folders = [ClaimedFolder(Path("/data"), "data")]
    return KubernetesBackend("rdukit/modelbox:1", "boxes", folders, client, FakeClock())


SPEC = BoxSpec("logreg", Path("/data/7"), owner=Owner("p", 1))


def test_a_box_starts_as_a_pod_and_leaves_only_its_log(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    box = backend.start(SPEC)
    assert [path.rsplit("/", 2)[1:] for path in cluster.objects] == [["pods", box.id]]
    assert box.is_alive() and box.is_ready()
    assert (box.rest_url, box.grpc_address) == ("http://10.1.2.3:9000", "10.1.2.3:9001")
    assert list(box.follow()) == ["one", "two"]
    box.stop()
    assert not cluster.objects and not box.is_alive()
    assert box.logs() == "one\ntwo\n"
    assert [event.kind for event in box.events()] == [EventKind.STARTED, EventKind.READY, EventKind.ENDED]
    with pytest.raises(Unavailable, match="metrics"):
        box.stats()


def test_what_an_earlier_epoch_left_is_found_and_deleted(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    box = backend.start(SPEC)
    assert not backend.orphans(Owner("p", 1)) and not backend.orphans(Owner("q", 2))
    (orphan,) = backend.orphans(Owner("p", 2))
    assert (orphan.id, orphan.box) == (box.id, "logreg")
    backend.reap(orphan)
    backend.reap(orphan)
    assert not cluster.objects


def test_a_pod_that_fails_is_told_and_removed(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    cluster.fate = {"phase": "Failed", "reason": "ImagePull", "message": "no such image"}
    with pytest.raises(Unavailable, match="ImagePull: no such image"):
        backend.start(SPEC)
    assert not cluster.objects


def test_a_pod_that_is_never_ready_is_removed_in_the_end(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    waiting = {"reason": "ErrImagePull", "message": "no such image"}
    cluster.fate = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    cluster.is_silent = True
    with pytest.raises(Unavailable, match=r"was not ready in 20 s \(ErrImagePull: no such image\)"):
        backend.start(SPEC, 20)
    assert not cluster.objects


def test_a_pod_whose_address_is_of_six_is_reached_at_it(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    cluster.address = "fd00::7"
    box = backend.start(SPEC)
    assert (box.rest_url, box.grpc_address) == ("http://[fd00::7]:9000", "[fd00::7]:9001")


def test_a_pod_that_is_refused_is_told(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    cluster.refused = "/pods"
    with pytest.raises(Unavailable, match="403 exceeded quota"):
        backend.start(SPEC)
    assert not cluster.objects


def test_a_pod_that_was_asked_to_end_keeps_its_log(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    box = backend.start(SPEC)
    assert [found.id for found in backend.owned()] == [box.id]
    box.terminate()
    box.terminate()
    assert not cluster.objects and not backend.owned()
    assert not box.is_alive() and box.logs(tail=1) == "two\n"
    assert list(box.follow()) == ["one", "two"]
    box.stop()
    assert box.logs(tail=1) == "two\n"


def test_a_log_that_the_api_refuses_is_told(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    box = backend.start(SPEC)
    cluster.is_silent = True
    with pytest.raises(Unavailable, match="waiting to start: ContainerCreating"):
        list(box.follow())
    assert box.logs() == ""


def test_a_pod_whose_log_cannot_be_had_is_deleted_all_the_same(
    backend: KubernetesBackend, cluster: ImitatedCluster
) -> None:
    box = backend.start(SPEC)
    cluster.is_away = True
    with pytest.raises(Unavailable, match="i/o timeout"):
        box.logs()
    box.stop()
    assert not cluster.objects and box.logs() == ""


def test_a_pod_that_is_not_wanted_any_more_is_removed(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    stop = threading.Event()
    stop.set()
    cluster.is_silent = True
    with pytest.raises(Cancelled, match="before it was ready"):
        backend.start(SPEC, stop=stop)
    assert not cluster.objects

"""The calls of the Kubernetes backend, against an imitation of the API that keeps pods in a dictionary.

It shows that the calls fit together; ``tests/engine/test_kubernetes.py`` asks a real one.
"""

import json
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit.errors import Cancelled, PermissionDenied, Unavailable
from rdukit.fence.in_pod import OPEN, UNTRIED
from rdukit_platform.backends.contract import BoxEventKind, BoxOwner, BoxSpec, ClaimedFolder
from rdukit_platform.backends.in_cluster import AccountToken, in_cluster_client, own_namespace
from rdukit_platform.backends.kubernetes import KubernetesBackend
from support import FakeClock, shows

pytestmark = shows("images", "kubernetes", "job-boxes")


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
        #: Verbs that its account may not.
        self.denied: set[str] = set()

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if request.method == "POST":
            if path.endswith(self.refused or "no"):
                return httpx.Response(403, json={"kind": "Status", "message": "exceeded quota"})
            value = json.loads(request.content)
            if path.endswith("/selfsubjectaccessreviews"):
                asked = value["spec"]["resourceAttributes"]
                allowed = asked["namespace"] == "boxes" and asked["verb"] not in self.denied
                return httpx.Response(201, json={**value, "status": {"allowed": allowed}})
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


SPEC = BoxSpec("logreg", Path("/data/7"), owner=BoxOwner("p", 1))


def test_a_box_starts_as_a_pod_and_leaves_only_its_log(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    box = backend.start(SPEC)
    assert [path.rsplit("/", 2)[1:] for path in cluster.objects] == [["pods", box.id]]
    assert box.is_alive() and box.is_ready()
    assert (box.rest_url, box.grpc_address) == ("http://10.1.2.3:9000", "10.1.2.3:9001")
    assert list(box.follow()) == ["one", "two"]
    box.stop()
    assert not cluster.objects and not box.is_alive()
    assert box.logs() == "one\ntwo\n"
    assert [event.kind for event in box.events()] == [BoxEventKind.STARTED, BoxEventKind.READY, BoxEventKind.ENDED]
    with pytest.raises(Unavailable, match="metrics"):
        box.stats()


def test_what_an_earlier_epoch_left_is_found_and_deleted(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    box = backend.start(SPEC)
    assert not backend.orphans(BoxOwner("p", 1)) and not backend.orphans(BoxOwner("q", 2))
    (orphan,) = backend.orphans(BoxOwner("p", 2))
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


def ended(code: int) -> dict[str, Any]:
    """The status of a Pod whose container has ended."""
    state = {"terminated": {"exitCode": code, "finishedAt": "1970-01-01T00:01:00Z"}}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": state}]}


def args_of(cluster: ImitatedCluster) -> list[str]:
    """How the one Pod that there is is called."""
    (pod,) = [found for path, found in cluster.objects.items() if "/pods/rdukit-" in path]
    args: list[str] = pod["spec"]["containers"][0]["args"]
    return args


def test_an_account_that_may_not_start_pods_is_refused(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    backend.check_rights()
    cluster.denied = {"delete", "get"}
    with pytest.raises(PermissionDenied, match="may not get pods, delete pods, get pods/log in namespace boxes"):
        backend.check_rights()
    assert not cluster.objects


def test_pods_go_with_the_pod_that_started_them(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    backend.start(SPEC)
    assert "ownerReferences" not in next(iter(cluster.objects.values()))["metadata"]
    cluster.objects.clear()
    own = {"metadata": {"name": socket.gethostname(), "uid": "u-1", "labels": {}}, "looks": 0}
    cluster.objects[f"/api/v1/namespaces/boxes/pods/{socket.gethostname()}"] = own
    backend.check_rights()
    box = backend.start(SPEC)
    (owner,) = cluster.objects[f"/api/v1/namespaces/boxes/pods/{box.id}"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", socket.gethostname(), "u-1")


def test_a_network_that_is_shut_is_tried_by_every_box_again(
    backend: KubernetesBackend, cluster: ImitatedCluster, tmp_path: Path
) -> None:
    cluster.fate = ended(0)
    assert backend.try_network() == "" and not cluster.objects
    jobs = KubernetesBackend("i", "boxes", [ClaimedFolder(tmp_path, "data")], backend._client, FakeClock())
    spec = replace(SPEC, state=tmp_path / "7", has_sockets=True)
    for tries in (False, True):
        cluster.fate = {"phase": "Pending"}
        seen: list[str] = []

        def look(seen: list[str] = seen) -> bool:
            seen[:] = args_of(cluster)
            return True

        stop = threading.Event()
        stop.is_set = look  # type: ignore[method-assign]
        with pytest.raises(Cancelled):
            jobs.start(spec, stop=stop)
        assert ("--shut-within" in seen) is tries
        cluster.fate = ended(0)
        jobs.try_network()


def test_a_network_that_is_open_is_told(backend: KubernetesBackend, cluster: ImitatedCluster) -> None:
    cluster.fate = ended(OPEN)
    assert "the cluster does not enforce network policies" in backend.try_network()
    assert not cluster.objects


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        (ended(UNTRIED), "was not tried: pod rdukit-try-[0-9a-f]+ ended with status 78: one"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "was not tried: .* Evicted: disk"),
        ({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
         "did not end in 90 s .Unschedulable"),
    ],
)  # fmt: skip
def test_a_network_that_could_not_be_tried_is_not_taken_for_shut(
    backend: KubernetesBackend, cluster: ImitatedCluster, fate: dict[str, Any], words: str
) -> None:
    cluster.fate = fate
    with pytest.raises(Unavailable, match=words):
        backend.try_network()
    assert not cluster.objects


def test_a_jobs_box_gets_its_folders_and_variables_from_who_starts_it(
    cluster: ImitatedCluster, backend: KubernetesBackend, tmp_path: Path
) -> None:
    jobs = KubernetesBackend("i", "boxes", [ClaimedFolder(tmp_path, "data")], backend._client, FakeClock())
    spec = BoxSpec(
        "logreg", tmp_path / "2", environment={"RDUKIT_LEASE": "7:secret"}, owner=BoxOwner("p", 1),
        outputs=[tmp_path / "out"], has_sockets=True,
    )  # fmt: skip
    cluster.fate = ended(OPEN)
    with pytest.raises(Unavailable, match="ended with status 77"):
        jobs.start(spec)
    assert not cluster.objects and (tmp_path / "out").is_dir(), "the kubelet would make it root's"
    file = tmp_path / "2/pod-variables.json"
    assert json.loads(file.read_text()) == {"RDUKIT_LEASE": "7:secret"}
    assert file.stat().st_mode & 0o777 == 0o600


def test_variables_do_not_go_where_a_link_leads(
    cluster: ImitatedCluster, backend: KubernetesBackend, tmp_path: Path
) -> None:
    jobs = KubernetesBackend("i", "boxes", [ClaimedFolder(tmp_path, "data")], backend._client, FakeClock())
    (tmp_path / "2").mkdir()
    (tmp_path / "kept").write_text("another's")
    (tmp_path / "2/pod-variables.json").symlink_to(tmp_path / "kept")
    cluster.fate = ended(3)
    with pytest.raises(Unavailable):
        jobs.start(BoxSpec("logreg", tmp_path / "2", owner=BoxOwner("p", 1), has_sockets=True))
    assert (tmp_path / "kept").read_text() == "another's"
    assert not (tmp_path / "2/pod-variables.json").is_symlink()


def test_a_token_that_was_replaced_is_sent_as_it_is_now(tmp_path: Path) -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return httpx.Response(200)

    token = tmp_path / "token"
    client = httpx.Client(base_url="https://cluster", transport=httpx.MockTransport(answer), auth=AccountToken(token))
    for text in ("first", "second\n"):
        token.write_text(text)
        client.get("/")
    token.unlink()
    with pytest.raises(Unavailable, match="has gone"):
        client.get("/")
    assert sent == ["Bearer first", "Bearer second"]


def test_who_is_in_no_cluster_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Unavailable, match="not in a Kubernetes cluster: KUBERNETES_SERVICE_HOST is not set"):
        in_cluster_client(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(Unavailable, match=r"this pod has no token .*where jobs\.boxes is pods"):
        in_cluster_client(tmp_path)
    with pytest.raises(Unavailable, match="not in a Kubernetes cluster"):
        own_namespace(tmp_path)

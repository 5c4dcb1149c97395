"""A real cluster, where one can be had: boxes as its pods keep the contract of backends, those of jobs are shut in, and
it takes the chart.

``RDUKIT_TEST_KUBERNETES`` is the address of its API without credentials, as ``kubectl proxy`` offers it, and
``RDUKIT_TEST_KUBERNETES_IMAGE`` an image of this tree's boxes that its node has. Its one node must be this machine: the
tests share a folder with the pods, and reach them at their addresses.
"""

import json
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from chart_values import CASES, render_chart

from rdukit.box.client import BoxClient
from rdukit.errors import Unavailable
from rdukit_modelbox.contract.box import find_box_file
from rdukit_modelbox.contract.new_box import new_box_files
from rdukit_platform.backends.contract import BoxBackend, BoxLimits, BoxOwner, BoxSpec, ClaimedFolder, RunningBox
from rdukit_platform.backends.kubernetes import KubernetesBackend
from rdukit_platform.backends.pods import PodTemplate
from support import shows
from support.platform.backends import START_S, BackendContract, contract_box

ADDRESS = os.environ.get("RDUKIT_TEST_KUBERNETES", "")
IMAGE = os.environ.get("RDUKIT_TEST_KUBERNETES_IMAGE", "rdukit/modelbox:latest")

pytestmark = [
    shows("kubernetes", "job-boxes", "logreg"),
    shows("kubernetes", "job-boxes", "logreg"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(not ADDRESS, reason="no cluster: RDUKIT_TEST_KUBERNETES is the address of kubectl proxy"),
    pytest.mark.long,
]


@pytest.fixture(scope="class")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the claim is of: a folder inside takes its mode, and every user may write it."""
    made = tmp_path_factory.mktemp("pods")
    for path in (made.parent, made.parent.parent):
        path.chmod(0o755)
    made.chmod(0o777)
    return made


@pytest.fixture(scope="class")
def backend(folder: Path) -> Iterator[KubernetesBackend]:
    """In a namespace of its own, at the restricted level of Pod Security, with a claim."""
    name = f"rdukit-test-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    storage = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    size = {"storage": "1Gi"}
    volume = {**storage, "capacity": size, "hostPath": {"path": str(folder)}, "persistentVolumeReclaimPolicy": "Retain"}
    claim = {**storage, "volumeName": name, "resources": {"requests": size}}
    opened = KubernetesBackend(
        IMAGE, name, [ClaimedFolder(folder, "state")], httpx.Client(base_url=ADDRESS, timeout=30)
    )
    opened.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    try:
        opened.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": volume})
        claims = f"/api/v1/namespaces/{name}/persistentvolumeclaims"
        opened.call("POST", claims, {"metadata": {"name": "state"}, "spec": claim})
        yield opened
    finally:
        opened.call("DELETE", f"/api/v1/namespaces/{name}", missing="")
        opened.call("DELETE", f"/api/v1/persistentvolumes/{name}", missing="")
        opened.close()


@pytest.fixture(scope="class")
def running(backend: BoxBackend, folder: Path) -> Iterator[RunningBox]:
    with contract_box(backend, folder) as box:
        yield box


class TestKubernetes(BackendContract):
    HOST = None

    def test_a_box_uses_time_memory_and_threads(self, running: RunningBox) -> None:
        """As far as the cluster knows: pods have no count of threads, and not every cluster has a metrics server."""
        if httpx.get(f"{ADDRESS}/apis/metrics.k8s.io/v1beta1").is_error:
            with pytest.raises(Unavailable, match="the cluster has no metrics server"):
                running.stats()
            return
        stats = running.stats()
        assert stats.cpu_s >= 0 and 10 << 20 < stats.memory_bytes < 4 << 30


SPY = """
def look():
    import json, os, pathlib, resource, socket
    found, job = {"user": os.getuid()}, pathlib.Path(os.environ["HOME"]).parent
    def attempt(name, do):
        try:
            found[name] = do()
        except OSError as error:
            found[name] = type(error).__name__
    attempt("around", lambda: sorted(os.listdir(job.parent)))
    attempt("job", lambda: sorted(os.listdir(job)))
    attempt("account", lambda: os.listdir("/var/run/secrets/kubernetes.io"))
    attempt("system", lambda: pathlib.Path("/opt/spy").write_text("x"))
    attempt("inputs", lambda: job.joinpath("in/spy").write_text("x"))
    attempt("beside", lambda: job.joinpath("spy").write_text("x"))
    attempt("lease", lambda: os.environ.get("RDUKIT_LEASE"))
    api = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    attempt("api", lambda: socket.create_connection(api, 3).close())
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    found |= {key: status[key].strip() for key in ("CapEff", "NoNewPrivs", "Seccomp")}
    found["processes"] = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    raise RuntimeError("found " + json.dumps(found))
look()
"""


@pytest.fixture(scope="class")
def shut(backend: KubernetesBackend, folder: Path) -> Iterator[KubernetesBackend]:
    """A backend whose pods a policy keeps from the network, if the cluster has anybody who does."""
    labels = {"app.kubernetes.io/component": "job"}
    spec = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress", "Egress"], "egress": []}
    policies = f"/apis/networking.k8s.io/v1/namespaces/{backend.namespace}/networkpolicies"
    backend.call("POST", policies, {"metadata": {"name": "test-jobs"}, "spec": spec})
    limits = {"cpu": "1", "memory": "2Gi"}
    template = PodTemplate(labels, resources={"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": limits})
    client = httpx.Client(base_url=ADDRESS, timeout=30)
    opened = KubernetesBackend(IMAGE, backend.namespace, [ClaimedFolder(folder, "state")], client, template=template)
    yield opened
    opened.close()


@pytest.fixture(scope="class")
def why_open(shut: KubernetesBackend) -> str:
    shut.check_rights()
    return shut.try_network()


def make_job(folder: Path, name: str, **more: Any) -> BoxSpec:
    """A job's box, its folders as a worker makes them."""
    own = folder / name
    own.mkdir()
    own.chmod(0o711)
    for each in ("in", "box"):
        (own / each).mkdir()
        (own / each).chmod(0o755)
    spec = BoxSpec(
        "logreg", own / "attempt-1", [own / "in"], {"RDUKIT_LEASE": "7:secret"}, owner=BoxOwner(name, 1),
        limits=BoxLimits(pids=5000), outputs=[own / "out"], has_sockets=True,
    )  # fmt: skip
    return replace(spec, **more)


class TestJobPods:
    """Pods as those of jobs: their wires are sockets, their folders those of one job in a claim of many."""

    def test_a_jobs_box_finds_its_own_folders_and_no_way_out(
        self, shut: KubernetesBackend, why_open: str, folder: Path
    ) -> None:
        spec = make_job(folder, "job-spy")
        (folder / "job-other").mkdir()
        own = spec.state.parent / "box"
        for name, data in new_box_files("spy", find_box_file("logreg").read_text(), has_module=True).items():
            (own / name).write_bytes(data)
        with (own / "model.py").open("a") as module:
            module.write(SPY)
        spec = replace(spec, box="spy", folder=own, mounts=[*spec.mounts, own])
        box = shut.start(spec, START_S)
        try:
            shown = shut.call("GET", shut.pod_path(box.id)).text
            assert "7:secret" not in shown, "whoever may look at pods would have the lease"
            with BoxClient(box.rest_url) as client:
                compiled = client.submit("compile", {"mode": "o0"}, {}, str(spec.outputs[0]))
                events = client.events(str(compiled["id"]), stop=threading.Event(), is_alive=box.is_alive)
                (result,) = [event for event in events if event["kind"] == "result"]
        finally:
            box.stop()
        said = result["operation"]["error"]["message"].partition("found ")[2]
        found = json.loads(said)
        assert found.pop("api") == (None if why_open else "TimeoutError"), why_open
        assert found == {
            "user": 10001, "around": ["job-spy"], "job": ["attempt-1", "box", "in", "out"], "lease": "7:secret",
            "account": "FileNotFoundError", "system": "OSError", "inputs": "OSError", "beside": "PermissionError",
            "CapEff": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2", "processes": 5000,
        }  # fmt: skip
        assert not list(spec.state.glob("pod-variables*"))

    def test_a_link_that_leads_out_of_the_claim_is_not_mounted(
        self, shut: KubernetesBackend, why_open: str, folder: Path
    ) -> None:
        spec = make_job(folder, "job-link")
        (spec.state.parent / "lead").symlink_to("/etc")
        with pytest.raises(Unavailable, match=r"was not ready in 20 s \(CreateContainerConfigError: .*subPath"):
            shut.start(replace(spec, mounts=[spec.state.parent / "lead/ssl"]), 20)
        assert not [box for box in shut.owned() if box.owner.id == "job-link"]

    def test_the_cluster_enforces_policies(self, why_open: str) -> None:
        if why_open:
            pytest.skip(why_open)


#: Plurals in paths of the API that are not the kind with an s.
PLURALS = {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"}


@pytest.mark.parametrize("case", CASES)
def test_the_api_takes_every_object_of_the_chart(case: str) -> None:
    """A dry run, without fields that it does not know; kinds that others define are left out."""
    objects = [item for item in render_chart("demo", CASES[case]) if item["kind"] != "ServiceMonitor"]
    assert len(objects) > 2
    for item in objects:
        group = item["apiVersion"]
        root = f"{ADDRESS}/{'api' if group == 'v1' else 'apis'}/{group}/namespaces/default"
        plural = PLURALS.get(item["kind"], item["kind"].lower() + "s")
        if item["kind"] == "Pod":  # its account is not there in a dry run
            del item["spec"]["serviceAccountName"]
        strict = {"dryRun": "All", "fieldValidation": "Strict"}
        answer = httpx.post(f"{root}/{plural}", json=item, params=strict, timeout=30)
        assert answer.status_code == 201, f"{item['kind']} {item['metadata']['name']}: {answer.text}"

"""A real cluster, where one can be had: boxes as its pods keep the contract of backends, and it takes the chart.

``RDUKIT_TEST_KUBERNETES`` is the address of its API without credentials, as ``kubectl proxy`` offers it, and
``RDUKIT_TEST_KUBERNETES_IMAGE`` an image of this tree's boxes that its node has. Its one node must be this machine: the
tests share a folder with the pods, and reach them at their addresses.
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from chart_values import CASES, render_chart

from rdukit.box_backends import BoxBackend, ClaimedFolder, RunningBox
from rdukit.errors import Unavailable
from rdukit_modelbox.backends.kubernetes import KubernetesBackend
from rdukit_modelbox.backends.testing import BackendContract, contract_box

ADDRESS = os.environ.get("RDUKIT_TEST_KUBERNETES", "")
IMAGE = os.environ.get("RDUKIT_TEST_KUBERNETES_IMAGE", "rdukit/modelbox:latest")

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not ADDRESS, reason="no cluster: RDUKIT_TEST_KUBERNETES is the address of kubectl proxy"),
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

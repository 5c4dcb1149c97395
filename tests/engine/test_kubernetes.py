"""Boxes as pods of a real cluster keep the contract of backends, where a cluster can be had.

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

from rdukit.box_backends import BoxBackend, RunningBox
from rdukit.errors import Unavailable
from rdukit_modelbox.backends.kubernetes import KubernetesBackend
from rdukit_modelbox.backends.kubernetes_manifests import ClaimedFolder
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

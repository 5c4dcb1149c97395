"""Pods of boxes hold against Kubernetes' schemas."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rdukit_platform.backends.contract import BoxLimits, BoxOwner, BoxSpec, ClaimedFolder
from rdukit_platform.backends.pods import PodRules, make_pod, make_template, make_trying_pod
from support import shows

pytestmark = shows("kubernetes", "job-boxes", "kubernetes-tried")

FOLDERS = [ClaimedFolder(Path("/data"), "data"), ClaimedFolder(Path("/data/cold"), "cold")]
BOX_RULES = PodRules("boxes", "rdukit/modelbox:1", FOLDERS)
BOX_SPEC = BoxSpec(
    "logreg", Path("/data/jobs/7"), [Path("/data/cold/mnist")], {"RDUKIT_LEASE": "x"},
    BoxLimits(cores=(4, 5), memory_bytes=1 << 30, pids=100), BoxOwner("platform-1", 3),
    outputs=[Path("/data/jobs/out")],
)  # fmt: skip

JOB = Path("/var/lib/rdukit/home/work/job-1")
SPEC = BoxSpec(
    "logreg", JOB / "attempt-2", [JOB / "in"], {"RDUKIT_LEASE": "7:secret", "RDUKIT_LOG_LEVEL": "INFO"},
    owner=BoxOwner("job-1", 2), outputs=[JOB / "out"], has_sockets=True,
    sockets=[Path("/var/lib/rdukit/home/run/leases/7/snd.sock")],
)  # fmt: skip
TEMPLATE: dict[str, Any] = {
    "labels": {"app.kubernetes.io/name": "rdukit", "app.kubernetes.io/component": "job"},
    "spec": {"serviceAccountName": "demo", "tolerations": [{"key": "rdu", "operator": "Exists"}], "hostUsers": False},
    "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2500m", "memory": "8Gi"}},
    "imagePullPolicy": "Never",
    "tmpSize": "1Gi",
}
RULES = PodRules(
    "boxes", "rdukit/modelbox:1", [ClaimedFolder(Path("/var/lib/rdukit"), "home")], make_template(TEMPLATE), 10001,
    {"name": "worker-1", "uid": "u"}, is_shut=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def program() -> str:
    found = shutil.which("kubernetes-validate", path=str(Path(sys.executable).parent))
    return found or pytest.skip("kubernetes-validate is not installed")


def validate(program: str, version: str, pod: object, file: Path) -> None:
    file.write_text(yaml.safe_dump(pod))
    command = [program, "-k", version, "--strict", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pod_holds_against_kubernetes_schemas(program: str, tmp_path: Path) -> None:
    for version in ("1.27", "1.37"):
        validate(program, version, make_pod(BOX_SPEC, "rdukit-1", BOX_RULES), tmp_path / "pod.yaml")


def test_jobs_pods_hold_against_kubernetes_schemas(program: str, tmp_path: Path) -> None:
    for version in ("1.27", "1.37"):
        # Users of its own are a field since 1.28.
        spec = {**TEMPLATE["spec"]} if version > "1.27" else {"serviceAccountName": "demo"}
        rules = replace(RULES, template=make_template({**TEMPLATE, "spec": spec}))
        for pod in (make_pod(SPEC, "rdukit-1", rules), make_trying_pod("rdukit-try-1", rules)):
            validate(program, version, pod, tmp_path / "pod.yaml")

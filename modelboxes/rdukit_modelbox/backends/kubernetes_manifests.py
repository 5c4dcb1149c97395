"""What a box is in Kubernetes: a Pod, as a value. Pure.

Every folder that a box needs lies in a persistent volume claim; nothing of a node's own disk is mounted.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.box_backends import BoxSpec, Owner
from rdukit.errors import InvalidArgument
from rdukit_modelbox.backends.engine import BOX_LABEL, EPOCH_LABEL, OWNER_LABEL, box_command
from rdukit_modelbox.image.contents import GRPC_PORT, REST_PORT
from rdukit_modelbox.image.media import USER_ID

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
_GRACE_S: Final = 10


@dataclass(frozen=True, slots=True)
class ClaimedFolder:
    """A folder whose content lies in a persistent volume claim."""

    root: Path
    claim: str


def make_pod(spec: BoxSpec, name: str, namespace: str, image: str, folders: Sequence[ClaimedFolder]) -> dict[str, Any]:
    """The Pod that runs ``spec``: not root, a read-only system, no capabilities, no token of the API.

    Raises:
        InvalidArgument: a name is not legal in Kubernetes, a path lies in none of ``folders``, sockets are asked for.
    """
    _check_name(name)
    if spec.sockets:
        raise InvalidArgument("a pod cannot reach UNIX sockets of the machine that starts it")
    written = [_mount(path, folders, is_read_only=False) for path in (spec.state, *spec.outputs)]
    mounts = [*written, *(_mount(path, folders, is_read_only=True) for path in spec.mounts)]
    claims = sorted({mount["name"]: mount for mount in mounts})
    environment = {"RDUKIT_HOME": str(spec.state), "HOME": str(spec.state), **_threads(spec), **spec.environment}
    container = {
        "name": "box",
        "image": spec.image or image,
        "args": box_command(spec),
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "ports": [{"name": "rest", "containerPort": REST_PORT}, {"name": "grpc", "containerPort": GRPC_PORT}],
        "resources": _resources(spec),
        "readinessProbe": _probe("/health/ready", 2, 3),
        "livenessProbe": _probe("/health/live", 10, 3),
        "startupProbe": _probe("/health/live", 2, 30),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels_of(spec, name)},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": _GRACE_S,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                *({"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims),
            ],
        },
    }


def labels_of(spec: BoxSpec, name: str) -> dict[str, str]:
    """Labels of a box's Pod.

    Raises:
        InvalidArgument: the owner's id cannot be a label.
    """
    labels = {
        "app.kubernetes.io/name": "rdukit-box",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "rdukit",
        BOX_LABEL: Path(spec.box).parent.name if "/" in spec.box else spec.box,
    }
    if spec.owner is not None:
        if not _LABEL.match(spec.owner.id):
            raise InvalidArgument(
                f"owner {spec.owner.id!r} is not legal in Kubernetes; legal: up to 63 letters, digits, - _ and ."
            )
        labels |= {OWNER_LABEL: spec.owner.id, EPOCH_LABEL: str(spec.owner.epoch)}
    return labels


def owner_of(labels: Mapping[str, str]) -> Owner:
    """Who the labels say has started a box."""
    return Owner(labels.get(OWNER_LABEL, ""), int(labels.get(EPOCH_LABEL, "0")))


def told_limits(spec: BoxSpec) -> dict[str, str]:
    """What comes of each limit asked for."""
    told: dict[str, str] = {}
    if spec.limits.cores is not None:
        told["cores"] = f"applied: {len(spec.limits.cores)} processors; the node decides which"
    if spec.limits.memory_bytes is not None:
        told["memory"] = f"applied: {spec.limits.memory_bytes} bytes"
    if spec.limits.pids is not None:
        told["pids"] = "not applied: a pod has no such limit; the kubelet's podPidsLimit holds for all"
    return told


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise InvalidArgument(f"name {name!r} is not legal in Kubernetes; legal: up to 63 of a-z, 0-9 and -, RFC 1123")


def _threads(spec: BoxSpec) -> dict[str, str]:
    return {} if spec.limits.cores is None else {"OMP_NUM_THREADS": str(max(len(spec.limits.cores), 1))}


def _resources(spec: BoxSpec) -> dict[str, Any]:
    """Equal requests and limits, as far as limits are given."""
    amounts: dict[str, str] = {}
    if spec.limits.cores is not None:
        amounts["cpu"] = str(len(spec.limits.cores))
    if spec.limits.memory_bytes is not None:
        amounts["memory"] = str(spec.limits.memory_bytes)
    return {"requests": amounts, "limits": dict(amounts)} if amounts else {}


def _mount(path: Path, folders: Sequence[ClaimedFolder], is_read_only: bool) -> dict[str, Any]:
    found = [folder for folder in folders if path.is_relative_to(folder.root)]
    if not found:
        legal = ", ".join(str(folder.root) for folder in folders) or "none"
        raise InvalidArgument(f"{path} is in no persistent volume claim; folders that are: {legal}")
    folder = max(found, key=lambda folder: len(folder.root.parts))
    mount: dict[str, Any] = {"name": folder.claim, "mountPath": str(path)}
    inside = path.relative_to(folder.root).as_posix()
    if inside != ".":
        mount["subPath"] = inside
    return {**mount, "readOnly": True} if is_read_only else mount


def _probe(path: str, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "rest"},
        "periodSeconds": period_s, "timeoutSeconds": 5, "failureThreshold": failures,
    }  # fmt: skip

"""A box in Kubernetes: its Pod as a value, and an operator's additions, which never grant rights (pure).

Every folder that a box needs lies in a persistent volume claim; nothing of a node's own disk is mounted.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rdukit.box.image import BOX_LABEL, GRPC_PORT, REST_PORT, USER_ID
from rdukit.errors import InvalidArgument
from rdukit.fence.in_pod import in_pod_command
from rdukit.settings import HOME
from rdukit_platform.backends.container_options import EPOCH_LABEL, OWNER_LABEL, box_command
from rdukit_platform.backends.contract import BoxOwner, BoxSpec, ClaimedFolder

#: Keys of a Pod's specification that a template may set: placement and runtime, nothing that weakens isolation.
SPEC_KEYS: Final = frozenset({
    "affinity", "hostUsers", "imagePullSecrets", "nodeSelector", "priorityClassName", "runtimeClassName",
    "schedulerName", "serviceAccountName", "tolerations", "topologySpreadConstraints",
})  # fmt: skip
_KINDS: Final[Mapping[str, type]] = {
    "labels": dict, "annotations": dict, "spec": dict, "resources": dict, "imagePullPolicy": str, "tmpSize": str,
}  # fmt: skip
_UNITS: Final = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Additions of an operator to the Pods of all boxes."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    #: Part of the Pod's specification; ``SPEC_KEYS`` are legal.
    spec: Mapping[str, Any] = field(default_factory=dict)
    #: Requests and limits, unless a box has its own.
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pull_policy: str = ""
    #: Size of ``/tmp``; a Pod that writes more is evicted.
    tmp_size: str = "2Gi"


def read_template(file: Path) -> PodTemplate:
    """Read a template from a JSON file: labels, annotations, spec, resources, imagePullPolicy and tmpSize.

    Raises:
        InvalidArgument: it cannot be read, or is not valid; the message says why.
    """
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError) as cause:
        raise InvalidArgument(f"the template of pods {file} cannot be read: {cause}") from cause
    return make_template(value, f"the template of pods {file}")


def make_template(value: object, what: str = "the template") -> PodTemplate:
    """Return a template from JSON's values (pure).

    Raises:
        InvalidArgument: something in it is not valid.
    """
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is {value!r}; expected an object")
    for key, found in value.items():
        if key not in _KINDS or not isinstance(found, _KINDS[key]):
            legal = ", ".join(f"{name} ({'text' if kind is str else 'object'})" for name, kind in _KINDS.items())
            raise InvalidArgument(f"{what}: {key} is {found!r}; expected {legal}")
    spec, resources = value.get("spec", {}), value.get("resources", {})
    if wrong := sorted(set(spec) - SPEC_KEYS):
        raise InvalidArgument(f"{what}: spec.{wrong[0]} is not valid; expected {', '.join(sorted(SPEC_KEYS))}")
    if spec.get("hostUsers", False) is not False:
        raise InvalidArgument(f"{what}: spec.hostUsers is {spec['hostUsers']!r}; expected false")
    if wrong := sorted(set(resources) - {"requests", "limits"}):
        raise InvalidArgument(f"{what}: resources.{wrong[0]} is not valid; expected requests, limits")
    if wrong := sorted(key for key in value.get("labels", {}) if key.startswith("dev.rdukit.")):
        raise InvalidArgument(
            f"{what}: the label {wrong[0]} is reserved for the owner of a box; expected another label"
        )
    amounts = {kind: {name: str(amount) for name, amount in each.items()} for kind, each in resources.items()}
    for kind, each in amounts.items():
        for name, amount in each.items():
            try:
                parse_quantity(amount)
            except (KeyError, ValueError) as cause:
                raise InvalidArgument(f"{what}: resources.{kind}.{name} is {amount!r}; expected a quantity") from cause
    return PodTemplate(
        value.get("labels", {}), value.get("annotations", {}), spec, amounts, value.get("imagePullPolicy", ""),
        value.get("tmpSize", PodTemplate().tmp_size),
    )  # fmt: skip


def parse_quantity(text: str) -> float:
    """Return a number with Kubernetes' unit: ``250m`` is 0.25, ``64Mi`` 67108864.

    Raises:
        KeyError: there is no such unit.
        ValueError: there is no number.
    Source: Kubernetes API reference, "Quantity".
    """
    number = text.rstrip("numkMGTPiK")
    return float(number) * _UNITS[text[len(number) :]]


#: File of a box's variables in its state folder, until the box has read it.
VARIABLES: Final = "pod-variables.json"
#: Seconds within which a Pod's network must be blocked, and seconds between probes.
SHUT_WITHIN_S: Final = 10.0
LOOKS: Final = 3
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
_GRACE_S: Final = 10
_HARDENED: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_LITTLE: Final[Mapping[str, Any]] = {
    "requests": {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "16Mi"},
    "limits": {"cpu": "1", "memory": "256Mi", "ephemeral-storage": "64Mi"},
}


@dataclass(frozen=True, slots=True)
class PodRules:
    """Rules for all Pods of a backend."""

    namespace: str
    image: str
    folders: Sequence[ClaimedFolder] = ()
    template: PodTemplate = field(default_factory=PodTemplate)
    #: User and group of boxes that share folders with the process that starts them.
    user: int = USER_ID
    #: The Pod that starts them; Kubernetes deletes them with it.
    parent: Mapping[str, str] | None = None
    #: Whether boxes with sockets first probe the network, and do not start if it is open.
    is_shut: bool = False


def make_pod(spec: BoxSpec, name: str, rules: PodRules) -> dict[str, Any]:
    """Return the Pod that runs ``spec``: not root, a read-only system, no capabilities, no token of the API.

    With sockets, no port is open and its variables are in a file of its own folder, not in the Pod.

    Raises:
        InvalidArgument: a name is not valid in Kubernetes, or a path lies in none of the rules' folders.
    """
    sockets = [path.parent for path in spec.sockets]  # connecting writes nothing there
    mounts = [
        *(_mount(path, rules.folders, is_read_only=False) for path in (spec.state, *spec.outputs)),
        *(_mount(path, rules.folders, is_read_only=True) for path in (*spec.mounts, *sockets)),
    ]
    resources = _resources(spec, rules.template)
    environment = {HOME.variable: str(spec.state), "HOME": str(spec.state), **_threads(resources)}
    container: dict[str, Any] = {
        "name": "box",
        "image": spec.image or rules.image,
        "args": box_command(spec),
        "resources": resources,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],
    }
    if spec.has_sockets:
        within_s = SHUT_WITHIN_S if rules.is_shut else None
        container["args"] = in_pod_command(box_command(spec), spec.state / VARIABLES, spec.limits.pids, within_s)
        user = {"runAsUser": rules.user, "runAsGroup": rules.user}
    else:
        environment |= spec.environment
        container |= {
            "ports": [{"name": "rest", "containerPort": REST_PORT}, {"name": "grpc", "containerPort": GRPC_PORT}],
            "readinessProbe": _probe("/health/ready", 2, 3),
            "livenessProbe": _probe("/health/live", 10, 3),
            "startupProbe": _probe("/health/live", 2, 30),
        }
        user = {"runAsUser": USER_ID, "runAsGroup": USER_ID, "fsGroup": USER_ID}
    container["env"] = [{"name": key, "value": value} for key, value in environment.items()]
    volumes = [
        {"name": claim, "persistentVolumeClaim": {"claimName": claim}}
        for claim in sorted({mount["name"] for mount in mounts})
    ]
    return _pod(name, labels_of(spec, name), container, volumes, user, rules)


def make_trying_pod(name: str, rules: PodRules) -> dict[str, Any]:
    """Return a Pod without folders, whose network is blocked like a box's, and that only probes this.

    Raises:
        InvalidArgument: the name is not valid in Kubernetes.
    """
    container = {
        "name": "box",
        "image": rules.image,
        "args": in_pod_command([], shut_within_s=SHUT_WITHIN_S, looks=LOOKS),
        "resources": {key: dict(value) for key, value in _LITTLE.items()},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return _pod(name, _labels(name), container, [], {"runAsUser": rules.user, "runAsGroup": rules.user}, rules)


def _pod(
    name: str,
    labels: Mapping[str, str],
    container: Mapping[str, Any],
    volumes: Sequence[Mapping[str, Any]],
    user: Mapping[str, int],
    rules: PodRules,
) -> dict[str, Any]:
    _check_name(name)
    template = rules.template
    metadata: dict[str, Any] = {"name": name, "namespace": rules.namespace, "labels": {**labels, **template.labels}}
    if template.annotations:
        metadata["annotations"] = dict(template.annotations)
    if rules.parent is not None:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", **rules.parent}]
    pull = {"imagePullPolicy": template.pull_policy} if template.pull_policy else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            **template.spec,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            # Otherwise every box gets the names and addresses of all services.
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _GRACE_S,
            "securityContext": {"runAsNonRoot": True, **user, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{**container, **pull, "securityContext": dict(_HARDENED)}],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": template.tmp_size}}, *volumes],
        },
    }


def labels_of(spec: BoxSpec, name: str) -> dict[str, str]:
    """Return the labels of a box's Pod.

    Raises:
        InvalidArgument: the owner's id cannot be a label.
    """
    labels = _labels(name)
    labels[BOX_LABEL] = Path(spec.box).parent.name if "/" in spec.box else spec.box
    if spec.owner is not None:
        if not _LABEL.match(spec.owner.id):
            raise InvalidArgument(
                f"owner {spec.owner.id!r} is not valid in Kubernetes; expected up to 63 letters, digits, - _ and ."
            )
        labels |= {OWNER_LABEL: spec.owner.id, EPOCH_LABEL: str(spec.owner.epoch)}
    return labels


def _labels(name: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "rdukit-box",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "rdukit",
    }


def owner_of(labels: Mapping[str, str]) -> BoxOwner:
    """Return the owner of a box from its labels."""
    return BoxOwner(labels.get(OWNER_LABEL, ""), int(labels.get(EPOCH_LABEL, "0")))


def describe_limits(spec: BoxSpec, template: PodTemplate) -> dict[str, str]:
    """Describe which requested limits, and which of all Pods, are applied."""
    limits = _resources(spec, template).get("limits", {})
    outcomes: dict[str, str] = {}
    if spec.limits.cores is not None or "cpu" in limits:
        outcomes["cores"] = f"applied: {limits['cpu']} processors, chosen by the node"
    if spec.limits.memory_bytes is not None or "memory" in limits:
        outcomes["memory"] = f"applied: {int(parse_quantity(limits['memory']))} bytes"
    if spec.limits.pids is not None and spec.has_sockets:
        outcomes["pids"] = f"applied: {spec.limits.pids} processes and threads of the user of all boxes (RLIMIT_NPROC)"
    elif spec.limits.pids is not None:
        outcomes["pids"] = "not applied: pods have no such limit; the kubelet's podPidsLimit applies to all"
    if spec.limits.disk_bytes is not None:
        outcomes["disk"] = "not applied: the sizes of its claims limit a box's folders"
    return outcomes


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise InvalidArgument(
            f"name {name!r} is not valid in Kubernetes; expected up to 63 of a-z, 0-9 and -, RFC 1123"
        )


def _threads(resources: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable for the number of threads: torch reads the machine's cores, not the container's limit."""
    cpu = resources.get("limits", {}).get("cpu")
    return {} if cpu is None else {"OMP_NUM_THREADS": str(max(int(parse_quantity(cpu)), 1))}


def _resources(spec: BoxSpec, template: PodTemplate) -> dict[str, Any]:
    """Return the template's resources, with requests and limits equal to the spec's limits."""
    amounts: dict[str, str] = {}
    if spec.limits.cores is not None:
        amounts["cpu"] = str(len(spec.limits.cores))
    if spec.limits.memory_bytes is not None:
        amounts["memory"] = str(spec.limits.memory_bytes)
    merged = {kind: {**template.resources.get(kind, {}), **amounts} for kind in ("requests", "limits")}
    return {kind: values for kind, values in merged.items() if values}


def _mount(path: Path, folders: Sequence[ClaimedFolder], is_read_only: bool) -> dict[str, Any]:
    found = [folder for folder in folders if path.is_relative_to(folder.root)]
    if not found:
        legal = ", ".join(str(folder.root) for folder in folders) or "none"
        raise InvalidArgument(f"{path} is in no persistent volume claim; expected a path in {legal}")
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

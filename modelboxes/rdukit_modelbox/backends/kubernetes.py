"""Run boxes as Pods, by the Kubernetes API over HTTPS.

Tried against a cluster of one node (Kubernetes 1.36; ``tests/engine/test_kubernetes.py`` repeats it on another), and
always against a server that only imitates the API.
"""

import secrets
import ssl
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from rdukit.box_backends import (
    BoxEnd,
    BoxEvent,
    BoxSpec,
    EventKind,
    OwnedBox,
    Owner,
    Stats,
    end_of_container,
    is_orphan,
    last_lines,
)
from rdukit.clock import Clock, SystemClock
from rdukit.errors import BackendUnavailable, Cancelled, InvalidArgument, Unavailable
from rdukit_modelbox.backends.engine import BOX_LABEL, OWNER_LABEL
from rdukit_modelbox.backends.kubernetes_manifests import (
    ClaimedFolder,
    make_pod,
    owner_of,
    told_limits,
)
from rdukit_modelbox.image.contents import GRPC_PORT, REST_PORT

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_CLUSTER_URL: Final = "https://kubernetes.default.svc"
POLL_S: Final = 0.25
_UNITS: Final = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip


class PodBox:
    """A box in a Pod; reached at the Pod's address, which is its own as long as it lives."""

    def __init__(self, backend: "KubernetesBackend", name: str, limits: Mapping[str, str], started: float) -> None:
        self._backend = backend
        self._name = name
        self._host = ""
        self._limits = limits
        self._events = [BoxEvent(EventKind.STARTED, started)]
        #: Its log, kept since it goes with the Pod.
        self._last_words = ""
        self._is_removed = False

    @property
    def id(self) -> str:
        """The Pod's name."""
        return self._name

    @property
    def rest_url(self) -> str:
        """Base address of the REST wire."""
        return f"http://{self._host}:{REST_PORT}"

    @property
    def grpc_address(self) -> str:
        """``host:port`` of the gRPC wire."""
        return f"{self._host}:{GRPC_PORT}"

    @property
    def limits(self) -> Mapping[str, str]:
        """Each limit that was asked for: whether it is applied."""
        return self._limits

    def is_alive(self) -> bool:
        """Its Pod is pending or running."""
        return self._status().get("phase") in {"Pending", "Running"}

    def is_ready(self) -> bool:
        """The kubelet's check of readiness passes."""
        conditions = self._status().get("conditions") or []
        return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)

    def logs(self, tail: int | None = None) -> str:
        """What it has written so far, or the last ``tail`` lines of it."""
        said = "" if self._is_removed else self._backend.read_log(self._name, tail)
        return said or last_lines(self._last_words, tail)

    def follow(self) -> Iterator[str]:
        """Its log line by line till its end."""
        yield from self._backend.follow(self._name) if self._status() else self._last_words.splitlines()

    def stats(self) -> Stats:
        """What the metrics server says, where the cluster has one: processors in use now, not seconds so far.

        Raises:
            Unavailable: it has ended, or there is no metrics server.
        """
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{self._backend.namespace}/pods/{self._name}"
        found = self._backend.call("GET", path, missing="{}").json().get("containers") or []
        if not found:
            raise Unavailable(f"pod {self._name} has no metrics: it has ended, or the cluster has no metrics server")
        usage = [container["usage"] for container in found]
        memory = int(sum(parse_quantity(used["memory"]) for used in usage))
        return Stats(sum(parse_quantity(used["cpu"]) for used in usage), memory, 0)

    def events(self) -> Sequence[BoxEvent]:
        """Start, readiness, and how its container ended."""
        if self._events[-1].kind is not EventKind.ENDED:
            self._events += [event for event in end_events(self._status()) if event not in self._events]
        return tuple(self._events)

    def terminate(self) -> None:
        """Delete the Pod, which is gone when its box has ended; ``stop`` waits for that."""
        self._keep_words()
        self._backend.call("DELETE", self._backend.pod_path(self._name), missing="{}")

    def stop(self, grace_s: float = 10.0) -> None:
        """Delete the Pod; returns when it has gone."""
        if self._is_removed:
            return
        self._keep_words()
        self._backend.delete(self._name, grace_s, self._keep_words)
        self._is_removed = True
        if self._events[-1].kind is not EventKind.ENDED:
            self._events.append(BoxEvent(EventKind.ENDED, self._backend.clock.now(), "deleted", BoxEnd.KILLED))

    def _keep_words(self) -> None:
        self.events()
        with suppress(Unavailable):  # a node that is down has no log to give; its Pod is deleted all the same
            self._last_words = self.logs()

    def waits_for(self) -> str:
        """What keeps it from starting, as words to be appended; nothing if it has started."""
        reasons = pending_reasons(self._status())
        return f" ({'; '.join(reasons)})" if reasons else ""

    def became_ready(self) -> None:
        """Note the time, and the Pod's address."""
        self._events.append(BoxEvent(EventKind.READY, self._backend.clock.now()))
        address = str(self._status().get("podIP", ""))
        self._host = f"[{address}]" if ":" in address else address

    def _status(self) -> dict[str, Any]:
        if self._is_removed:
            return {}
        pod = self._backend.call("GET", self._backend.pod_path(self._name), missing="{}").json()
        status: dict[str, Any] = pod.get("status") or {}
        return status


class KubernetesBackend:
    """Starts boxes as Pods of one namespace."""

    name = "kubernetes"

    def __init__(
        self,
        image: str,
        namespace: str,
        folders: Sequence[ClaimedFolder],
        client: httpx.Client | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.namespace = namespace
        self.clock = clock or SystemClock()
        self._image = image
        self._folders = folders
        self._client = client or in_cluster_client()

    def close(self) -> None:
        """Close connections; boxes go on."""
        self._client.close()

    def start(self, spec: BoxSpec, timeout_s: float = 120.0, stop: threading.Event | None = None) -> PodBox:
        """Create a Pod, and wait until it is ready.

        Raises:
            InvalidArgument: a folder of ``spec`` lies in no claim.
            Unavailable: the API refuses, or the box ended or was not ready in time; nothing is left of it.
            Cancelled: ``stop`` was set meanwhile.
        """
        name = f"rdukit-{secrets.token_hex(6)}"
        pod = make_pod(spec, name, self.namespace, self._image, self._folders)
        started = self.clock.now()
        self.call("POST", f"/api/v1/namespaces/{self.namespace}/pods", pod)
        box = PodBox(self, name, told_limits(spec), started)
        deadline = self.clock.monotonic() + timeout_s
        while True:
            if stop is not None and stop.is_set():
                box.stop(0)
                raise Cancelled(f"box {spec.box} was stopped before it was ready")
            if box.is_ready():
                break
            is_late = self.clock.monotonic() > deadline
            if is_late or not box.is_alive():
                waits = box.waits_for()
                box.stop(0)
                what = f"was not ready in {timeout_s:g} s{waits}" if is_late else box.events()[-1].detail
                end = BoxEnd.LATE if is_late else box.events()[-1].end or BoxEnd.EXITED
                raise Unavailable(f"pod {name} {what}: {box.logs().strip()[-500:]}", end=str(end))
            self.clock.sleep(POLL_S)
        box.became_ready()
        return box

    def read_image(self, image: str, folder: Path) -> str:
        """Refused: images are the nodes' business, and no job's box is a Pod.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(f"image {image!r} cannot be read through a cluster; legal with docker and podman")

    def owned(self) -> Sequence[OwnedBox]:
        """From the Pods' labels."""
        return self._labelled(OWNER_LABEL)

    def orphans(self, owner: Owner) -> Sequence[OwnedBox]:
        """From the Pods' labels."""
        return tuple(box for box in self._labelled(f"{OWNER_LABEL}={owner.id}") if is_orphan(box.owner, owner))

    def _labelled(self, selector: str) -> Sequence[OwnedBox]:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        listed = self.call("GET", path, query={"labelSelector": selector}).json()["items"]
        found = [(pod["metadata"]["name"], pod["metadata"].get("labels") or {}) for pod in listed]
        return tuple(OwnedBox(name, labels.get(BOX_LABEL, ""), owner_of(labels)) for name, labels in sorted(found))

    def reap(self, orphan: OwnedBox) -> None:
        """Delete its Pod."""
        self.delete(orphan.id, 10.0)

    def delete(self, name: str, grace_s: float, look: Callable[[], None] = lambda: None) -> None:
        """Delete a Pod, and wait until it has gone; meanwhile ``look`` at it."""
        options = {"gracePeriodSeconds": int(grace_s), "propagationPolicy": "Background"}
        self.call("DELETE", self.pod_path(name), options, missing="{}")
        deadline = self.clock.monotonic() + grace_s + 30
        while self.call("GET", self.pod_path(name), missing="").text:
            if self.clock.monotonic() > deadline:
                raise Unavailable(f"pod {name} is still there {grace_s + 30:g} s after it was deleted")
            look()
            self.clock.sleep(POLL_S)

    def read_log(self, name: str, tail: int | None) -> str:
        """A Pod's log so far; empty while its container waits to start, when the API has none to give."""
        query = None if tail is None else {"tailLines": str(tail)}
        return self.call("GET", self.pod_path(name, "/log"), query=query, missing="", absent=(400, 404)).text

    def follow(self, name: str) -> Iterator[str]:
        """A Pod's log, line by line."""
        query = {"follow": "true"}
        try:
            with self._client.stream("GET", self.pod_path(name, "/log"), params=query, timeout=None) as response:
                if response.is_error:
                    response.read()
                    raise Unavailable(f"the Kubernetes API refuses the log of pod {name}: {_message(response)}")
                yield from response.iter_lines()
        except httpx.HTTPError as cause:
            raise Unavailable(f"the log of pod {name} broke off: {cause}") from cause

    def pod_path(self, name: str, rest: str = "") -> str:
        """Where a Pod is in the API."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}{rest}"

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, str] | None = None,
        missing: str | None = None,
        absent: Collection[int] = (404,),
    ) -> httpx.Response:
        """One call of the API.

        Args:
            missing: what to answer, as text, when there is no such object; None raises.
            absent: the statuses that say so.

        Raises:
            Unavailable: it refuses; the message is the API's own.
            BackendUnavailable: it cannot be reached.
        """
        try:
            response = self._client.request(method, path, json=body, params=query)
        except httpx.HTTPError as cause:
            raise BackendUnavailable(f"the Kubernetes API cannot be reached: {cause}") from cause
        if response.status_code in absent and missing is not None:
            return httpx.Response(404, text=missing)
        if response.is_error:
            raise Unavailable(f"the Kubernetes API refuses {method} {path}: {_message(response)}")
        return response


def in_cluster_client() -> httpx.Client:
    """A client with the service account of the Pod that this process runs in.

    Raises:
        Unavailable: it runs in none.
    Source: Kubernetes documentation, "Accessing the Kubernetes API from a Pod".
    """
    try:
        token = (ACCOUNT / "token").read_text().strip()
        trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    except OSError as cause:
        raise Unavailable(f"not in a Kubernetes cluster: {cause}") from cause
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=IN_CLUSTER_URL, verify=trusted, headers=headers, timeout=30.0)


def end_events(status: Mapping[str, Any]) -> list[BoxEvent]:
    """What a Pod's status says of its end; nothing while it runs."""
    events: list[BoxEvent] = []
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            time = datetime.fromisoformat(str(ended["finishedAt"]).replace("Z", "+00:00")).timestamp()
            if ended.get("reason") == "OOMKilled":
                events.append(BoxEvent(EventKind.OUT_OF_MEMORY, time, "the pod's memory limit was reached"))
            code = ended.get("exitCode")
            end = end_of_container(code, ran_out_of_memory=bool(events))
            events.append(BoxEvent(EventKind.ENDED, time, f"ended with status {code}", end))
    if not events and status.get("phase") in {"Failed", "Succeeded"}:
        detail = f"{status.get('reason', status['phase'])}: {status.get('message', '')}"
        # Evicted or lost with its machine: a container that ended by itself has a status.
        end = BoxEnd.KILLED if status["phase"] == "Failed" else BoxEnd.EXITED
        events.append(BoxEvent(EventKind.ENDED, 0.0, detail, end))
    return events


def pending_reasons(status: Mapping[str, Any]) -> list[str]:
    """Why a Pod has no node yet, or its container has not started. Pure."""
    unscheduled = [
        condition
        for condition in status.get("conditions") or []
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    ]
    states = [container.get("state") or {} for container in status.get("containerStatuses") or []]
    told = [*unscheduled, *(state["waiting"] for state in states if state.get("waiting"))]
    return [": ".join(filter(None, (each.get("reason"), each.get("message")))) for each in told]


def parse_quantity(text: str) -> float:
    """A number with Kubernetes' unit: ``250m`` is 0.25, ``64Mi`` 67108864.

    Source: Kubernetes API reference, "Quantity".
    """
    number = text.rstrip("numkMGTiK")
    return float(number) * _UNITS[text[len(number) :]]


def _message(response: httpx.Response) -> str:
    try:
        value = response.json()
    except ValueError:
        return f"{response.status_code} {response.text[:300]}"
    return f"{response.status_code} {value.get('message', '') if isinstance(value, dict) else value}"

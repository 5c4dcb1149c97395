"""Run boxes as Pods, by the Kubernetes API over HTTPS.

A box with sockets, such as a job's, shares its claim's folders, and so the machine, with its starter. A box without
sockets is reached at its Pod's address.
"""

import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from rdukit.box.image import BOX_LABEL, DEFAULT_BASE, GRPC_PORT, REST_PORT, BoxEnd
from rdukit.errors import BackendUnavailable, Cancelled, InvalidArgument, PermissionDenied, Unavailable
from rdukit.fence.in_pod import OPEN
from rdukit.http.unix_sockets import REST_SOCKET
from rdukit.interfaces import Clock, SystemClock
from rdukit_platform.backends.container_options import OWNER_LABEL, uid_of_box
from rdukit_platform.backends.containers import prepare_folders
from rdukit_platform.backends.contract import (
    BoxEvent,
    BoxEventKind,
    BoxOwner,
    BoxSpec,
    BoxStats,
    ClaimedFolder,
    OwnedBox,
    end_of_container,
    is_orphan,
    last_lines,
)
from rdukit_platform.backends.fenced import FencedWires
from rdukit_platform.backends.in_cluster import in_cluster_client, own_namespace
from rdukit_platform.backends.pods import (
    VARIABLES,
    PodRules,
    PodTemplate,
    describe_limits,
    make_pod,
    make_trying_pod,
    owner_of,
    parse_quantity,
    read_template,
)
from rdukit_platform.backends.process import answers_ready

POLL_S: Final = 0.25
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
#: Necessary rights on ``pods`` of the namespace: verb and sub-resource.
RIGHTS: Final = (("create", ""), ("get", ""), ("list", ""), ("delete", ""), ("get", "log"))


class PodBox:
    """A box in a Pod; reached at its sockets, or at the Pod's address, which it keeps for its life."""

    def __init__(
        self,
        backend: "KubernetesBackend",
        name: str,
        limits: Mapping[str, str],
        started: float,
        sockets: Path | None = None,
    ) -> None:
        """``sockets``: folder of its UNIX sockets, if it has no ports."""
        self._backend = backend
        self._name = name
        self._host = ""
        self._sockets = sockets
        self._wires: FencedWires | None = None
        self._limits = limits
        self._events = [BoxEvent(BoxEventKind.STARTED, started)]
        #: Copy of its log, which is deleted with the Pod.
        self._last_words = ""
        self._is_removed = False

    @property
    def id(self) -> str:
        """The Pod's name."""
        return self._name

    @property
    def rest_url(self) -> str:
        """Base address of the REST wire."""
        return self._open_wires(self._sockets)["rest"] if self._sockets else f"http://{self._host}:{REST_PORT}"

    @property
    def grpc_address(self) -> str:
        """``unix:path`` or ``host:port`` of the gRPC wire."""
        return self._open_wires(self._sockets)["grpc"] if self._sockets else f"{self._host}:{GRPC_PORT}"

    @property
    def limits(self) -> Mapping[str, str]:
        """Limits that were asked for, and whether each is applied."""
        return self._limits

    def is_alive(self) -> bool:
        """Return whether its Pod is pending or running."""
        return self._status().get("phase") in {"Pending", "Running"}

    def is_ready(self) -> bool:
        """Return whether the kubelet's readiness check passes; a box with sockets is asked directly."""
        status = self._status()
        if self._sockets is not None:
            is_there = status.get("phase") == "Running" and os.path.lexists(self._sockets / REST_SOCKET)
            return is_there and answers_ready(self.rest_url)
        conditions = status.get("conditions") or []
        return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)

    def logs(self, tail: int | None = None) -> str:
        """Return its log so far, or the last ``tail`` lines of it."""
        said = "" if self._is_removed else self._backend.read_log(self._name, tail)
        return said or last_lines(self._last_words, tail)

    def follow(self) -> Iterator[str]:
        """Yield its log line by line till its end."""
        yield from self._backend.follow(self._name) if self._status() else self._last_words.splitlines()

    def stats(self) -> BoxStats:
        """Return the metrics server's figures: processors in use now, not seconds so far.

        Raises:
            Unavailable: the box has ended, or there is no metrics server.
        """
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{self._backend.namespace}/pods/{self._name}"
        found = self._backend.call("GET", path, missing="{}").json().get("containers") or []
        if not found:
            raise Unavailable(f"pod {self._name} has no metrics: it has ended, or the cluster has no metrics server")
        usage = [container["usage"] for container in found]
        memory = int(sum(parse_quantity(used["memory"]) for used in usage))
        return BoxStats(sum(parse_quantity(used["cpu"]) for used in usage), memory, 0)

    def events(self) -> Sequence[BoxEvent]:
        """Start, readiness, and how its container ended."""
        if self._events[-1].kind is not BoxEventKind.ENDED:
            self._events += [event for event in end_events(self._status()) if event not in self._events]
        return tuple(self._events)

    def terminate(self) -> None:
        """Delete the Pod, which disappears when its box has ended; ``stop`` waits for that."""
        self._keep_words()
        self._backend.call("DELETE", self._backend.pod_path(self._name), missing="{}")

    def stop(self, grace_s: float = 10.0) -> None:
        """Delete the Pod; returns when it has gone."""
        if self._is_removed:
            return
        self._keep_words()
        self._backend.delete(self._name, grace_s, self._keep_words)
        self._is_removed = True
        if self._wires is not None:
            self._wires.close()
        if self._events[-1].kind is not BoxEventKind.ENDED:
            self._events.append(BoxEvent(BoxEventKind.ENDED, self._backend.clock.now(), "deleted", BoxEnd.KILLED))

    def _keep_words(self) -> None:
        self.events()
        with suppress(Unavailable):  # a node that is down has no log, but its Pod is still deleted
            self._last_words = self.logs()

    def exit_code(self) -> int | None:
        """Return the exit status of its container; ``None``: it runs, or was terminated from outside."""
        codes = [
            state["terminated"].get("exitCode")
            for each in self._status().get("containerStatuses") or []
            if (state := each.get("state") or {}).get("terminated")
        ]
        return int(codes[0]) if codes and codes[0] is not None else None

    def waits_for(self) -> str:
        """Describe why it has not started, as a suffix; empty: it has started."""
        reasons = pending_reasons(self._status())
        return f" ({'; '.join(reasons)})" if reasons else ""

    def wait_ready(self, box: str, timeout_s: float, stop: threading.Event | None = None) -> None:
        """Wait until it is ready; record the time, and the Pod's address.

        Raises:
            Unavailable: the box ended, or was not ready in time; it is removed.
            Cancelled: ``stop`` was set meanwhile; it is removed.
        """
        clock = self._backend.clock
        deadline = clock.monotonic() + timeout_s
        while True:
            if stop is not None and stop.is_set():
                self.stop(0)
                raise Cancelled(f"box {box} was stopped before it was ready")
            if self.is_ready():
                break
            is_late = clock.monotonic() > deadline
            if is_late or not self.is_alive():
                waits = self.waits_for()
                self.stop(0)
                what = f"was not ready in {timeout_s:g} s{waits}" if is_late else self.events()[-1].detail
                end = BoxEnd.LATE if is_late else self.events()[-1].end or BoxEnd.EXITED
                raise Unavailable(f"pod {self._name} {what}: {self.logs().strip()[-500:]}", end=str(end))
            clock.sleep(POLL_S)
        self._events.append(BoxEvent(BoxEventKind.READY, self._backend.clock.now()))
        address = str(self._status().get("podIP", ""))
        self._host = f"[{address}]" if ":" in address else address

    def _open_wires(self, folder: Path) -> Mapping[str, str]:
        if self._wires is None:
            self._wires = FencedWires(folder, self._backend.rules.user)
        return self._wires.addresses

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
        image: str = DEFAULT_BASE,
        namespace: str = "",
        folders: Sequence[ClaimedFolder] = (),
        client: httpx.Client | None = None,
        clock: Clock | None = None,
        template: Path | PodTemplate | None = None,
    ) -> None:
        """Connect; defaults come from the Pod of this process.

        Args:
            folders: local mount points of claims; each folder of a box lies in one of them.
            template: additions to Pods, or a JSON file with them.
        Raises:
            InvalidArgument: the template is not valid.
            Unavailable: a default is needed, and this process runs in no cluster.
        """
        self.clock = clock or SystemClock()
        found = read_template(template) if isinstance(template, Path) else template or PodTemplate()
        self.namespace = namespace or own_namespace()
        #: Rules for all Pods; ``check_rights`` and ``try_network`` extend them.
        self.rules = PodRules(self.namespace, image, folders, found, uid_of_box())
        self._client = client or in_cluster_client()

    def check_rights(self) -> None:
        """Check that the API answers and grants all rights. From then on, this process's Pod owns the created Pods.

        Raises:
            PermissionDenied: a right is missing; the message names it.
            Unavailable: the cluster does not report the rights.
            BackendUnavailable: the cluster does not answer.
        """
        missing = [f"{verb} pods{sub and '/' + sub}" for verb, sub in RIGHTS if not self._may(verb, sub)]
        if missing:
            raise PermissionDenied(
                f"this pod's account may not {', '.join(missing)} in namespace {self.namespace}; bind it to a role "
                "that allows this, as the chart does (jobs.boxes: pods)"
            )
        # Inside a Pod the host name is the Pod's name; elsewhere no such Pod exists.
        name = socket.gethostname()
        metadata = json.loads(self.call("GET", self.pod_path(name), missing="{}").text).get("metadata") or {}
        if "uid" in metadata:
            self.rules = replace(self.rules, parent={"name": name, "uid": str(metadata["uid"])})

    def try_network(self, timeout_s: float = 90.0) -> str:
        """Probe the network with a separate Pod. From then on boxes with sockets probe it, too.

        Raises:
            Unavailable: that Pod did not run, or could not probe.
        """
        name = f"rdukit-try-{secrets.token_hex(6)}"
        self.call("POST", self._pods_path, make_trying_pod(name, self.rules))
        box = PodBox(self, name, {}, self.clock.now())
        deadline = self.clock.monotonic() + timeout_s
        try:
            while box.is_alive():
                if self.clock.monotonic() > deadline:
                    raise Unavailable(
                        f"the network of boxes was not tried: pod {name} did not end in "
                        f"{timeout_s:g} s{box.waits_for()}"
                    )
                self.clock.sleep(POLL_S)
            code, words = box.exit_code(), box.logs().strip()[-300:]
        finally:
            box.stop(1)
        if code == OPEN:
            return f"{words}; the cluster does not enforce network policies, or has none for pods of jobs"
        if code != 0:
            raise Unavailable(f"the network of boxes was not tried: pod {name} {box.events()[-1].detail}: {words}")
        self.rules = replace(self.rules, is_shut=True)
        return ""

    def _may(self, verb: str, sub: str) -> bool:
        asked = {"namespace": self.namespace, "verb": verb, "group": "", "resource": "pods", "subresource": sub}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                  "spec": {"resourceAttributes": asked}}  # fmt: skip
        return bool((self.call("POST", REVIEWS, review).json().get("status") or {}).get("allowed"))

    def close(self) -> None:
        """Close connections; boxes keep running."""
        self._client.close()

    def start(self, spec: BoxSpec, timeout_s: float = 120.0, stop: threading.Event | None = None) -> PodBox:
        """Create a Pod, and wait until it is ready.

        Raises:
            InvalidArgument: a folder of ``spec`` lies in no claim.
            Unavailable: the API refuses, or the box ended or was not ready in time; the box is removed.
            Cancelled: ``stop`` was set meanwhile.
        """
        name = f"rdukit-{secrets.token_hex(6)}"
        pod = make_pod(spec, name, self.rules)
        if spec.has_sockets:
            # The kubelet would create missing folders as root.
            prepare_folders(spec)
            write_variables(spec)
        started = self.clock.now()
        self.call("POST", self._pods_path, pod)
        limits = describe_limits(spec, self.rules.template)
        box = PodBox(self, name, limits, started, spec.state if spec.has_sockets else None)
        try:
            box.wait_ready(spec.box, timeout_s, stop)
        except BackendUnavailable:
            raise
        except BaseException:
            box.stop(0)
            raise
        return box

    def read_image(self, image: str, folder: Path) -> str:
        """Refuse: images are on the nodes, and the API does not show their content.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(f"image {image!r} cannot be read through a cluster; legal with docker and podman")

    def owned(self) -> Sequence[OwnedBox]:
        """Find boxes by the Pods' labels."""
        return self._labelled(OWNER_LABEL)

    def orphans(self, owner: BoxOwner) -> Sequence[OwnedBox]:
        """Find orphans by the Pods' labels."""
        return tuple(box for box in self._labelled(f"{OWNER_LABEL}={owner.id}") if is_orphan(box.owner, owner))

    def _labelled(self, selector: str) -> Sequence[OwnedBox]:
        listed = self.call("GET", self._pods_path, query={"labelSelector": selector}).json()["items"]
        found = [(pod["metadata"]["name"], pod["metadata"].get("labels") or {}) for pod in listed]
        return tuple(OwnedBox(name, labels.get(BOX_LABEL, ""), owner_of(labels)) for name, labels in sorted(found))

    def reap(self, orphan: OwnedBox) -> None:
        """Delete the orphan's Pod."""
        self.delete(orphan.id, 10.0)

    def delete(self, name: str, grace_s: float, look: Callable[[], None] = lambda: None) -> None:
        """Delete a Pod, and wait until it is gone; ``look`` is called meanwhile."""
        # Without grace the API removes a Pod at once, even if its box still writes.
        options = {"gracePeriodSeconds": max(int(grace_s), 1), "propagationPolicy": "Background"}
        self.call("DELETE", self.pod_path(name), options, missing="{}")
        deadline = self.clock.monotonic() + grace_s + 30
        while self.call("GET", self.pod_path(name), missing="").text:
            if self.clock.monotonic() > deadline:
                raise Unavailable(f"pod {name} is still there {grace_s + 30:g} s after it was deleted")
            look()
            self.clock.sleep(POLL_S)

    def read_log(self, name: str, tail: int | None) -> str:
        """Return a Pod's log so far; empty until its container has started."""
        query = None if tail is None else {"tailLines": str(tail)}
        return self.call("GET", self.pod_path(name, "/log"), query=query, missing="", absent=(400, 404)).text

    def follow(self, name: str) -> Iterator[str]:
        """Yield a Pod's log, line by line."""
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
        """Return the path of a Pod in the API."""
        return f"{self._pods_path}/{name}{rest}"

    @property
    def _pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, str] | None = None,
        missing: str | None = None,
        absent: Collection[int] = (404,),
    ) -> httpx.Response:
        """Call the API once.

        Args:
            missing: text to return if there is no such object; ``None``: raise.
            absent: statuses that mean a missing object.

        Raises:
            Unavailable: it refuses; the message is the API's own.
            BackendUnavailable: the API is unreachable.
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


def write_variables(spec: BoxSpec) -> None:
    """Write a box's variables into its folder, because users who can read Pods would see them there."""
    file = spec.state / VARIABLES
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as writer:
        json.dump(dict(spec.environment), writer)
        if os.getuid() == 0:
            os.fchown(descriptor, uid_of_box(), uid_of_box())


def end_events(status: Mapping[str, Any]) -> list[BoxEvent]:
    """Read a Pod's end from its status; nothing while it runs."""
    events: list[BoxEvent] = []
    for container in status.get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            time = datetime.fromisoformat(str(ended["finishedAt"]).replace("Z", "+00:00")).timestamp()
            if ended.get("reason") == "OOMKilled":
                events.append(BoxEvent(BoxEventKind.OUT_OF_MEMORY, time, "the pod's memory limit was reached"))
            code = ended.get("exitCode")
            end = end_of_container(code, ran_out_of_memory=bool(events))
            events.append(BoxEvent(BoxEventKind.ENDED, time, f"ended with status {code}", end))
    if not events and status.get("phase") in {"Failed", "Succeeded"}:
        detail = f"{status.get('reason', status['phase'])}: {status.get('message', '')}"
        # Evicted or lost with its machine; a container that ended has a status.
        end = BoxEnd.KILLED if status["phase"] == "Failed" else BoxEnd.EXITED
        events.append(BoxEvent(BoxEventKind.ENDED, 0.0, detail, end))
    return events


def pending_reasons(status: Mapping[str, Any]) -> list[str]:
    """Read from a Pod's status why it has no node, or its container has not started (pure)."""
    unscheduled = [
        condition
        for condition in status.get("conditions") or []
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    ]
    states = [container.get("state") or {} for container in status.get("containerStatuses") or []]
    reasons = [*unscheduled, *(state["waiting"] for state in states if state.get("waiting"))]
    return [": ".join(filter(None, (each.get("reason"), each.get("message")))) for each in reasons]


def _message(response: httpx.Response) -> str:
    try:
        value = response.json()
    except ValueError:
        return f"{response.status_code} {response.text[:300]}"
    return f"{response.status_code} {value.get('message', '') if isinstance(value, dict) else value}"

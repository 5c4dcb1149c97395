"""Run boxes as containers of an engine that speaks Docker's API; ``engines.py`` has the engines."""

import contextlib
import importlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from rdukit.box.image import BOX_FOLDER, BOX_LABEL, GRPC_PORT, REST_PORT, USER_ID, BoxEnd, unpack_box
from rdukit.errors import BackendUnavailable, Cancelled, InvalidArgument, NotFound, Unavailable
from rdukit.fence.watch import over_disk, pause_after
from rdukit.http.unix_sockets import REST_SOCKET
from rdukit.interfaces import Clock, SystemClock
from rdukit_platform.backends.container_options import (
    EPOCH_LABEL,
    LIMITS,
    OWNER_LABEL,
    ULIMITS,
    asked_limits,
    container_options,
    uid_of_box,
)
from rdukit_platform.backends.contract import (
    BoxEvent,
    BoxEventKind,
    BoxOwner,
    BoxSpec,
    BoxStats,
    OwnedBox,
    end_of_container,
    is_orphan,
    last_lines,
)
from rdukit_platform.backends.fenced import FencedWires
from rdukit_platform.backends.process import answers_ready

POLL_S: Final = 0.05
REAP_GRACE_S: Final = 10
_NO_CLIENT: Final = "containers need the docker package: pip install 'rdukit[docker]'"


class ContainerBox:
    """A box in a container."""

    def __init__(
        self, container: Any, limits: Mapping[str, str], clock: Clock, started: float, sockets: Path | None = None
    ) -> None:
        """``sockets``: folder of its UNIX sockets, if it has no ports."""
        #: Disk limit that it has exceeded, if any.
        self._excess = ""
        self._has_stopped = threading.Event()
        self._container = container
        self._sockets = sockets
        self._wires: FencedWires | None = None
        self._limits = limits
        self._clock = clock
        self._events = [BoxEvent(BoxEventKind.STARTED, started)]
        self._last_words: str | None = None
        self._ports: Mapping[str, str] = {}

    @property
    def id(self) -> str:
        """The container's id."""
        return str(self._container.id)

    @property
    def rest_url(self) -> str:
        """Return the base address of the REST wire: a socket in its folder, or on the loopback address."""
        if self._sockets is not None:
            return self._open_wires(self._sockets).addresses["rest"]
        return f"http://127.0.0.1:{self._port(REST_PORT)}"

    @property
    def grpc_address(self) -> str:
        """``unix:path`` of the gRPC wire, or its ``host:port`` on the loopback address."""
        if self._sockets is not None:
            return self._open_wires(self._sockets).addresses["grpc"]
        return f"127.0.0.1:{self._port(GRPC_PORT)}"

    @property
    def limits(self) -> Mapping[str, str]:
        """Return the requested limits; an engine applies all of them, or does not start the box."""
        return self._limits

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return bool(self._state().get("Running"))

    def is_ready(self) -> bool:
        """Return whether the box reports that it is ready."""
        is_there = self._sockets is None or os.path.lexists(self._sockets / REST_SOCKET)
        return self.is_alive() and is_there and answers_ready(self.rest_url)

    def logs(self, tail: int | None = None) -> str:
        """Return its log so far, or the last ``tail`` lines of it."""
        if self._last_words is not None:
            return last_lines(self._last_words, tail)
        with _answering():
            try:
                text = self._container.logs(tail="all" if tail is None else tail)
            except _errors().NotFound:
                return ""
        return str(text.decode(errors="replace"))

    def follow(self) -> Iterator[str]:
        """Yield its log line by line till its end."""
        if self._last_words is not None:
            yield from self._last_words.splitlines()
            return
        rest = b""
        blocks = self._container.logs(stream=True, follow=True)
        try:
            for block in blocks:
                *lines, rest = (rest + block).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        finally:
            blocks.close()
            # Its close() would leave the connection to the garbage collector.
            blocks._response.close()
        if rest:
            yield rest.decode(errors="replace")

    def stats(self) -> BoxStats:
        """Return the container's resource use; memory excludes the file cache.

        Raises:
            Unavailable: the box has ended.
        """
        if not self.is_alive():
            raise Unavailable(f"container {self.id[:12]} has ended and uses no resources")
        with _answering():
            value = self._container.stats(stream=False)
        memory = value.get("memory_stats") or {}
        details = memory.get("stats") or {}
        cache = int(details.get("total_inactive_file", details.get("inactive_file", 0)))
        return BoxStats(
            cpu_s=int(value["cpu_stats"]["cpu_usage"]["total_usage"]) / 1e9,
            memory_bytes=max(int(memory.get("usage", 0)) - cache, 0),
            pids=int((value.get("pids_stats") or {}).get("current", 0)),
        )

    def events(self) -> Sequence[BoxEvent]:
        """Return start, readiness and end, as the engine reports them."""
        state = self._state()
        if state and not state.get("Running") and self._events[-1].kind is not BoxEventKind.ENDED:
            time = _seconds(state.get("FinishedAt")) or self._clock.now()
            if state.get("OOMKilled"):
                self._events.append(BoxEvent(BoxEventKind.OUT_OF_MEMORY, time, "the engine's memory limit was reached"))
            status = state.get("ExitCode")
            end = end_of_container(status, bool(state.get("OOMKilled")))
            detail = f"ended with status {status}"
            if self._excess:
                end, detail = BoxEnd.DISK_FULL, f"was ended, it has {self._excess}"
            self._events.append(BoxEvent(BoxEventKind.ENDED, time, detail, end))
        return tuple(self._events)

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.is_alive():
            with _answering(), contextlib.suppress(_errors().NotFound):
                self._container.kill(signal="SIGTERM")

    def stop(self, grace_s: float = 10.0) -> None:
        """Send SIGTERM, then SIGKILL; remove the container, and keep its log here."""
        self._has_stopped.set()
        if self._last_words is not None:
            return
        if self.is_alive():
            with _answering(), contextlib.suppress(_errors().NotFound):
                self._container.stop(timeout=max(int(grace_s), 0))
        self.events()
        words = self.logs()
        with _answering():
            remove(self._container)
        self._last_words = words
        if self._wires is not None:
            self._wires.close()

    def watch_disk(self, folders: Sequence[Path], max_bytes: int) -> None:
        """Watch the size of ``folders`` in a thread, and end the box if they exceed ``max_bytes``."""
        words = [str(folder) for folder in folders]

        def watch() -> None:
            pause_s = pause_after(0.0)
            while not self._has_stopped.wait(pause_s) and not self._excess:
                began = self._clock.monotonic()
                excess = over_disk(max_bytes, LIMITS.disk_files, words, processes_of(self._first_process()))
                if excess:
                    self._excess = excess
                    with contextlib.suppress(Unavailable), _answering():
                        self._container.kill()
                pause_s = pause_after(self._clock.monotonic() - began)

        threading.Thread(target=watch, name="disk-watch", daemon=True).start()

    def _first_process(self) -> int:
        """Return the pid of its first process on the engine's machine; 0: it has ended, or the engine is silent."""
        with contextlib.suppress(Unavailable):
            return int(self._state().get("Pid") or 0)
        return 0

    def wait_ready(self, timeout_s: float, stop: threading.Event | None = None) -> None:
        """Wait until it answers.

        Raises:
            Unavailable: the box ended, or did not answer in time; it is removed.
            Cancelled: ``stop`` was set meanwhile; it is removed.
        """
        deadline = self._clock.monotonic() + timeout_s
        while True:
            if stop is not None and stop.is_set():
                self.stop(0)
                raise Cancelled(f"container {self.id[:12]} was stopped before it was ready")
            if self.is_ready():
                break
            is_late = self._clock.monotonic() > deadline
            if is_late or not self.is_alive():
                ended = self.events()[-1]
                self.stop(0)
                what = f"was not ready in {timeout_s:g} s" if is_late else ended.detail
                end = BoxEnd.LATE if is_late else ended.end or BoxEnd.EXITED
                raise Unavailable(f"container {self.id[:12]} {what}: {self.logs().strip()[-500:]}", end=str(end))
            self._clock.sleep(POLL_S)
        self._events.append(BoxEvent(BoxEventKind.READY, self._clock.now()))

    def _state(self) -> dict[str, Any]:
        if self._last_words is not None:
            return {}
        with _answering():
            try:
                self._container.reload()
            except _errors().NotFound:
                return {}
        state: dict[str, Any] = self._container.attrs["State"]
        return state

    def _open_wires(self, folder: Path) -> FencedWires:
        if self._wires is None:
            self._wires = FencedWires(folder, uid_of_box())
        return self._wires

    def _port(self, inside: int) -> str:
        if not self._ports:
            with _answering():
                self._container.reload()
            published = self._container.attrs["NetworkSettings"]["Ports"] or {}
            self._ports = {port: bound[0]["HostPort"] for port, bound in published.items() if bound}
        try:
            return self._ports[f"{inside}/tcp"]
        except KeyError as cause:
            raise Unavailable(f"container {self.id[:12]} publishes no port {inside}; it has ended") from cause


class EngineBackend:
    """Starts boxes as containers: user 10001 or this process's, a read-only system, no capabilities."""

    name = "engine"
    #: Limits per process of a box.
    ulimits: Mapping[str, int | None] = ULIMITS
    #: Mount option that makes the box's user own a folder in memory, if that is not the uid.
    given = ""

    def __init__(self, url: str, image: str, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._image = image
        try:
            client: Any = importlib.import_module("docker").DockerClient
        except ImportError as cause:
            raise InvalidArgument(_NO_CLIENT) from cause
        try:
            self._client = client(base_url=url, timeout=120)
            self._client.ping()
        except _errors().DockerException as cause:
            if hasattr(self, "_client"):
                self._client.close()
            raise BackendUnavailable(f"{self.name} does not answer at {url}: {cause}") from cause

    def close(self) -> None:
        """Close the engine's socket; boxes keep running."""
        self._client.close()

    def start(self, spec: BoxSpec, timeout_s: float = 30.0, stop: threading.Event | None = None) -> ContainerBox:
        """Start a container and wait until its box answers.

        Raises:
            Unavailable: the engine refuses, or the box ended or was not ready in time; the box is removed.
            Cancelled: ``stop`` was set meanwhile.
        """
        prepare_folders(spec)
        started = self._clock.now()
        with _answering(f"{self.name} does not start box {spec.box}"):
            volumes = self._volumes_of(spec)
            options = container_options(spec, self._image, self._security(spec), volumes, self.ulimits, self.given)
            container = self._client.containers.create(**options)
            try:
                container.start()
            except BaseException:
                remove(container)
                raise
        limits = dict.fromkeys(asked_limits(spec), f"applied by {self.name}")
        sockets = spec.state if spec.has_sockets else None
        box = ContainerBox(container, limits, self._clock, started, sockets)
        if spec.limits.disk_bytes is not None:
            box.watch_disk([spec.state, *spec.outputs], spec.limits.disk_bytes)
        try:
            box.wait_ready(timeout_s, stop)
        except BackendUnavailable:
            raise
        except BaseException:
            box.stop(0)
            raise
        return box

    def owned(self) -> Sequence[OwnedBox]:
        """Find boxes by the containers' labels, also ended ones that were not removed."""
        return self._labelled(OWNER_LABEL)

    def orphans(self, owner: BoxOwner) -> Sequence[OwnedBox]:
        """Find orphans by the containers' labels, also ended ones that were not removed."""
        return tuple(box for box in self._labelled(f"{OWNER_LABEL}={owner.id}") if is_orphan(box.owner, owner))

    def reap(self, orphan: OwnedBox) -> None:
        """Stop and remove the container."""
        with _answering(), contextlib.suppress(_errors().NotFound):
            container = self._client.containers.get(orphan.id)
            container.stop(timeout=REAP_GRACE_S)
            remove(container)

    def read_image(self, image: str, folder: Path) -> str:
        """Copy the folder from a container that is never started. Returns the image's id, which is a digest."""
        with _answering(f"{self.name} does not show image {image!r}"):
            try:
                found = self._client.images.get(image)
            except _errors().ImageNotFound as cause:
                raise NotFound(
                    f"{self.name} has no image {image!r}; build it (rdukit box build) or pull it where the workers' "
                    "engine is"
                ) from cause
            if BOX_LABEL not in (found.labels or {}):
                raise InvalidArgument(
                    f"image {image!r} is not a ModelBox, because it has no label {BOX_LABEL}; build one with: rdukit "
                    "box build"
                )
            container = self._client.containers.create(str(found.id), command=["none"], network_disabled=True)
            try:
                blocks, _ = container.get_archive(BOX_FOLDER)
                unpack_box(blocks, folder)
            finally:
                remove(container)
        return str(found.id)

    def _security(self, spec: BoxSpec) -> list[str]:
        """Return this engine's security options for its filter of system calls."""
        return []

    def _volumes_of(self, spec: BoxSpec) -> Iterable[str]:
        """Return the volumes that the box's image declares."""
        return (self._client.images.get(spec.image or self._image).attrs["Config"].get("Volumes") or {}).keys()

    def _labelled(self, label: str) -> Sequence[OwnedBox]:
        with _answering():
            containers = self._client.api.containers(all=True, filters={"label": label})
        found = [(str(container["Id"]), container["Labels"]) for container in containers]
        return tuple(
            OwnedBox(id, labels.get(BOX_LABEL, ""), BoxOwner(labels[OWNER_LABEL], int(labels.get(EPOCH_LABEL, "0"))))
            for id, labels in sorted(found)
        )


def processes_of(first: int) -> list[str]:
    """Return the folder in ``/proc`` of each process of a container, from its first one; empty if not visible."""
    try:
        own = os.readlink(f"/proc/{first}/ns/pid")
    except OSError:
        return []
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == own:
                found.append(f"/proc/{name}")
    return found


def remove(container: Any) -> None:
    """Remove a container with its volumes; does nothing if it is gone or being removed."""
    try:
        container.remove(force=True, v=True)
    except _errors().NotFound:
        return
    except _errors().APIError as error:
        if error.status_code != HTTPStatus.CONFLICT:
            raise


@contextlib.contextmanager
def _answering(what: str = "the box is unknown") -> Iterator[None]:
    """Convert an engine's errors to rdukit's.

    Raises:
        Unavailable: the engine refuses; the message is its own.
        BackendUnavailable: the engine does not answer.
    """
    requests = importlib.import_module("requests.exceptions")
    try:
        yield
    except _errors().APIError as cause:
        raise Unavailable(f"{what}: {cause.explanation or cause}") from cause
    except (_errors().DockerException, requests.RequestException) as cause:
        raise BackendUnavailable(f"{what}, the engine does not answer: {cause}") from cause


def prepare_folders(spec: BoxSpec) -> None:
    """Create the folders that the box writes; if this process is root, the box's user owns them."""
    for folder in (spec.state, *spec.outputs):
        folder.mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:
            os.chown(folder, USER_ID, USER_ID)


def _seconds(text: object) -> float | None:
    """Parse RFC 3339 with any number of decimals; ``None`` for the engines' year 1."""
    if not isinstance(text, str) or text.startswith("0001"):
        return None
    whole, _, rest = text.partition(".")
    fraction = rest.rstrip("Z").partition("+")[0].partition("-")[0]
    zone = "+00:00" if text.endswith("Z") or not rest else rest[len(fraction) :]
    return datetime.fromisoformat(whole.rstrip("Z") + zone).timestamp() + float(f"0.{fraction or 0}")


def _errors() -> Any:
    return importlib.import_module("docker.errors")

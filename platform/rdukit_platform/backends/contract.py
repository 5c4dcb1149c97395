"""Interface of all backends that run ModelBoxes, and its values."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from rdukit.box.image import BoxEnd
from rdukit.fence.spec import FenceLimits, Way


@dataclass(frozen=True, slots=True)
class BoxLimits:
    """Limits of a box's resources; ``None``: no limit."""

    #: Processor cores, by number: those of the box's lease.
    cores: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    #: Processes and threads together.
    pids: int | None = None
    #: Bytes of all its folders together.
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BoxOwner:
    """Owner that a box was started for. Only the newest epoch of an id may have boxes.

    The platform's ids are jobs and their epochs attempts; a program that keeps its id over restarts counts its starts.
    """

    id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class BoxFence:
    """Fence of a box in backends that need one (processes; a container is one already)."""

    #: Mechanism of the fence, from ``rdukit.fence.probe.what_holds``.
    way: Way
    #: Owner whose boxes may trust the compiled code: ``tenant:<id>``.
    owner: str
    #: Writable home folder of all boxes of this owner, with caches and their key.
    home: Path
    #: Its user and group; only root can choose.
    uid: int | None = None
    #: Limits in addition to the spec's.
    limits: FenceLimits = field(default_factory=FenceLimits)


@dataclass(frozen=True, slots=True)
class ClaimedFolder:
    """A folder whose content lies in a persistent volume claim of Kubernetes."""

    root: Path
    claim: str


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """Specification of a box to run: its name, and the folders that it may write and read."""

    #: Name of the box; without ``folder`` and ``image``, one of rdukit's boxes.
    box: str
    #: Its own folder; the same path inside a container as outside.
    state: Path
    #: Folders that it may read; the same paths inside as outside.
    mounts: Sequence[Path] = ()
    #: Added to the environment, such as ``RDUKIT_LEASE``.
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: BoxLimits = BoxLimits()
    owner: BoxOwner | None = None
    #: Image with the box; without it ``box`` runs from the backend's image. Not for processes.
    image: str | None = None
    #: Whether the box ends with the process that started it (processes only).
    ends_with_parent: bool = True
    #: Open files that it inherits but never uses (processes only): so a file lock lasts as long as the box.
    descriptors: Sequence[int] = ()
    #: Writable folders in addition to its own; inside they have the same paths.
    outputs: Sequence[Path] = ()
    #: UNIX sockets that it may connect to, each alone in its folder; the same paths inside as outside. A container
    #: mounts the folder, because a restarted listener creates the socket again.
    sockets: Sequence[Path] = ()
    #: Folder with the box's YAML and code, among ``mounts``: the box is not one of rdukit's.
    folder: Path | None = None
    #: Its wires are private UNIX sockets in ``state`` instead of ports; a container then has no network.
    has_sockets: bool = False
    #: Fence of the box; requires ``has_sockets``. Without it the box has the rights of its starter.
    fence: BoxFence | None = None
    #: Leased tiles, and run limit in seconds, for a backend that accounts for both (Slurm).
    tiles: int = 0
    run_limit_s: float | None = None
    #: Number of its part of a job on several nodes (fenced processes only); ``None``: a job on one node.
    part: int | None = None
    #: Called while it waits in the backend's queue: with the box, the reason, and the queue's code.
    on_wait: Callable[[Mapping[str, object], str, str], None] | None = None


@dataclass(frozen=True, slots=True)
class BoxStats:
    """Use of resources by a box and its descendants."""

    cpu_s: float
    memory_bytes: int
    pids: int


class BoxEventKind(StrEnum):
    """Kinds of events of a box."""

    STARTED = "started"
    READY = "ready"
    OUT_OF_MEMORY = "out-of-memory"
    ENDED = "ended"


def end_of_container(status: object, ran_out_of_memory: bool) -> BoxEnd:
    """Derive how a container ended from its exit status; 137 is SIGKILL."""
    return BoxEnd.KILLED if status == 137 and not ran_out_of_memory else BoxEnd.EXITED


@dataclass(frozen=True, slots=True)
class BoxEvent:
    """Something that happened to a box, at seconds since 1970. ``end`` belongs to ``ENDED`` events."""

    kind: BoxEventKind
    time: float
    detail: str = ""
    end: BoxEnd | None = None


@dataclass(frozen=True, slots=True)
class OwnedBox:
    """A box that any process started for an owner: ``id`` is the backend's own name for it."""

    id: str
    box: str
    owner: BoxOwner


class BoxProcess(Protocol):
    """The process of a box, as ``subprocess.Popen`` and ``ForkedProcess`` show it."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    def poll(self) -> int | None:
        """Return the exit status (negative: the signal that killed the box); None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended."""
        ...

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        ...

    def terminate(self) -> None:
        """SIGTERM."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...


class RunningBox(Protocol):
    """A box that has been started. Its methods raise ``BackendUnavailable`` if the backend does not answer."""

    @property
    def id(self) -> str:
        """The backend's name for it: a process id, a container's id, a pod's name."""
        ...

    @property
    def rest_url(self) -> str:
        """Base address of the REST wire."""
        ...

    @property
    def grpc_address(self) -> str:
        """``host:port`` or ``unix:path`` of the gRPC wire."""
        ...

    @property
    def limits(self) -> Mapping[str, str]:
        """Return the requested limits by name: ``applied …``, or ``not applied: …`` with the reason."""
        ...

    def is_alive(self) -> bool:
        """Return whether it runs."""
        ...

    def is_ready(self) -> bool:
        """Return whether the box reports that it is ready."""
        ...

    def logs(self, tail: int | None = None) -> str:
        """Return its log so far, or the last ``tail`` lines of it; also after its end."""
        ...

    def follow(self) -> Iterator[str]:
        """Yield its log line by line, from the start till its end."""
        ...

    def stats(self) -> BoxStats:
        """Return what it uses.

        Raises:
            Unavailable: the box has ended.
        """
        ...

    def events(self) -> Sequence[BoxEvent]:
        """Return the box's events so far, in order."""
        ...

    def terminate(self) -> None:
        """Ask it to end; returns at once. ``stop`` must still follow."""
        ...

    def stop(self, grace_s: float = 10.0) -> None:
        """End it gracefully, or by force after ``grace_s`` seconds; returns when only its log is left."""
        ...


class BoxBackend(Protocol):
    """Starts boxes one way."""

    #: Name in settings.
    name: str

    def start(self, spec: BoxSpec, timeout_s: float = 30.0, stop: threading.Event | None = None) -> RunningBox:
        """Start a box and wait until it is ready.

        Raises:
            Unavailable: it ended or was not ready in time; the message has its last words. The box is removed.
            BackendUnavailable: the backend does not answer.
            Cancelled: ``stop`` was set meanwhile. The box is removed.
        """
        ...

    def owned(self) -> Sequence[OwnedBox]:
        """Find all boxes with an owner, of any starter, also ended ones that were not removed."""
        ...

    def orphans(self, owner: BoxOwner) -> Sequence[OwnedBox]:
        """Find remaining boxes of the same owner's earlier epochs."""
        ...

    def reap(self, orphan: OwnedBox) -> None:
        """End and remove an orphaned box; does nothing if it is gone."""
        ...

    def read_image(self, image: str, folder: Path) -> str:
        """Copy the box's folder from an image, without running it. Returns the image's unique id.

        Raises:
            NotFound: the backend has no such image.
            InvalidArgument: it is not a ModelBox, or the backend starts no images.
            BackendUnavailable: the backend does not answer.
        """
        ...

    def close(self) -> None:
        """Close the backend; boxes keep running."""
        ...


@runtime_checkable
class TriedBackend(Protocol):
    """A backend that relies on others to block its boxes' network, and can only probe the result."""

    def check_rights(self) -> None:
        """Check that it answers and has all necessary rights.

        Raises:
            PermissionDenied: a right is missing; the message names it.
            Unavailable: the cluster does not answer, or does not report the rights.
        """
        ...

    def try_network(self, timeout_s: float = 90.0) -> str:
        """Probe the network of a box with sockets. Returns why it is open; empty if it is blocked.

        Afterwards every box probes it again, and does not start if it is open.

        Raises:
            Unavailable: the probe cannot run.
        """
        ...


def is_orphan(found: BoxOwner, owner: BoxOwner) -> bool:
    """Return whether ``owner`` left behind a box that ``found`` started."""
    return found.id == owner.id and found.epoch < owner.epoch


def last_lines(text: str, tail: int | None) -> str:
    """Return the last ``tail`` lines of a log; the whole log without ``tail``."""
    if tail is None:
        return text
    lines = text.splitlines(keepends=True)
    return "".join(lines[max(len(lines) - tail, 0) :])

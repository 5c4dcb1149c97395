"""Interface of every way to run a ModelBox, and the values that go in and out."""

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
    """Limits of what a box may use; None: no limit."""

    #: Processor cores, by number: those of the box's lease.
    cores: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    #: Processes and threads together.
    pids: int | None = None
    #: Of all that it keeps in its folders.
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BoxOwner:
    """Owner that a box was started for. Of one id only the newest epoch may have boxes.

    The platform's ids are jobs and their epochs attempts; a program that keeps its id over restarts counts its starts.
    """

    id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class BoxFence:
    """The fence of a box, where the backend puts up one (processes; a container is one)."""

    #: Who puts it up: what ``rdukit.fence.probe.what_holds`` said.
    way: Way
    #: Whose boxes may trust what it compiles: ``tenant:<id>``.
    owner: str
    #: Its home folder, and of all boxes of this owner: caches and their key. It writes there.
    home: Path
    #: Its user and group; only root can choose.
    uid: int | None = None
    #: Beside those of the spec.
    limits: FenceLimits = field(default_factory=FenceLimits)


@dataclass(frozen=True, slots=True)
class ClaimedFolder:
    """A folder whose content lies in a persistent volume claim of Kubernetes."""

    root: Path
    claim: str


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """Specification of a box to run: which one, where it may write, and what else it may read."""

    #: Its name; without ``folder`` and ``image`` that of one that comes with rdukit.
    box: str
    #: Its own folder; the same path inside a container as outside.
    state: Path
    #: Folders that it may read; the same paths inside as outside.
    mounts: Sequence[Path] = ()
    #: Added to the environment, such as ``RDUKIT_LEASE``.
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: BoxLimits = BoxLimits()
    owner: BoxOwner | None = None
    #: Image that has the box; without one ``box`` runs from the backend's image. Processes have none.
    image: str | None = None
    #: The box ends with the process that started it, where the backend can do that (processes).
    ends_with_parent: bool = True
    #: Open files that it inherits and never uses, where the backend can do that (processes): a file lock lasts as long
    #: as the box.
    descriptors: Sequence[int] = ()
    #: Folders that it may write besides its own; the same paths inside as outside.
    outputs: Sequence[Path] = ()
    #: UNIX sockets that it may connect to, each alone in its folder; the same paths inside as outside. A container is
    #: given the folder: whoever listens there makes the socket anew when it is restarted.
    sockets: Sequence[Path] = ()
    #: Folder with the box's YAML and code, among ``mounts``: it does not come with rdukit.
    folder: Path | None = None
    #: Its wires are UNIX sockets in ``state``, made private, rather than ports, and a container has no network then.
    has_sockets: bool = False
    #: Without one it runs as the process that starts it does. With one it is to have sockets.
    fence: BoxFence | None = None
    #: Tiles that are leased for it, and seconds that its work may take, for a backend that counts both (Slurm).
    tiles: int = 0
    run_limit_s: float | None = None
    #: Number of the part that it has of a job on several nodes (fenced processes only); ``None``: of one node.
    part: int | None = None
    #: Called while it waits for its place, where the backend has a queue: which box, why in words, the queue's code.
    on_wait: Callable[[Mapping[str, object], str, str], None] | None = None


@dataclass(frozen=True, slots=True)
class BoxStats:
    """Use of resources by a box and all that it started."""

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
    """Something that happened to a box, at seconds since 1970. ``end``: of an ``ENDED``."""

    kind: BoxEventKind
    time: float
    detail: str = ""
    end: BoxEnd | None = None


@dataclass(frozen=True, slots=True)
class OwnedBox:
    """A box that was started for an owner, by whomever: ``id`` is the backend's own name for it."""

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
        """Return its exit status, negative: the signal that killed it; None while it runs."""
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
    """A box that has been started. Its calls raise ``BackendUnavailable`` where the
    backend does not answer."""

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
        """Limits that were asked for, by name: ``applied …``, or ``not applied: …`` with the reason."""
        ...

    def is_alive(self) -> bool:
        """Return whether it runs."""
        ...

    def is_ready(self) -> bool:
        """Return whether it says that it can serve."""
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
            Unavailable: it has ended.
        """
        ...

    def events(self) -> Sequence[BoxEvent]:
        """Return what has happened to it so far, in order."""
        ...

    def terminate(self) -> None:
        """Ask it to end; returns at once. It still is to be stopped."""
        ...

    def stop(self, grace_s: float = 10.0) -> None:
        """End it in order, by force after ``grace_s`` seconds; returns when nothing of it is left but its log."""
        ...


class BoxBackend(Protocol):
    """Starts boxes one way."""

    #: Name in settings.
    name: str

    def start(self, spec: BoxSpec, timeout_s: float = 30.0, stop: threading.Event | None = None) -> RunningBox:
        """Start a box and wait until it is ready.

        Raises:
            Unavailable: it ended or was not ready in time; the message has its last words. Nothing of it is left.
            BackendUnavailable: the backend does not answer.
            Cancelled: ``stop`` was set meanwhile. Nothing of it is left.
        """
        ...

    def owned(self) -> Sequence[OwnedBox]:
        """Find all boxes that have an owner, whoever started them, also those that have ended and were not removed."""
        ...

    def orphans(self, owner: BoxOwner) -> Sequence[OwnedBox]:
        """Boxes of the same owner's earlier epochs that are left. Boxes of others and of this epoch are none."""
        ...

    def reap(self, orphan: OwnedBox) -> None:
        """End a box that somebody left behind, and remove it; nothing happens if it has gone."""
        ...

    def read_image(self, image: str, folder: Path) -> str:
        """Copy the box's folder out of an image; nothing of the image runs. Returns what names it and no other.

        Raises:
            NotFound: there is no such image where boxes are started.
            InvalidArgument: it is no ModelBox, or the backend starts no images.
            BackendUnavailable: the backend does not answer.
        """
        ...

    def close(self) -> None:
        """Let go of the backend; boxes go on."""
        ...


@runtime_checkable
class TriedBackend(Protocol):
    """A backend that asks others to keep its boxes from every network, and can only try whether they do."""

    def check_rights(self) -> None:
        """See that it answers and may do all that is asked of it.

        Raises:
            PermissionDenied: it may not; the message says what.
            Unavailable: it does not answer, or does not say.
        """
        ...

    def try_network(self, timeout_s: float = 90.0) -> str:
        """Try what a box with sockets reaches. Returns why that is too much, nothing where it reaches no network.

        After that every box tries it again before it begins, and does not begin where it fails.

        Raises:
            Unavailable: it cannot be tried.
        """
        ...


def is_orphan(found: BoxOwner, owner: BoxOwner) -> bool:
    """Return whether a box that ``found`` started is one that ``owner`` left behind."""
    return found.id == owner.id and found.epoch < owner.epoch


def last_lines(text: str, tail: int | None) -> str:
    """Return the last ``tail`` lines of a log; all of it without ``tail``."""
    if tail is None:
        return text
    lines = text.splitlines(keepends=True)
    return "".join(lines[max(len(lines) - tail, 0) :])

"""What every way to run a box offers, and the values that go in and out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Limits:
    """What a box may use; None: no limit."""

    #: Processor cores, by number: those of the box's lease.
    cores: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    #: Processes and threads together.
    pids: int | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """Who started a box. A platform keeps its id over restarts and counts its starts as epochs."""

    id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """Which box to run, where it may write, and what else it may read."""

    box: str
    #: Its own folder; the same path inside a container as outside.
    state: Path
    #: Folders that it may read; the same paths inside as outside.
    mounts: Sequence[Path] = ()
    #: Added to the environment, such as ``RDUKIT_LEASE``.
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    owner: Owner | None = None
    #: Image that has the box; without one ``box`` runs from the backend's image. Processes have none.
    image: str | None = None
    #: The box ends with the process that started it, where the backend can do that (processes).
    ends_with_parent: bool = True


@dataclass(frozen=True, slots=True)
class Stats:
    """What a box and all it started use now."""

    cpu_s: float
    memory_bytes: int
    pids: int


class EventKind(StrEnum):
    """What can happen to a box."""

    STARTED = "started"
    READY = "ready"
    OUT_OF_MEMORY = "out-of-memory"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class BoxEvent:
    """Something that happened to a box, at seconds since 1970."""

    kind: EventKind
    time: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A box that an earlier epoch of its owner left behind: ``id`` is the backend's own name for it."""

    id: str
    box: str
    owner: Owner


class RunningBox(Protocol):
    """A box that has been started."""

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
        """``host:port`` of the gRPC wire."""
        ...

    @property
    def limits(self) -> Mapping[str, str]:
        """Each limit that was asked for, by name: ``applied …``, or ``not applied: …`` with the reason."""
        ...

    def is_alive(self) -> bool:
        """It has not ended."""
        ...

    def is_ready(self) -> bool:
        """It says that it can serve."""
        ...

    def logs(self) -> str:
        """What it has written to its log so far; also after its end."""
        ...

    def follow(self) -> Iterator[str]:
        """Its log line by line, from the start till its end."""
        ...

    def stats(self) -> Stats:
        """What it uses.

        Raises:
            Unavailable: it has ended.
        """
        ...

    def events(self) -> Sequence[BoxEvent]:
        """What has happened to it so far, in order."""
        ...

    def stop(self, grace_s: float = 10.0) -> None:
        """End it in order, by force after ``grace_s`` seconds; returns when nothing of it is left but its log."""
        ...


class BoxBackend(Protocol):
    """Starts boxes one way."""

    #: Name in settings.
    name: str

    def start(self, spec: BoxSpec, timeout_s: float = 30.0) -> RunningBox:
        """Start a box and wait until it is ready.

        Raises:
            Unavailable: it ended or was not ready in time; the message has its last words. Nothing of it is left.
        """
        ...

    def orphans(self, owner: Owner) -> Sequence[Orphan]:
        """Boxes of the same owner's earlier epochs that still run. Boxes of others and of this epoch are none."""
        ...

    def reap(self, orphan: Orphan) -> None:
        """End an orphan and remove it; nothing happens if it has gone."""
        ...


def is_orphan(found: Owner, owner: Owner) -> bool:
    """Whether a box that ``found`` started is one that ``owner`` left behind."""
    return found.id == owner.id and found.epoch < owner.epoch

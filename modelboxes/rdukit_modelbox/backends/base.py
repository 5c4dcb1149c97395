"""What every way to run a box offers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """Which box to run, where it may write, and what else it may read."""

    box: str
    state: Path
    mounts: Sequence[Path] = ()
    #: Added to the environment, such as ``RDUKIT_LEASE``.
    environment: Mapping[str, str] = field(default_factory=dict)


class RunningBox(Protocol):
    """A box that answers."""

    @property
    def rest_url(self) -> str:
        """Base address of the REST wire."""
        ...

    @property
    def grpc_address(self) -> str:
        """``host:port`` of the gRPC wire."""
        ...

    def is_alive(self) -> bool:
        """It has not ended."""
        ...

    def logs(self) -> str:
        """What it has written to its log so far."""
        ...

    def stop(self, grace_s: float = 10.0) -> None:
        """End it in order, by force after ``grace_s`` seconds; returns when it has ended."""
        ...


class BoxBackend(Protocol):
    """Starts boxes one way."""

    #: Name in settings.
    name: str

    def start(self, spec: BoxSpec, timeout_s: float = 30.0) -> RunningBox:
        """Start a box and wait until it is ready.

        Raises:
            Unavailable: it ended or was not ready in time; the message has its last words.
        """
        ...

"""Answers of the API as typed values: one dataclass per schema, with the same names.

Unknown keys (of a newer platform) are ignored, and missing keys (of an older one) take their defaults.

These are not the gateway's pydantic models. Shared models were tried for webhooks: they saved 2 lines, and importing
pydantic raised ``rdukit webhook list`` from 0.39 s to 0.69 s of processor time.
``tests/unit/platform/test_client_values.py`` compares the names of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar

from rdukit.errors import InvalidArgument
from rdukit_platform.jobs.fields import JobFields

V = TypeVar("V")


class HasId(Protocol):
    """An object with an id, such as an artifact."""

    @property
    def id(self) -> str: ...


def ids_of(inputs: "Mapping[str, HasId | str] | None") -> dict[str, str]:
    """Return the ids of artifacts by slot.

    Raises:
        InvalidArgument: ``inputs`` is not a mapping.
    """
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InvalidArgument(f"inputs is {inputs!r}; expected a mapping of slots to artifacts or their ids")
    return {slot: each if isinstance(each, str) else each.id for slot, each in (inputs or {}).items()}


def read_value(cls: type[V], value: Mapping[str, Any], **replaced: object) -> V:
    """Create a ``cls`` from the keys of ``value`` that it has; ``replaced`` overrides them."""
    known = {each.name for each in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: each for name, each in {**value, **replaced}.items() if name in known})


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """An attempt at a job. Times are seconds since the epoch; ``parts`` are its members on further nodes."""

    number: int
    node: str | None = None
    worker: str | None = None
    outcome: str | None = None
    error: dict[str, Any] | None = None
    tiles: list[str] | None = None
    published_at: float = 0.0
    claimed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    box: dict[str, Any] | None = None
    parts: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class JobInfo(JobFields):
    """A job as last read; ``jobs/fields.py`` has its other fields. ``outputs`` has ids of artifacts by slot."""

    attempts: tuple[AttemptInfo, ...] | None = None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "JobInfo":
        """Parse the API's description of a job."""
        attempts = value.get("attempts")
        read = None if attempts is None else tuple(read_value(AttemptInfo, each) for each in attempts)
        return read_value(cls, value, attempts=read)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job: ``kind`` is ``state``, ``progress`` or ``log``."""

    sequence: int
    kind: str
    at: float
    attempt: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """Figures of one progress event; a retry may repeat steps, with a later ``attempt``."""

    sequence: int
    at: float
    attempt: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of a folder."""

    path: str
    digest: str
    bytes: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class ArtifactInfo:
    """An artifact. ``digest`` is the SHA-256 of the file, or of the folder's manifest."""

    id: str
    name: str
    kind: str
    digest: str
    bytes: int
    is_folder: bool
    file_name: str | None = None
    job_id: str | None = None
    slot: str | None = None
    created_at: float = 0.0
    pinned_at: float | None = None
    deleted_at: float | None = None
    files: tuple[FileInfo, ...] | None = None
    empty_folders: tuple[str, ...] | None = None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "ArtifactInfo":
        """Parse the API's description of an artifact."""
        files, folders = value.get("files"), value.get("empty_folders")
        read = None if files is None else tuple(read_value(FileInfo, each) for each in files)
        return read_value(cls, value, files=read, empty_folders=None if folders is None else tuple(folders))

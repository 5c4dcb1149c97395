"""Artifacts on the wire."""

from pydantic import BaseModel


class Artifact(BaseModel):
    """A named content. ``digest`` is the SHA-256 of the file, or of the folder's manifest."""

    id: str
    name: str
    kind: str
    digest: str
    bytes: int
    is_folder: bool
    #: Of a file: what it was called when it came.
    file_name: str | None
    job_id: str | None
    slot: str | None
    created_at: float
    files: list["File"] | None = None


class File(BaseModel):
    """A file of a folder."""

    path: str
    digest: str
    bytes: int


class ArtifactPage(BaseModel):
    """Artifacts, newest first."""

    artifacts: list[Artifact]
    next_cursor: str | None


class Link(BaseModel):
    """``child`` was made from ``parent``, which job ``job_id`` had in ``slot``."""

    child: str
    parent: str
    slot: str
    job_id: str


class Lineage(BaseModel):
    """What an artifact comes from and what came from it."""

    artifacts: list[Artifact]
    links: list[Link]

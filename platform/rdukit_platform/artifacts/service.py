"""Artifacts of a tenant: rows over the store's content, their lineage, and their API views."""

import re
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import ContentDamaged, InvalidArgument, NotFound, suggest
from rdukit_platform.artifacts.manifest import MAX_NAME_BYTES, FolderEntry
from rdukit_platform.artifacts.quota import check_quota
from rdukit_platform.artifacts.store import BlobStore, Content
from rdukit_platform.db.models import ArtifactRow, JobRow, LineageRow
from rdukit_platform.db.rows import new_id, read_page

MAX_FILE_NAME: Final = 128
#: Kinds of artifacts that jobs make; users may choose other kinds for artifacts that they add.
KINDS: Final = ("dataset", "pef", "checkpoint", "report", "predictions", "metrics", "picture", "profile", "box")
#: Largest number of a tenant's own kinds that an error message names.
MAX_KINDS: Final = 32


def record_artifact(
    session: Session, tenant_id: str, name: str, kind: str, content: Content, now: float, file_name: str | None = None,
    artifact_id: str | None = None,
) -> ArtifactRow:  # fmt: skip
    """Record an artifact for content that is already in the store.

    Args:
        file_name: original name of a file; its ending gives the format.
        artifact_id: by default a new one.
    Raises:
        QuotaExceeded: it exceeds the tenant's quota.
    """
    check_quota(session, tenant_id, content.bytes, is_kept=True)
    row = ArtifactRow(
        id=artifact_id or new_id("art"),
        tenant_id=tenant_id,
        name=name,
        kind=kind,
        digest=content.digest,
        bytes=content.bytes,
        is_folder=content.is_folder,
        file_name=file_name,
        created_at=now,
    )
    session.add(row)
    session.flush()
    return row


def get_artifact(
    session: Session, tenant_id: str, artifact_id: str, *, is_kept: bool = False, is_locked: bool = False
) -> ArtifactRow:
    """Return one of the tenant's artifacts.

    Args:
        is_kept: lock the row, so that it cannot be deleted before the transaction ends.
        is_locked: lock it exclusively until then.
    Raises:
        NotFound: the tenant has no such artifact, or has deleted it.
    """
    row = session.get(ArtifactRow, artifact_id)
    if row is None or row.tenant_id != tenant_id:
        raise NotFound(f"there is no artifact {artifact_id!r}; list yours with: rdukit artifact list")
    if is_kept or is_locked:
        session.flush()
        session.refresh(row, with_for_update={"read": not is_locked})
    if row.deleted_at is not None:
        raise NotFound(f"artifact {artifact_id!r} was deleted; list the existing ones with: rdukit artifact list")
    return row


def list_artifacts(
    session: Session,
    tenant_id: str,
    kind: str | None = None,
    job_id: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> tuple[list[ArtifactRow], str | None]:
    """Return the tenant's artifacts, newest first, and the cursor of the next page.

    Raises:
        InvalidArgument: unknown kind, or invalid cursor.
    """
    query = select(ArtifactRow).where(ArtifactRow.tenant_id == tenant_id, ArtifactRow.deleted_at.is_(None))
    if kind is not None:
        query = query.where(ArtifactRow.kind == kind)
    if job_id is not None:
        query = query.where(ArtifactRow.job_id == job_id)
    rows, following = read_page(session, query, ArtifactRow.created_at, ArtifactRow.id, limit, cursor)
    if not rows and kind is not None:
        _check_kind(session, tenant_id, kind)
    return rows, following


def _check_kind(session: Session, tenant_id: str, kind: str) -> None:
    own = select(ArtifactRow.kind).where(ArtifactRow.tenant_id == tenant_id, ArtifactRow.deleted_at.is_(None))
    legal = list(dict.fromkeys([*KINDS, *session.scalars(own.distinct().order_by(ArtifactRow.kind).limit(MAX_KINDS))]))
    if kind not in legal:
        raise InvalidArgument(
            f"unknown artifact kind {kind[:64]!r}; expected {', '.join(legal)}.{suggest(kind[:64], legal)}",
            legal=legal,
        )


def plain_name(text: str | None) -> str | None:
    """Return a file's name without folders, valid on any file system; ``None`` if nothing is left."""
    name = re.sub(r"[^\w.+-]", "_", (text or "").replace("\\", "/").rsplit("/", 1)[-1])[-MAX_FILE_NAME:]
    return name.encode()[-MAX_NAME_BYTES:].decode(errors="ignore").lstrip(".-") or None


def find_file(store: BlobStore, row: ArtifactRow, path: str | None) -> FolderEntry:
    """Return the file that a request for content names.

    Raises:
        InvalidArgument: the artifact is a folder and no path is given, or a file and one is.
        NotFound: the folder has no such file; the message lists some it has.
    """
    if not row.is_folder:
        if path is not None:
            raise InvalidArgument(f"artifact {row.id} is a file and has no path {path!r} inside")
        return FolderEntry(row.name, row.digest, row.bytes)
    entries = store.entries(row.digest)
    names = [entry.path for entry in entries]
    if path is None:
        raise InvalidArgument(
            f"artifact {row.id} is a folder; choose a file with ?path=, one of {', '.join(names[:20])}"
        )
    for entry in entries:
        if entry.path == path:
            return entry
    raise NotFound(f"artifact {row.id} has no file {path!r}; expected {', '.join(names[:20])}")


def parents_and_children(session: Session, row: ArtifactRow) -> tuple[Sequence[LineageRow], Sequence[LineageRow]]:
    """Return the lineage links to an artifact's sources, and to its results."""
    up = session.scalars(select(LineageRow).where(LineageRow.child == row.id).order_by(LineageRow.slot)).all()
    down = session.scalars(select(LineageRow).where(LineageRow.parent == row.id).order_by(LineageRow.child)).all()
    return up, down


def walk_lineage(session: Session, tenant_id: str, artifact_id: str) -> tuple[list[ArtifactRow], list[LineageRow]]:
    """Return an artifact's ancestors and descendants: artifacts, oldest first, and the links."""
    start = get_artifact(session, tenant_id, artifact_id)
    links: dict[tuple[str, str, str], LineageRow] = {}
    found = {start.id: start}
    for is_up in (True, False):
        pending = [start]
        while pending:
            sides = parents_and_children(session, pending.pop())
            for link in sides[0] if is_up else sides[1]:
                links[link.child, link.parent, link.slot] = link
                other = link.parent if is_up else link.child
                if other not in found:
                    row = session.get(ArtifactRow, other)
                    if row is not None and row.tenant_id == tenant_id:
                        found[other] = row
                        pending.append(row)
    return sorted(found.values(), key=lambda row: (row.created_at, row.id)), list(links.values())


def verify_artifact(store: BlobStore, row: ArtifactRow) -> "VerifiedArtifact":
    """Read all of an artifact's content and compare it with its digests."""
    found = VerifiedArtifact(id=row.id, files=0, bytes=0, problems=[])
    entries: list[tuple[str | None, str, int]] = [(None, row.digest, row.bytes)]
    if row.is_folder:
        try:
            entries = [(entry.path, entry.digest, entry.bytes) for entry in store.entries(row.digest)]
        except (NotFound, ContentDamaged) as error:
            found.problems.append(Problem(path=None, digest=row.digest, problem=error.message))
            entries = []
    for path, digest, size in entries:
        try:
            read = sum(map(len, store.read_kept(digest)))
            if read != size:
                raise ContentDamaged(f"content {digest} has {read} bytes, not {size}")
            found.files, found.bytes = found.files + 1, found.bytes + read
        except (NotFound, ContentDamaged) as error:
            found.problems.append(Problem(path=path, digest=digest, problem=error.message))
    return found


def read_lineage_jobs(
    session: Session, tenant_id: str, rows: Sequence[ArtifactRow], links: Sequence[LineageRow], *, with_words: bool
) -> "list[LineageJob]":
    """Return the jobs of a lineage, oldest first. ``with_words``: include names and verbs."""
    ids = {link.job_id for link in links} | {row.job_id for row in rows}
    ids.discard(None)
    query = select(JobRow).where(JobRow.tenant_id == tenant_id, JobRow.id.in_(ids))
    jobs = session.scalars(query.order_by(JobRow.created_at, JobRow.id)).all()
    if not with_words:
        return [LineageJob(id=job.id) for job in jobs]
    return [LineageJob(id=job.id, name=job.name, box=job.box, verb=job.verb, state=job.state) for job in jobs]


class Artifact(BaseModel):
    """A named content. ``digest`` is the SHA-256 of the file, or of the folder's manifest."""

    id: str
    name: str
    kind: str
    digest: str
    bytes: int
    is_folder: bool
    #: Original name of a file.
    file_name: str | None
    job_id: str | None
    slot: str | None
    created_at: float
    #: Time at which it was pinned.
    pinned_at: float | None
    #: Time of its deletion, in lineage only.
    deleted_at: float | None
    files: list["File"] | None = None
    #: Empty folders inside a folder.
    empty_folders: list[str] | None = None


class File(BaseModel):
    """A file of a folder."""

    path: str
    digest: str
    bytes: int
    #: Readers of the file may also run it.
    executable: bool = False


class ArtifactPage(BaseModel):
    """Artifacts, newest first."""

    artifacts: list[Artifact]
    next_cursor: str | None


class ArtifactUseView(BaseModel):
    """Bytes and number of a tenant's artifacts; ``limit_bytes``: its limit; 0: no limit."""

    artifacts: int
    bytes: int
    limit_bytes: int


class Deleted(BaseModel):
    """Result of a deletion; the content stays if other artifacts have it."""

    id: str
    bytes: int
    same_content: list[str]


class Collected(BaseModel):
    """Result of a collection: removed content, or content to remove (``dry_run``); ``young``: blobs that rows may still
    refer to later.
    """

    removed: int
    removed_bytes: int
    kept: int
    young: int
    dry_run: bool


class Link(BaseModel):
    """``child`` was made from ``parent``, the input ``slot`` of job ``job_id``; without a job, ``child`` names it in
    ``slot``.
    """

    child: str
    parent: str
    slot: str
    job_id: str | None


class LineageJob(BaseModel):
    """A job of a lineage; only the id is shown if the token may not read jobs."""

    id: str
    name: str | None = None
    box: str | None = None
    verb: str | None = None
    state: str | None = None


class Lineage(BaseModel):
    """Lineage of an artifact: its ancestors and descendants, and the jobs that made them."""

    artifacts: list[Artifact]
    links: list[Link]
    jobs: list[LineageJob]


class Problem(BaseModel):
    """Missing or damaged content. ``path``: file in a folder; null: the file itself, or the folder's manifest."""

    path: str | None
    digest: str
    problem: str


class VerifiedArtifact(BaseModel):
    """Result of reading all of an artifact's content."""

    id: str
    files: int
    bytes: int
    problems: list[Problem]

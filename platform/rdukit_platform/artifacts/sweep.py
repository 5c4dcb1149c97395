"""Collection of content that no row of the database refers to: mark, then sweep.

Invariant: a blob is removed only if no present row, and no row about to be written, refers to it. Rows follow their
content: within ``BlobStore.holding``, within an attempt, or within a grace age. So the sweep reads the holds first,
then the rows, then the blobs. Content that is younger than the oldest hold or open attempt stays.
A blob that is added again during the sweep gets a new time, which is checked under the store's lock; in a bucket it is
another object.

Each step removes one file, in any order, so a sweep can be killed at any point; the next one removes the rest.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rdukit.errors import ContentDamaged, NotFound
from rdukit.settings import resolve
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ArtifactRow, AttemptRow, BoxRow, JobRow
from rdukit_platform.settings import ARTIFACT_GRACE_S

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Swept:
    """Result of a sweep: blobs and bytes removed (in a dry run: removable), kept, and too young to decide."""

    removed: int
    removed_bytes: int
    kept: int
    young: int
    is_dry: bool


def collect(
    database: Database,
    store: BlobStore,
    now: float,
    grace_s: float | None = None,
    *,
    is_dry: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
) -> Swept:
    """Remove content without references.

    Args:
        grace_s: age below which content stays; by default the setting's.
        on_step: called with the name of each step before it; raising ends the sweep.
    Raises:
        Conflict: another sweep is under way.
        ContentDamaged: a folder's manifest cannot be read, so its content is unknown.
    """
    grace_s = resolve(ARTIFACT_GRACE_S) if grace_s is None else grace_s
    with store.alone():
        held = store.held_since()
        with database.read() as session:
            carried = read_carried(session)
            began = session.scalars(
                select(func.min(AttemptRow.published_at)).where(AttemptRow.ended_at.is_(None))
            ).one()
            files, folders = read_roots(session)
        before = min(time for time in (now - grace_s, held, began) if time is not None) - store.slack_s
        on_step("mark")
        marked = mark(store, files, folders) | _mark_carried(store, carried)
        removed = removed_bytes = kept = young = 0
        for blob in store.blobs():
            if blob.digest in marked and not blob.is_surplus:
                kept += 1
            elif blob.written_at >= before:
                young += 1
            else:
                on_step(blob.digest)
                if is_dry or store.discard(blob, before):
                    removed, removed_bytes = removed + 1, removed_bytes + blob.bytes
        if not is_dry:
            store.clear_incoming(before, on_step)
    if removed and not is_dry:
        logger.info("content collected blobs=%d bytes=%d", removed, removed_bytes)
    return Swept(removed, removed_bytes, kept, young, is_dry)


def read_roots(session: Session) -> tuple[set[str], dict[str, str]]:
    """Return the digests that rows refer to: those of files, and those of folders with their artifact's or box's id."""
    rows = session.execute(
        select(ArtifactRow.digest, ArtifactRow.is_folder, ArtifactRow.id).where(ArtifactRow.deleted_at.is_(None))
    ).all()
    installed = select(BoxRow.digest, BoxRow.id).where(BoxRow.uninstalled_at.is_(None), BoxRow.image.is_(None))
    folders = {digest: id for digest, is_folder, id in rows if is_folder}
    for digest, box_id in session.execute(installed):
        folders.setdefault(digest, box_id)
    return {digest for digest, is_folder, _ in rows if not is_folder}, folders


def read_carried(session: Session) -> list[str]:
    """Return the digests of partial outputs that open jobs keep for later attempts."""
    query = select(AttemptRow.kept).join(JobRow, JobRow.id == AttemptRow.job_id)
    found = session.scalars(query.where(AttemptRow.kept.is_not(None), JobRow.ended_at.is_(None)))
    return [digest for digest in found if digest is not None]


def _mark_carried(store: BlobStore, digests: Iterable[str]) -> set[str]:
    """Return the digests of all blobs of partial outputs. Missing ones are ignored: their job starts over."""
    marked = set(digests)
    for digest in list(marked):
        with suppress(NotFound, ContentDamaged):
            marked.update(entry.digest for entry in store.entries(digest))
    return marked


def mark(store: BlobStore, files: set[str], folders: dict[str, str]) -> set[str]:
    """Return the digests of all blobs of these files and folders.

    Raises:
        ContentDamaged: a folder's manifest is missing or damaged; nothing may be removed until that is repaired.
    """
    marked = files | set(folders)
    for digest, id in folders.items():
        try:
            marked.update(entry.digest for entry in store.entries(digest))
        except (NotFound, ContentDamaged) as cause:
            raise ContentDamaged(
                f"nothing was collected, because the list of files of {id} cannot be read ({cause}); add its content "
                "again "
                f"with rdukit artifact add, or delete it: rdukit artifact delete {id}"
            ) from cause
    return marked

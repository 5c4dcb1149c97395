"""Partial outputs that a job carries from node to node, through the store of artifacts.

A job's folder stays on the node that it ran on. With several nodes, an attempt whose job continues stores its output
folder, such as a training's checkpoint. An attempt on another node begins with it.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import func, select

from rdukit.errors import ContentDamaged, InvalidArgument, NotFound, StoreUnavailable
from rdukit.files.atomic import remove_tree
from rdukit.files.tree import RUNNABLE
from rdukit_platform.db.models import AttemptRow, JobRow, NodeRow
from rdukit_platform.worker.context import WorkerContext

logger = logging.getLogger(__name__)

#: Largest number of earlier attempts examined.
MAX_EARLIER: Final = 50


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """Earlier attempt: its node, and the digest of the content it stored."""

    node: str | None
    kept: str | None


def choose_work(earlier: Iterable[EarlierAttempt], here: str, *, has_folder: bool = True) -> str | None:
    """Choose the stored content with which an attempt begins (pure); ``None``: the local folder.

    Args:
        earlier: newest first. The newest attempt that ran here or stored content has the most progress.
        has_folder: an output folder exists here; without one no attempt has run here.
    """
    for attempt in earlier:
        if has_folder and attempt.node in (here, None):
            return None
        if attempt.kept is not None:
            return attempt.kept
    return None


@contextmanager
def keeping_work(context: WorkerContext, output: Path) -> Iterator[str | None]:
    """Store the output folder, and hold it while the block records its digest. Yields the digest.

    ``None``: the folder is empty, this is the only node, or storing failed.
    """
    if not output.is_dir() or not any(output.iterdir()) or not _has_others(context):
        yield None
        return
    with ExitStack() as held:
        digest: str | None = None
        try:
            held.enter_context(context.store.holding())
            digest = context.store.add_path(output).digest
        except (InvalidArgument, NotFound, StoreUnavailable, OSError) as error:
            # A box may have left unusable files, or the store is full; the next attempt begins without them.
            logger.warning("work not kept folder=%s error=%s", output, error)
        yield digest


def bring_work(context: WorkerContext, job: JobRow, output: Path) -> None:
    """Fetch the partial outputs of an attempt on another node into the output folder, all or nothing."""
    if job.attempt == 1:
        return
    earlier = (AttemptRow.job_id == job.id, AttemptRow.number < job.attempt)
    query = select(AttemptRow.node, AttemptRow.kept).where(*earlier).order_by(AttemptRow.number.desc())
    with context.database.read() as session:
        rows = session.execute(query.limit(MAX_EARLIER)).all()
    before = (EarlierAttempt(node, kept) for node, kept in rows)
    digest = choose_work(before, context.node, has_folder=output.is_dir())
    if digest is None:
        return
    remove_tree(output)
    coming = output.with_name("coming")
    remove_tree(coming)
    try:
        context.store.materialize(digest, is_folder=True, target=coming)
    except (NotFound, ContentDamaged) as error:
        logger.warning("work not brought job=%s error=%s", job.id, error)
        remove_tree(coming)
        return
    for path in coming.rglob("*"):
        if path.is_file():
            path.chmod(0o600 | path.stat().st_mode & RUNNABLE)
    coming.rename(output)
    logger.info("work brought job=%s digest=%s", job.id, digest)


def _has_others(context: WorkerContext) -> bool:
    with context.database.read() as session:
        others = select(func.count()).select_from(NodeRow).where(NodeRow.name != context.node)
        return session.scalars(others).one() > 0

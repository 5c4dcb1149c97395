"""Reuse of results: a job of the same tenant did the same with the same content, and its outputs still exist.

The key is a digest of all that determines a job's outputs: the box's description with its compiler version, the verb,
all parameters, and the content of each input.
"""

import hashlib
import json
from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit import __version__
from rdukit.errors import NotFound
from rdukit_platform.artifacts.service import get_artifact
from rdukit_platform.catalog.model import BoxDescription
from rdukit_platform.db.models import ArtifactRow, JobRow
from rdukit_platform.jobs.states import JobState


def cache_base(
    box: BoxDescription, verb: str, parameters: Mapping[str, object], members: int = 1, *, profile: bool = False
) -> str | None:
    """Return a digest of a job's work, without its inputs (pure).

    ``None``: each such job runs, because the box disables reuse or because the job is profiled.
    """
    if profile or not box.verb(verb).is_cached:
        return None
    defaults = {each.name: each.default for each in box.verb(verb).parameters}
    parts: list[object] = [__version__, box.name, box.version, box.raw, verb, {**defaults, **parameters}]
    return _digest([*parts, members] if members > 1 else parts)


def cache_key(session: Session, base: str | None, inputs: Mapping[str, str]) -> str | None:
    """Return the digest of ``base`` and the content of the inputs; ``None`` if ``base`` is."""
    if base is None:
        return None
    rows = session.scalars(select(ArtifactRow).where(ArtifactRow.id.in_(inputs.values()))) if inputs else ()
    contents = {row.id: [row.digest, row.is_folder, row.file_name] for row in rows}
    return _digest([base, {slot: contents.get(artifact_id, artifact_id) for slot, artifact_id in inputs.items()}])


def find_cached(session: Session, tenant_id: str, key: str) -> JobRow | None:
    """Return the tenant's newest job with the same work whose outputs all exist; they are kept meanwhile."""
    done = select(JobRow).where(
        JobRow.tenant_id == tenant_id, JobRow.cache_key == key, JobRow.state == str(JobState.SUCCEEDED)
    )
    for job in session.scalars(done.order_by(JobRow.created_at.desc()).limit(8)):
        try:
            for artifact_id in job.outputs.values():
                get_artifact(session, tenant_id, artifact_id, is_kept=True)
        except NotFound:
            continue
        if job.outputs:
            return job
    return None


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

"""Experts: a base box with a checkpoint that one of its jobs trained, under a name; each tenant sees its own only.

The platform numbers the versions; each promotion under the name gets the next number. A version never
changes, except that it can be deprecated, which it stays. Every function runs in the caller's transaction.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, NotFound, name_legal, suggest
from rdukit_platform.catalog.model import Boxes, Selector, read_selector
from rdukit_platform.catalog.own import find_version
from rdukit_platform.db.models import ExpertRow, JobRow, TenantRow
from rdukit_platform.db.rows import new_id, read_page

#: Slots of the verb that trains.
CHECKPOINT: Final = "checkpoint"
PEF: Final = "pef"
#: Largest number of names in a refusal.
MAX_NAMED: Final = 20
#: Longest licence that is copied from a box.
MAX_LICENCE: Final = 200


def add_expert(
    session: Session,
    job: JobRow,
    checkpoint_id: str,
    name: str,
    description: str,
    licence: str,
    metrics: Mapping[str, object],
    now: float,
) -> ExpertRow:
    """Add the next version of an expert: the checkpoint that ``job`` has made or evaluated.

    Raises:
        Conflict: the checkpoint is already a version of this expert.
    """
    # Concurrent promotions wait here, and get later numbers.
    session.scalars(select(TenantRow.id).where(TenantRow.id == job.tenant_id).with_for_update(key_share=True)).one()
    of_name = (ExpertRow.tenant_id == job.tenant_id, ExpertRow.name == name)
    known = session.scalars(
        select(ExpertRow).where(*of_name, ExpertRow.job_id == job.id, ExpertRow.deprecated_at.is_(None))
    ).first()
    if known is not None:
        raise Conflict(
            f"job {job.id} is already expert {selector_of(known)}; promote it under another name, or first deprecate "
            "that expert: "
            f"rdukit expert deprecate {selector_of(known)}"
        )
    last = session.scalars(select(func.max(ExpertRow.version)).where(*of_name)).one()
    row = ExpertRow(
        id=new_id("exp"),
        tenant_id=job.tenant_id,
        name=name,
        version=(last or 0) + 1,
        box=job.box,
        box_version=job.box_version,
        checkpoint_id=checkpoint_id,
        pef_id=job.inputs.get(PEF),
        description=description,
        licence=licence,
        metrics=dict(metrics),
        job_id=job.id,
        created_at=now,
    )
    session.add(row)
    session.flush()
    return row


def licence_of(session: Session, boxes: Boxes, tenant_id: str, box: Selector) -> str:
    """Return the licence that a box or its model card names; empty: it names none, or the box is gone."""
    if box.version is None:
        found = boxes.boxes.get(box.name)
        described = found.raw if found is not None else {}
    else:
        row = find_version(session, tenant_id, box.name, box.version)
        described = row.description if row is not None else {}
    card = described.get("card")
    named = described.get("licence") or (card.get("licence") if isinstance(card, Mapping) else None)
    return str(named or "")[:MAX_LICENCE]


def list_experts(
    session: Session,
    tenant_id: str,
    search: str = "",
    box: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
    *,
    with_deprecated: bool = False,
) -> tuple[list[ExpertRow], str | None]:
    """Return the versions of the tenant's experts, newest first, and the cursor of the next page.

    Args:
        search: words; each must be part of the name, the description or the box's name.
        box: ``name``, or ``name:version`` of one's own.
    Raises:
        InvalidArgument: box, limit or cursor are not valid.
    """
    query = select(ExpertRow).where(ExpertRow.tenant_id == tenant_id)
    for word in search.split():
        columns = (ExpertRow.name, ExpertRow.description, ExpertRow.box)
        query = query.where(or_(*(column.icontains(word, autoescape=True) for column in columns)))
    if box:
        asked = read_selector(box)
        query = query.where(ExpertRow.box == asked.name)
        if asked.version is not None:
            query = query.where(ExpertRow.box_version == asked.version)
    if not with_deprecated:
        query = query.where(ExpertRow.deprecated_at.is_(None))
    return read_page(session, query, ExpertRow.created_at, ExpertRow.id, limit, cursor)


def get_expert(session: Session, tenant_id: str, text: str) -> ExpertRow:
    """Return the version of an expert that ``text`` names; without a version, the newest that is not deprecated.

    If all are deprecated, the newest of them.

    Raises:
        NotFound: there is no such version; the message lists the existing ones.
        InvalidArgument: the text is not valid.
    """
    return _select(session, tenant_id, read_selector(text, "expert"), is_locked=False)[-1]


def deprecate_expert(session: Session, tenant_id: str, text: str, reason: str, now: float) -> Sequence[ExpertRow]:
    """Deprecate a version, or all versions if ``text`` names none. Returns the changed versions, oldest first.

    Jobs can still use its checkpoint.

    Raises:
        NotFound: there is none.
        Conflict: all that are named are deprecated already.
        InvalidArgument: the text is not valid.
    """
    rows = _select(session, tenant_id, read_selector(text, "expert"), is_locked=True)
    marked = sorted((row for row in rows if row.deprecated_at is None), key=lambda row: row.version)
    if not marked:
        raise Conflict(f"expert {text!r} is already deprecated: {rows[-1].deprecated_reason}")
    for row in marked:
        row.deprecated_at, row.deprecated_reason = now, reason
    return marked


def versions_of_expert(session: Session, tenant_id: str, name: str) -> list[int]:
    """Return an expert's versions, oldest first, also deprecated ones."""
    query = select(ExpertRow.version).where(ExpertRow.tenant_id == tenant_id, ExpertRow.name == name)
    return list(session.scalars(query.order_by(ExpertRow.version)))


def experts_of(
    session: Session, tenant_id: str, *, job_id: str | None = None, checkpoint_id: str | None = None
) -> Sequence[ExpertRow]:
    """Return the experts of a job, or of a checkpoint, oldest first."""
    query = select(ExpertRow).where(ExpertRow.tenant_id == tenant_id)
    if job_id is not None:
        query = query.where(ExpertRow.job_id == job_id)
    if checkpoint_id is not None:
        query = query.where(ExpertRow.checkpoint_id == checkpoint_id)
    return session.scalars(query.order_by(ExpertRow.created_at, ExpertRow.id)).all()


def selector_of(row: ExpertRow) -> Selector:
    """Return the selector of exactly this version."""
    return Selector(row.name, row.version)


def _select(session: Session, tenant_id: str, asked: Selector, *, is_locked: bool) -> Sequence[ExpertRow]:
    """Return the selected versions, at least one: deprecated ones first, then oldest first."""
    query = select(ExpertRow).where(ExpertRow.tenant_id == tenant_id, ExpertRow.name == asked.name)
    if asked.version is not None:
        query = query.where(ExpertRow.version == asked.version)
    rows = session.scalars(query.with_for_update() if is_locked else query).all()
    if not rows:
        raise _not_found(session, tenant_id, asked)
    return sorted(rows, key=lambda row: (row.deprecated_at is None, row.version))


def _not_found(session: Session, tenant_id: str, asked: Selector) -> NotFound:
    versions = versions_of_expert(session, tenant_id, asked.name)
    if versions:
        legal = [str(Selector(asked.name, version)) for version in versions[-MAX_NAMED:]]
        return NotFound(
            f"expert {asked.name!r} has no version {asked.version}; expected {', '.join(legal)}", legal=legal
        )
    query = select(ExpertRow.name).where(ExpertRow.tenant_id == tenant_id).distinct().order_by(ExpertRow.name)
    legal = list(session.scalars(query.limit(MAX_NAMED)))
    meant = suggest(asked.name, legal)
    return NotFound(
        f"unknown expert {str(asked)!r}; {name_legal(legal)}; promote a training with: rdukit expert promote "
        f"JOB --name NAME{meant and '.' + meant}",
        legal=legal,
    )

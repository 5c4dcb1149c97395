"""Boxes that tenants installed, in immutable versions; only their own tenant sees them.

The platform numbers the versions: changed content gets the next number. Numbers are never reused, so a job's record
stays true. Every function runs in the caller's transaction.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from rdukit.settings import resolve
from rdukit_platform.artifacts.service import record_artifact
from rdukit_platform.artifacts.store import Content
from rdukit_platform.catalog.model import BoxDescription, Boxes, Selector, read_box, read_selector, unknown_box
from rdukit_platform.db.models import BoxRow, JobRow, TenantRow
from rdukit_platform.db.rows import new_id, read_page
from rdukit_platform.services import workers_have_walls
from rdukit_platform.settings import BOX_BACKEND, INSTALL_TENANTS, PROCESSES

#: Kind of the artifact that a box's folder is.
KIND = "box"
#: Largest number of jobs that a refusal names.
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed version, and whether it is new."""

    row: BoxRow
    is_new: bool


def why_not_own(tenant: str, setting: str, has_walls: bool, tenants: int) -> str | None:
    """Return why a tenant's jobs may not run its own boxes; ``None`` if they may (pure).

    A process without a fence runs code as the worker's user, who can read all tenants' data.

    Args:
        has_walls: boxes are containers, or fenced.
        setting: names with commas, ``*`` for all, ``-`` for none, or empty.
        tenants: number of the platform's tenants.
    """
    named = {word.strip() for word in setting.split(",") if word.strip()}
    if "*" in named or tenant in named:
        return None
    if named:
        return f"the setting {INSTALL_TENANTS.name} is {setting!r}, which does not include it"
    if has_walls or tenants <= 1:
        return None
    return (
        f"job boxes are unfenced processes here and the platform has {tenants} tenants, so a box's code could read "
        f"other tenants' data. An administrator may set {INSTALL_TENANTS.name} ({INSTALL_TENANTS.variable}) to names "
        f"of trusted tenants, or run boxes in containers ({BOX_BACKEND.name})"
    )


def check_may_own(session: Session, tenant_id: str, is_fenced: bool | None = None) -> None:
    """Refuse a tenant's own boxes if its jobs may not run them.

    Args:
        is_fenced: whether the calling worker's boxes are fenced; ``None``: ask the records of the workers.
    Raises:
        PermissionDenied: the message names the setting that forbids it.
    """
    name = session.scalars(select(TenantRow.name).where(TenantRow.id == tenant_id)).one()
    count = session.scalars(select(func.count()).select_from(TenantRow)).one()
    has_walls = resolve(BOX_BACKEND) not in PROCESSES or (
        workers_have_walls(session) if is_fenced is None else is_fenced
    )
    why = why_not_own(name, resolve(INSTALL_TENANTS), has_walls, count)
    if why is not None:
        raise PermissionDenied(f"tenant {name!r} may not run its own boxes: {why}")


def with_own(session: Session, boxes: Boxes, tenant_id: str, asked: Iterable[str]) -> Boxes:
    """Return rdukit's boxes and, under their requested selectors, the tenant's own.

    Raises:
        NotFound: the tenant has no such box, or not this version.
        InvalidArgument: a text is not valid.
        PermissionDenied: the tenant's jobs may not run boxes of its own.
    """
    own: dict[str, BoxDescription] = {}
    for text in dict.fromkeys(asked):
        if text in boxes.boxes:
            continue
        row = get_own(session, boxes, tenant_id, text, is_kept=True)
        own[text] = box_of(row)
    if own:
        check_may_own(session, tenant_id)
    return Boxes({**boxes.boxes, **own}) if own else boxes


def get_own(session: Session, boxes: Boxes, tenant_id: str, text: str, *, is_kept: bool = False) -> BoxRow:
    """Return the version of a tenant's box that ``text`` names; without a version the newest.

    Args:
        is_kept: lock it, so that it cannot be uninstalled before the transaction ends.
    Raises:
        NotFound: there is no such box; the message lists the existing ones.
        InvalidArgument: the text is not valid.
    """
    asked = read_selector(text)
    query = select(BoxRow).where(*_installed(tenant_id), BoxRow.name == asked.name)
    if asked.version is not None:
        query = query.where(BoxRow.version == asked.version)
    query = query.order_by(BoxRow.version.desc()).limit(1)
    row = session.scalars(query.with_for_update(read=True) if is_kept else query).one_or_none()
    if row is None:
        raise _not_found(session, boxes, tenant_id, asked)
    return row


def find_version(session: Session, tenant_id: str, name: str, version: int) -> BoxRow | None:
    """Find a version, even if it was uninstalled: a job keeps the box it was submitted with."""
    return session.scalars(
        select(BoxRow).where(BoxRow.tenant_id == tenant_id, BoxRow.name == name, BoxRow.version == version)
    ).one_or_none()


def install_box(
    session: Session,
    boxes: Boxes,
    tenant_id: str,
    description: Mapping[str, object],
    content: Content,
    now: float,
    image: str | None = None,
) -> Installed:
    """Add a version of a box, unless the newest has the same content.

    Args:
        content: the folder's content, already in the store; or the digest of ``image``.
    Raises:
        Conflict: a box of rdukit has the name.
        PermissionDenied: the tenant's jobs may not run boxes of its own.
    """
    check_may_own(session, tenant_id)
    name = read_box(description, version=1).name
    if name in boxes.boxes:
        raise Conflict(
            f"{name!r} is a box of rdukit; choose another name in modelbox.yaml, except "
            f"{', '.join(sorted(boxes.boxes))}"
        )
    newest = session.scalars(
        select(BoxRow).where(*_installed(tenant_id), BoxRow.name == name).order_by(BoxRow.version.desc()).limit(1)
    ).one_or_none()
    if newest is not None and newest.digest == content.digest:
        return Installed(newest, is_new=False)
    last = session.scalars(
        select(func.max(BoxRow.version)).where(BoxRow.tenant_id == tenant_id, BoxRow.name == name)
    ).one()
    version = (last or 0) + 1
    artifact_id = None
    if image is None:
        artifact_id = record_artifact(session, tenant_id, str(Selector(name, version)), KIND, content, now).id
    row = BoxRow(
        id=new_id("box"),
        tenant_id=tenant_id,
        name=name,
        version=version,
        description=dict(description),
        artifact_id=artifact_id,
        image=image,
        digest=content.digest,
        created_at=now,
    )
    session.add(row)
    session.flush()
    return Installed(row, is_new=True)


def uninstall_box(session: Session, boxes: Boxes, tenant_id: str, text: str, now: float) -> Sequence[BoxRow]:
    """Uninstall a version of a box, or all versions if ``text`` names none. Returns the removed versions, oldest first.

    Raises:
        NotFound: there is no such box.
        Conflict: an open job uses it; the message names some, and nothing is removed.
        InvalidArgument: the box is rdukit's.
    """
    asked = read_selector(text)
    if asked.name in boxes.boxes:
        raise InvalidArgument(
            f"box {asked.name!r} is part of rdukit; expected one of your own boxes, as listed by: rdukit box installed"
        )
    query = select(BoxRow).where(*_installed(tenant_id), BoxRow.name == asked.name).order_by(BoxRow.version)
    if asked.version is not None:
        query = query.where(BoxRow.version == asked.version)
    rows = session.scalars(query.with_for_update()).all()
    if not rows:
        raise _not_found(session, boxes, tenant_id, asked)
    users = session.scalars(
        select(JobRow.id)
        .where(
            JobRow.ended_at.is_(None),
            JobRow.tenant_id == tenant_id,
            JobRow.box == asked.name,
            JobRow.box_version.in_([row.version for row in rows]),
        )
        .order_by(JobRow.created_at)
    ).all()
    if users:
        named = ", ".join(users[:MAX_NAMED]) + (", …" if len(users) > MAX_NAMED else "")
        raise Conflict(
            f"{len(users)} job{'s' * (len(users) > 1)} of box {asked} {'have' if len(users) > 1 else 'has'} not ended: "
            f"{named}; wait for them, or end them with: rdukit job cancel",
            jobs=list(users[:MAX_NAMED]),
        )
    for row in rows:
        row.uninstalled_at = now
    return rows


def list_own(
    session: Session, tenant_id: str, limit: int = 50, cursor: str | None = None
) -> tuple[list[BoxRow], str | None]:
    """Return the versions that the tenant has installed, newest first, and the cursor of the next page."""
    query = select(BoxRow).where(*_installed(tenant_id))
    return read_page(session, query, BoxRow.created_at, BoxRow.id, limit, cursor)


def newest_own(session: Session, tenant_id: str) -> Sequence[BoxRow]:
    """Return the newest version of each of the tenant's boxes, by name."""
    last = (
        select(BoxRow.name, func.max(BoxRow.version).label("version"))
        .where(*_installed(tenant_id))
        .group_by(BoxRow.name)
        .subquery()
    )
    query = select(BoxRow).join(last, (last.c.name == BoxRow.name) & (last.c.version == BoxRow.version))
    return session.scalars(query.where(BoxRow.tenant_id == tenant_id).order_by(BoxRow.name)).all()


def versions_of(session: Session, tenant_id: str, name: str) -> list[int]:
    """Return the versions of a box that are installed, oldest first."""
    query = select(BoxRow.version).where(*_installed(tenant_id), BoxRow.name == name)
    return list(session.scalars(query.order_by(BoxRow.version)))


def box_of(row: BoxRow) -> BoxDescription:
    """Return a row's box, for checks of jobs."""
    return read_box(row.description, row.version)


def _installed(tenant_id: str) -> tuple[ColumnElement[bool], ...]:
    return (BoxRow.tenant_id == tenant_id, BoxRow.uninstalled_at.is_(None))


def _not_found(session: Session, boxes: Boxes, tenant_id: str, asked: Selector) -> NotFound:
    versions = versions_of(session, tenant_id, asked.name)
    if versions:
        legal = [str(Selector(asked.name, version)) for version in versions[-20:]]
        return NotFound(f"box {asked.name!r} has no version {asked.version}; expected {', '.join(legal)}", legal=legal)
    if asked.name in boxes.boxes:
        return NotFound(
            f"box {asked.name!r} is part of rdukit and has no versions; expected {asked.name!r}", legal=[asked.name]
        )
    return unknown_box(str(asked), [*boxes.boxes, *(row.name for row in newest_own(session, tenant_id))])

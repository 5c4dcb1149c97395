"""Schedulers and workers that are up: each beats in the database."""

import logging
from collections.abc import Sequence

from sqlalchemy import delete, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ServiceRow

logger = logging.getLogger(__name__)

#: Seconds without a heartbeat after which a service counts as gone, and after which its row is removed.
GONE_S = 10.0
FORGET_S = 3600.0
#: Beginning of a worker's ``walls`` if its jobs' boxes have no isolation.
UNFENCED = "nothing"


def beat_service(
    session: Session, service_id: str, kind: str, slots: int, now: float, walls: str = "", node: str = ""
) -> None:
    """Record that a service is up. For a worker, ``walls`` describes the isolation of its jobs' boxes, and ``node`` is
    its node.
    """
    row = session.get(ServiceRow, service_id)
    if row is None:
        session.add(
            ServiceRow(id=service_id, kind=kind, slots=slots, walls=walls, node=node, started_at=now, beat_at=now)
        )
        is_old = or_(ServiceRow.beat_at < now - FORGET_S, ServiceRow.beat_at > now + FORGET_S)
        session.execute(delete(ServiceRow).where(is_old))
    else:
        row.beat_at, row.slots = now, slots


def workers_have_walls(session: Session) -> bool:
    """Return whether there are workers and all isolate the boxes of their jobs; a killed one counts for a while."""
    found = session.scalars(select(ServiceRow.walls).where(ServiceRow.kind == "worker")).all()
    return bool(found) and not any(walls.partition(": ")[0] in {UNFENCED, ""} for walls in found)


def end_service(database: Database, service_id: str) -> None:
    """Record that a service stops. It ignores an unreachable database: the service's row then expires."""
    try:
        with database.write() as session:
            session.execute(delete(ServiceRow).where(ServiceRow.id == service_id))
    except DBAPIError as error:
        logger.warning("end not written down service=%s error=%s", service_id, error)


def live_services(session: Session, now: float) -> Sequence[ServiceRow]:
    """Return the services that have beaten lately."""
    rows = session.scalars(select(ServiceRow).order_by(ServiceRow.id)).all()
    return [row for row in rows if is_recent(row.beat_at, now)]


def is_recent(beat_at: float, now: float) -> bool:
    """Return whether a beat was lately: one of the time to come was before the clock was set back."""
    return abs(now - beat_at) <= GONE_S

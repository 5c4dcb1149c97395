"""Which schedulers and workers are up: each beats in the database."""

import logging
from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ServiceRow

logger = logging.getLogger(__name__)

#: Seconds without a beat after which a service is taken as gone, and after which its row is removed.
GONE_S = 10.0
FORGET_S = 3600.0


def beat_service(session: Session, service_id: str, kind: str, slots: int, now: float) -> None:
    """Say that a service is up."""
    row = session.get(ServiceRow, service_id)
    if row is None:
        session.add(ServiceRow(id=service_id, kind=kind, slots=slots, started_at=now, beat_at=now))
        session.execute(delete(ServiceRow).where(ServiceRow.beat_at < now - FORGET_S))
    else:
        row.beat_at, row.slots = now, slots


def end_service(database: Database, service_id: str) -> None:
    """Say that a service stops. It does all the same if the database is away: its row becomes old."""
    try:
        with database.write() as session:
            session.execute(delete(ServiceRow).where(ServiceRow.id == service_id))
    except DBAPIError as error:
        logger.warning("end not written down service=%s error=%s", service_id, error)


def live_services(session: Session, now: float) -> Sequence[ServiceRow]:
    """The services that have beaten lately."""
    return session.scalars(select(ServiceRow).where(ServiceRow.beat_at >= now - GONE_S).order_by(ServiceRow.id)).all()

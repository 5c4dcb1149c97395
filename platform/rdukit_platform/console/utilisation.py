"""Tiles in use over the last day, by a tenant or on a node, from the times of attempts and replicas in the database."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from rdukit_platform.console.curve import Curve, draw_curve
from rdukit_platform.db.attempts import AttemptPartRow
from rdukit_platform.db.models import AttemptRow, EndpointReplicaRow, EndpointRevisionRow, EndpointRow, JobRow

DAY_S: Final = 86400.0
HOUR_S: Final = 3600.0
#: Points of the picture: a mean of 15 minutes each.
POINTS: Final = 96
#: Attempts that are read; with more the picture covers less than a day.
MAX_ATTEMPTS: Final = 5000


@dataclass(frozen=True, slots=True)
class TileSpan:
    """Tiles in use from ``began`` to ``ended`` in seconds since the epoch; ``None``: still in use."""

    began: float
    ended: float | None
    tiles: int


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Mean and largest number of tiles in use in the ``hours`` before now, and the picture by hours before now."""

    hours: float
    mean: float
    most: float
    curve: Curve | None


def mean_tiles(spans: Iterable[TileSpan], begin: float, end: float, points: int) -> list[float]:
    """Return the mean number of tiles in use in each of ``points`` equal parts of the time (pure)."""
    width = (end - begin) / points
    used = [0.0] * points
    for span in spans:
        first, last = max(span.began, begin), min(end if span.ended is None else span.ended, end)
        if last <= first:
            continue
        for index in range(int((first - begin) / width), min(int((last - begin) / width), points - 1) + 1):
            left, right = begin + index * width, begin + (index + 1) * width
            used[index] += span.tiles * max(0.0, min(last, right) - max(first, left))
    return [each / width for each in used]


def read_utilisation(session: Session, tenant_id: str, now: float) -> Utilisation:
    """Read the tiles that a tenant's attempts and replicas had in the last day."""
    since = now - DAY_S
    attempts = (
        select(AttemptRow.started_at, AttemptRow.ended_at, JobRow.tiles * JobRow.members)
        .join(JobRow, JobRow.id == AttemptRow.job_id)
        .where(JobRow.tenant_id == tenant_id, AttemptRow.started_at.is_not(None), JobRow.tiles > 0)
    )
    ended = attempts.where(AttemptRow.ended_at > since).order_by(AttemptRow.ended_at.desc()).limit(MAX_ATTEMPTS)
    replicas = (
        select(EndpointReplicaRow.claimed_at, EndpointReplicaRow.ended_at, EndpointRevisionRow.tiles)
        .join(EndpointRow, EndpointRow.id == EndpointReplicaRow.endpoint_id)
        .join(
            EndpointRevisionRow,
            (EndpointRevisionRow.endpoint_id == EndpointRow.id)
            & (EndpointRevisionRow.number == EndpointReplicaRow.revision),
        )
        .where(EndpointRow.tenant_id == tenant_id, EndpointReplicaRow.claimed_at.is_not(None))
        .where(EndpointReplicaRow.ended_at.is_(None) | (EndpointReplicaRow.ended_at > since))
    )
    over = _read_spans(session, ended)
    if len(over) == MAX_ATTEMPTS:
        since = min(span.ended or now for span in over)
    running = _read_spans(session, attempts.where(AttemptRow.ended_at.is_(None)))
    return view_utilisation([*over, *running, *_read_spans(session, replicas)], since, now)


def read_node_utilisation(session: Session, node: str, now: float) -> Utilisation:
    """Read the tiles of a node that attempts and replicas of all tenants had in the last day."""
    since = now - DAY_S
    times = AttemptRow.started_at, AttemptRow.ended_at
    own = select(*times, AttemptRow.tiles).where(AttemptRow.node == node, AttemptRow.started_at.is_not(None))
    parts = (
        select(*times, AttemptPartRow.tiles)
        .join(AttemptRow, AttemptRow.id == AttemptPartRow.attempt_id)
        .where(AttemptPartRow.node == node, AttemptRow.started_at.is_not(None))
    )
    spans: list[TileSpan] = []
    for query in (own, parts):
        over = _count_tiles(
            session,
            query.where(AttemptRow.ended_at > since).order_by(AttemptRow.ended_at.desc()).limit(MAX_ATTEMPTS),
        )
        if len(over) == MAX_ATTEMPTS:
            since = max(since, min(span.ended or now for span in over))
        spans += over + _count_tiles(session, query.where(AttemptRow.ended_at.is_(None)))
    row = EndpointReplicaRow
    replicas = select(row.claimed_at, row.ended_at, row.tiles).where(row.node == node)
    spans += _count_tiles(session, replicas.where(row.ended_at.is_(None) | (row.ended_at > since)))
    return view_utilisation(spans, since, now)


def _count_tiles(
    session: Session, query: Select[float | None, float | None, list[str] | None]
) -> list[TileSpan]:  # fmt: skip
    """Return the spans of rows that have begun, from the paths of their tiles."""
    rows = session.execute(query)
    return [TileSpan(began, ended, len(tiles or ())) for began, ended, tiles in rows if began is not None]


def _read_spans(session: Session, query: Select[float | None, float | None, int]) -> list[TileSpan]:
    return [TileSpan(began, ended, tiles) for began, ended, tiles in session.execute(query) if began is not None]


def view_utilisation(spans: Iterable[TileSpan], since: float, now: float) -> Utilisation:
    """Draw tiles in use by hours before now (pure); no picture if all were free."""
    if now <= since:
        return Utilisation(0.0, 0.0, 0.0, None)
    means = mean_tiles(spans, since, now, POINTS)
    hours = (now - since) / HOUR_S
    points = [(-hours * (1 - (index + 0.5) / POINTS), value) for index, value in enumerate(means)]
    return Utilisation(hours, sum(means) / POINTS, max(means), draw_curve(points) if any(means) else None)

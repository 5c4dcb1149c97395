"""Fencing tokens: the proof that allows changes to an attempt, or to its part on a further node.

The attempt's row is the first part. Each further node has a part row with its own claim, lease and token. Only attempts
end: a part is open while its attempt is. Ending the attempt ends all parts at once, and their workers notice it by the
next heartbeat.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.orm import Session

from rdukit_platform.db.models import AttemptPartRow, AttemptRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.jobs.changes import count_changed

#: Separator of attempt id and part number in a lease's name.
_OF: Final = "/"


@dataclass(frozen=True, slots=True)
class FencingToken:
    """Content of a message: an attempt, or a part of one, and the secret that proves ownership."""

    job_id: str
    attempt_id: str
    token: str
    #: Node of the attempt or part; it proves nothing, so it is not compared.
    node: str | None = field(default=None, compare=False)
    #: Number of the part; 0: the attempt itself.
    part: int = 0


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Place of a part: its node, the number of members there, and its worker's address for the other workers."""

    node: str | None
    members: int
    address: str | None = None
    #: A worker has it.
    is_claimed: bool = False


def add_parts(session: Session, first: FencingToken, others: Iterable[PartPlace], now: float) -> list[FencingToken]:
    """Add parts for the further nodes of a new attempt. The caller publishes their tokens after the commit."""
    tokens = []
    for number, place in enumerate(others, 1):
        assert place.node is not None
        token = secrets.token_hex(16)
        session.add(
            AttemptPartRow(
                id=new_id("part"),
                attempt_id=first.attempt_id,
                number=number,
                members=place.members,
                token=token,
                published_at=now,
                node=place.node,
            )
        )
        tokens.append(FencingToken(first.job_id, first.attempt_id, token, place.node, number))
    session.flush()
    return tokens


def claim_part(session: Session, fencing: FencingToken, worker: str, lease_s: float, now: float, node: str) -> bool:
    """Claim a part for a worker of ``node``. Returns whether that worked."""
    free = (*_is_open(fencing), AttemptPartRow.claimed_at.is_(None), AttemptPartRow.node == node)
    values = {"worker": worker, "claimed_at": now, "lease_expires_at": now + lease_s}
    return count_changed(session, update(AttemptPartRow).where(*free).values(values)) == 1


def beat_part(session: Session, fencing: FencingToken, lease_s: float, now: float) -> bool:
    """Extend the lease of a part. Returns whether it still is the caller's.

    A pause or preemption ends the first part's box; the attempt's end then ends the others. Until then the checkpoint
    needs them.
    """
    query = update(AttemptPartRow).where(*_is_open(fencing)).values(lease_expires_at=now + lease_s)
    return count_changed(session, query) == 1


def find_part(session: Session, fencing: FencingToken) -> AttemptPartRow | None:
    """Find the row of a part, even of an ended attempt; ``None``: the token does not match."""
    of_part = (AttemptPartRow.attempt_id == fencing.attempt_id, AttemptPartRow.number == fencing.part)
    return session.scalars(select(AttemptPartRow).where(*of_part, AttemptPartRow.token == fencing.token)).one_or_none()


def read_parts(
    session: Session, attempt_ids: Iterable[str] | None = None, *, is_fresh: bool = False
) -> dict[str, list[AttemptPartRow]]:
    """Return the further parts of open attempts, of all or of ``attempt_ids``, by attempt id.

    ``is_fresh``: read the rows again, even if the session already has them.
    """
    query = select(AttemptPartRow).join(AttemptRow, AttemptRow.id == AttemptPartRow.attempt_id)
    query = query.where(AttemptRow.ended_at.is_(None)).order_by(AttemptPartRow.attempt_id, AttemptPartRow.number)
    if attempt_ids is not None:
        query = query.where(AttemptPartRow.attempt_id.in_(list(attempt_ids)))
    found: dict[str, list[AttemptPartRow]] = {}
    for row in session.scalars(query.execution_options(populate_existing=is_fresh)):
        found.setdefault(row.attempt_id, []).append(row)
    return found


def list_places(session: Session, attempt: AttemptRow, members: int) -> Sequence[PartPlace]:
    """Return the places of all parts of an attempt, the first part first; ``members`` is the job's total."""
    others = read_parts(session, [attempt.id]).get(attempt.id, [])
    first = PartPlace(
        attempt.node, members - sum(row.members for row in others), attempt.address, attempt.claimed_at is not None
    )
    further = (PartPlace(row.node, row.members, row.address, row.claimed_at is not None) for row in others)
    return [first, *further]


def lease_of(row: AttemptRow | AttemptPartRow) -> str:
    """Return the name under which the scheduler watches the lease of a row."""
    return row.id if isinstance(row, AttemptRow) else f"{row.attempt_id}{_OF}{row.number}"


def attempt_of(lease: str) -> str:
    """Return the attempt that a lease of this name belongs to."""
    return lease.partition(_OF)[0]


def take_unclaimed_parts(session: Session, older_than_s: float, now: float) -> list[FencingToken]:
    """Return the parts published more than ``older_than_s`` ago and still unclaimed, marked as published now."""
    is_old = or_(AttemptPartRow.published_at < now - older_than_s, AttemptPartRow.published_at > now + older_than_s)
    rows = session.execute(
        select(AttemptPartRow, AttemptRow.job_id)
        .join(AttemptRow, AttemptRow.id == AttemptPartRow.attempt_id)
        .where(AttemptRow.ended_at.is_(None), AttemptPartRow.claimed_at.is_(None), is_old)
    ).all()
    for row, _ in rows:
        row.published_at = now
    return [FencingToken(job_id, row.attempt_id, row.token, row.node, row.number) for row, job_id in rows]


def _is_open(fencing: FencingToken) -> tuple[ColumnElement[bool], ...]:
    return (
        AttemptPartRow.attempt_id == fencing.attempt_id, AttemptPartRow.number == fencing.part,
        AttemptPartRow.token == fencing.token, AttemptPartRow.is_open(),
    )  # fmt: skip

"""Replicas for workers (claim, note, make ready, extend, end) and for the reconciler (read, apply).

A worker's calls carry the replica's token. An ended replica takes no more changes: its holder gets ``LeaseLost`` and
stops its box. Every function runs in the caller's transaction.
"""

import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from rdukit.errors import LeaseLost
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import EndpointReplicaRow, EndpointRevisionRow, EndpointRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.endpoints.plan import (
    Canary,
    EndedReplica,
    EndpointSnapshot,
    Replica,
    ReplicaPlan,
    count_canaries,
    is_asleep,
    plan_replicas,
)
from rdukit_platform.endpoints.states import LIVE, ReplicaEvent, ReplicaReason, ReplicaState, next_state, states_before
from rdukit_platform.jobs.changes import count_changed
from rdukit_platform.nodes.registry import read_draining, read_leaving, read_rooms
from rdukit_platform.nodes.view import find_drain
from rdukit_platform.nodes.view import is_best_here as is_best

#: Number of an endpoint's ended replicas that are considered, and seconds that their rows are kept.
HISTORY: Final = 8
KEEP_S: Final = 7 * 86400.0
#: Largest number of unclaimed replicas that a worker examines.
MAX_LOOKED_AT: Final = 32
_LIVE: Final = [str(state) for state in LIVE]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaToken:
    """Id of a replica, and the secret that proves its ownership."""

    replica_id: str
    token: str


@dataclass(frozen=True, slots=True)
class ClaimedReplica:
    """A replica that a worker has claimed, and the revision that it serves."""

    fencing: ReplicaToken
    tenant_id: str
    endpoint: str
    revision: EndpointRevisionRow


def claim_next(
    session: Session, worker: str, lease_s: float, now: float, node: str | None = None
) -> ClaimedReplica | None:
    """Claim the oldest unclaimed replica for a worker of ``node``; ``None``: no replica waits for it.

    A replica whose tiles are free on another node only is left to that node.
    """
    unclaimed = (EndpointReplicaRow.worker.is_(None), EndpointReplicaRow.state == str(ReplicaState.STARTING))
    query = select(EndpointReplicaRow).where(*unclaimed).order_by(EndpointReplicaRow.created_at, EndpointReplicaRow.id)
    rows = session.scalars(query.limit(MAX_LOOKED_AT).with_for_update(skip_locked=True)).all()
    rooms = read_rooms(session) if rows and node is not None else {}
    found = ((row, _revision_of(session, row)) for row in rows)
    row, revision = next((each for each in found if node is None or is_best(node, each[1].tiles, rooms)), (None, None))
    if row is None or revision is None:
        return None
    row.node, row.worker, row.claimed_at, row.lease_expires_at = node, worker, now, now + lease_s
    endpoint = session.get_one(EndpointRow, row.endpoint_id)
    return ClaimedReplica(ReplicaToken(row.id, row.token), endpoint.tenant_id, endpoint.name, revision)


def is_best_here(session: Session, node: str, tiles: int) -> bool:
    """Return whether a replica should keep waiting for its tiles on this node."""
    return is_best(node, tiles, read_rooms(session))


def _revision_of(session: Session, row: EndpointReplicaRow) -> EndpointRevisionRow:
    is_own = EndpointRevisionRow.endpoint_id == row.endpoint_id
    return session.scalars(select(EndpointRevisionRow).where(is_own, EndpointRevisionRow.number == row.revision)).one()


def has_unclaimed(session: Session) -> bool:
    """Return whether a replica waits for a worker."""
    unclaimed = (EndpointReplicaRow.worker.is_(None), EndpointReplicaRow.state == str(ReplicaState.STARTING))
    return session.scalars(select(EndpointReplicaRow.id).where(*unclaimed).limit(1)).first() is not None


def beat(
    session: Session, held: Iterable[ReplicaToken], lease_s: float, now: float
) -> dict[ReplicaToken, ReplicaState | None]:
    """Extend the leases of replicas. Returns the state of each; ``None``: the holder has lost it."""
    states: dict[ReplicaToken, ReplicaState | None] = {}
    for fencing in held:
        query = update(EndpointReplicaRow).where(*_is_open(fencing)).values(lease_expires_at=now + lease_s)
        changed = count_changed(session, query)
        state = select(EndpointReplicaRow.state).where(EndpointReplicaRow.id == fencing.replica_id)
        states[fencing] = ReplicaState(session.scalars(state).one()) if changed else None
    return states


def note(session: Session, fencing: ReplicaToken, message: str | None, tiles: Sequence[str] | None = None) -> None:
    """Store a replica's status message, and the tiles that it holds.

    Raises:
        LeaseLost: the replica is no longer the caller's.
    """
    row = _hold(session, fencing)
    row.message = message
    if tiles is not None:
        row.tiles = list(tiles)


def make_ready(
    session: Session, fencing: ReplicaToken, address: str, uid: int | None, box: Mapping[str, object], now: float
) -> None:
    """Mark a replica as ready, so that it gets requests.

    Raises:
        LeaseLost: the replica is no longer the caller's.
    """
    row = _hold(session, fencing)
    row.state = str(next_state(row.id, ReplicaState(row.state), ReplicaEvent.READY))
    row.ready_at, row.address, row.address_uid, row.box, row.message = now, address, uid, dict(box), None


def end(session: Session, fencing: ReplicaToken, reason: ReplicaReason, message: str | None, now: float) -> bool:
    """End a replica. Returns false if it had ended already."""
    query = update(EndpointReplicaRow).where(*_is_open(fencing))
    return bool(count_changed(session, query.values(_ended(reason, message, now))))


def drain_ends_at(session: Session, fencing: ReplicaToken, settle_s: float, longest_s: float) -> float | None:
    """Return when a draining replica may end; gateways with open requests postpone it. ``None``: the replica is not
    draining.
    """
    row = session.get(EndpointReplicaRow, fencing.replica_id)
    if row is None or row.draining_at is None:
        return None
    return min(max(row.draining_at + settle_s, row.busy_until or 0.0), row.draining_at + longest_s)


def keep_busy(session: Session, replica_ids: Iterable[str], until: float) -> None:
    """Record that a gateway has open requests at draining replicas."""
    is_draining = EndpointReplicaRow.state == str(ReplicaState.DRAINING)
    query = update(EndpointReplicaRow).where(EndpointReplicaRow.id.in_(list(replica_ids)), is_draining)
    count_changed(session, query.values(busy_until=until))


def touch(session: Session, endpoint_ids: Iterable[str], now: float) -> None:
    """Record calls of endpoints that have an idle time."""
    is_meant = EndpointRow.id.in_(list(endpoint_ids)) & EndpointRow.idle_s.is_not(None)
    session.execute(update(EndpointRow).where(is_meant).values(called_at=now))


def read_snapshots(session: Session, now: float, endpoint_ids: Sequence[str] | None = None) -> list[EndpointSnapshot]:
    """Read the planner's snapshots of the named endpoints, or of all that have or want replicas."""
    replicas: dict[str, list[Replica]] = defaultdict(list)
    columns = (
        EndpointReplicaRow.endpoint_id, EndpointReplicaRow.id, EndpointReplicaRow.revision, EndpointReplicaRow.state,
        EndpointReplicaRow.created_at, EndpointReplicaRow.lease_expires_at, EndpointReplicaRow.ready_at,
        EndpointReplicaRow.node, EndpointReplicaRow.tiles,
    )  # fmt: skip
    query = select(*columns).where(EndpointReplicaRow.state.in_(_LIVE))
    endpoints = select(EndpointRow)
    if endpoint_ids is not None:
        query = query.where(EndpointReplicaRow.endpoint_id.in_(endpoint_ids))
        endpoints = endpoints.where(EndpointRow.id.in_(endpoint_ids))
    leaving, cordons = read_leaving(session), read_draining(session)
    for endpoint_id, replica_id, revision, state, created_at, lease, ready_at, node, tiles in session.execute(query):
        is_leaving = node in leaving or find_drain(cordons.get(node or ""), tiles or ()) is not None
        replicas[endpoint_id].append(
            Replica(replica_id, revision, ReplicaState(state), created_at, lease, ready_at, is_leaving)
        )
    if endpoint_ids is None:
        is_wanted = EndpointRow.deleted_at.is_(None) & (EndpointRow.replicas > 0)
        endpoints = endpoints.where(is_wanted | EndpointRow.id.in_(list(replicas)))
    rows = session.scalars(endpoints.order_by(EndpointRow.id))
    return [_snapshot(session, row, replicas[row.id], now) for row in rows]


def _snapshot(session: Session, row: EndpointRow, replicas: Sequence[Replica], now: float) -> EndpointSnapshot:
    called_at = max(row.called_at or row.created_at, row.updated_at)
    is_idle = row.deleted_at is None and is_asleep(replicas, row.idle_s, called_at, now)
    wanted = 0 if row.deleted_at is not None or is_idle else row.replicas
    canary = None
    if row.canary is not None and row.canary_percent is not None:
        count = count_canaries(wanted, row.canary_percent)
        canary = Canary(row.canary, count, _read_ended(session, row, row.canary))
    return EndpointSnapshot(
        id=row.id,
        revision=row.revision,
        wanted=wanted,
        replicas=tuple(replicas),
        ended=_read_ended(session, row, row.revision),
        canary=canary,
        is_idle=is_idle and row.replicas > 0,
    )


def _read_ended(session: Session, row: EndpointRow, revision: int) -> tuple[EndedReplica, ...]:
    """Return the latest replicas of a revision that ended after the last change of the endpoint."""
    ended = session.execute(
        select(EndpointReplicaRow.reason, EndpointReplicaRow.ended_at, EndpointReplicaRow.ready_at)
        .where(
            EndpointReplicaRow.endpoint_id == row.id,
            EndpointReplicaRow.revision == revision,
            EndpointReplicaRow.state == str(ReplicaState.ENDED),
            EndpointReplicaRow.created_at >= row.updated_at,
        )
        .order_by(EndpointReplicaRow.ended_at.desc())
        .limit(HISTORY)
    )
    return tuple(EndedReplica(ReplicaReason(reason), at, ready) for reason, at, ready in ended if reason and at)


def apply_plan(session: Session, plan: ReplicaPlan, now: float) -> None:
    """Apply a plan; replicas that have changed since it was made are left alone."""
    for replica_id, reason in plan.ends:
        is_live = EndpointReplicaRow.state.in_(states_before(ReplicaEvent.END))
        values = _ended(reason, _WORDS.get(reason), now)
        count_changed(
            session, update(EndpointReplicaRow).where(EndpointReplicaRow.id == replica_id, is_live).values(values)
        )
    is_ready = EndpointReplicaRow.state.in_(states_before(ReplicaEvent.DRAIN))
    draining = {"state": str(ReplicaState.DRAINING), "draining_at": now}
    for replica_id in plan.drains:
        query = update(EndpointReplicaRow).where(EndpointReplicaRow.id == replica_id, is_ready)
        count_changed(session, query.values(draining))
    for endpoint_id, revision in plan.starts:
        session.add(
            EndpointReplicaRow(
                id=new_id("rep"), endpoint_id=endpoint_id, revision=revision, state=str(ReplicaState.STARTING),
                token=secrets.token_hex(16), created_at=now,
            )
        )  # fmt: skip
    if plan.starts:
        session.execute(delete(EndpointReplicaRow).where(EndpointReplicaRow.ended_at < now - KEEP_S))


_WORDS: Final = {
    ReplicaReason.LOST: "it was lost: its worker sent no heartbeat before its lease expired",
    ReplicaReason.NOT_WANTED: "it was no longer wanted before it was ready",
}


def _ended(reason: ReplicaReason, message: str | None, now: float) -> dict[str, object]:
    return {"state": str(ReplicaState.ENDED), "reason": str(reason), "message": message, "ended_at": now}


def _is_open(fencing: ReplicaToken) -> tuple[ColumnElement[bool], ...]:
    return (
        EndpointReplicaRow.id == fencing.replica_id,
        EndpointReplicaRow.token == fencing.token,
        EndpointReplicaRow.state.in_(_LIVE),
    )


def _hold(session: Session, fencing: ReplicaToken) -> EndpointReplicaRow:
    row = session.scalars(select(EndpointReplicaRow).where(*_is_open(fencing)).with_for_update()).one_or_none()
    if row is None:
        raise LeaseLost(f"replica {fencing.replica_id} has ended")
    return row


def reconcile(
    database: Database, now: float, find_silent: Callable[[Mapping[str, float]], Mapping[str, float]]
) -> bool:
    """Bring the replicas of all endpoints one step closer to the wanted state. Returns whether there was a step.

    Args:
        find_silent: returns those of the given leases whose workers send no heartbeats.
    """
    with database.read() as session:
        snapshots = read_snapshots(session, now)
    replicas = [replica for snapshot in snapshots for replica in snapshot.replicas]
    silent = find_silent({each.id: each.lease_expires_at for each in replicas if each.lease_expires_at is not None})
    if not plan_replicas(snapshots, now, silent):
        return False
    with database.write() as session:
        # Planned again inside the transaction, or two schedulers would each start the same replicas.
        plan = plan_replicas(read_snapshots(session, now), now, silent)
        apply_plan(session, plan, now)
    for replica_id, reason in plan.ends:
        logger.info("replica ends replica=%s reason=%s", replica_id, reason)
    for replica_id in plan.drains:
        logger.info("replica drains replica=%s", replica_id)
    for endpoint_id, revision in plan.starts:
        logger.info("replica wanted endpoint=%s revision=%d", endpoint_id, revision)
    return True

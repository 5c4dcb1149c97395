"""Decides which replicas to start, drain and end (pure), and in which state an endpoint is.

A new revision takes over one replica at a time: a new one becomes ready before an old one drains, so that as many as
are wanted answer all the time. A revision whose replicas fail is tried again after pauses that double; meanwhile the
old one goes on.

Source: ours; after the rolling update of Kubernetes' Deployments with maxSurge 1 and maxUnavailable 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rdukit_platform.endpoints.states import FAILURES, ReplicaReason, ReplicaState

#: Seconds of being ready after which an end counts as the first failure, not as one more.
STABLE_S: Final = 60.0
#: Pause before the replica after the second failure, and the longest.
FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 60.0
#: So many failures in a row are told as the endpoint's state.
TOLD_FAILURES: Final = 2


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that is there. ``lease_expires_at`` is ``None`` until a worker has it."""

    id: str
    revision: int
    state: ReplicaState
    created_at: float
    lease_expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class EndedReplica:
    """A replica that has ended."""

    reason: ReplicaReason
    ended_at: float
    ready_at: float | None = None


@dataclass(frozen=True, slots=True)
class EndpointSnapshot:
    """An endpoint: what is wanted, and what there is."""

    id: str
    #: The revision that is wanted, and how many replicas; 0 of one that is deleted.
    revision: int
    wanted: int
    replicas: tuple[Replica, ...]
    #: Of the wanted revision, the newest first.
    ended: tuple[EndedReplica, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Steps to be taken, in this order: ends, drains, starts."""

    #: Replica and why.
    ends: tuple[tuple[str, ReplicaReason], ...] = ()
    drains: tuple[str, ...] = ()
    #: Endpoint and revision.
    starts: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ends or self.drains or self.starts)


def plan_replicas(endpoints: Sequence[EndpointSnapshot], now: float, *, may_expire: bool = True) -> ReplicaPlan:
    """Plan one step for each endpoint (pure).

    Args:
        may_expire: silence of a worker means that it is dead; false where this host itself stood still.
    """
    ends: list[tuple[str, ReplicaReason]] = []
    drains: list[str] = []
    starts: list[tuple[str, int]] = []
    for endpoint in endpoints:
        lost = [each for each in endpoint.replicas if may_expire and _is_late(each, now)]
        ends += [(each.id, ReplicaReason.LOST) for each in lost]
        alive = [each for each in endpoint.replicas if each not in lost]
        current, old = _split(alive, endpoint.revision)
        ready = [each for each in current if each.state is ReplicaState.READY]
        starting = [each for each in current if each.state is ReplicaState.STARTING]
        # Of another revision none is waited for; as many stay as are needed until the wanted ones are ready.
        ends += [(each.id, ReplicaReason.NOT_WANTED) for each in old if each.state is ReplicaState.STARTING]
        old_ready = sorted((each for each in old if each.state is ReplicaState.READY), key=_age)
        kept = max(endpoint.wanted - len(ready), 0)
        drains += [each.id for each in old_ready[: max(len(old_ready) - kept, 0)]]
        # Too many of the wanted one: those that are not ready go first.
        surplus = max(len(current) - endpoint.wanted, 0)
        given_up = sorted(starting, key=_age, reverse=True)[:surplus]
        ends += [(each.id, ReplicaReason.NOT_WANTED) for each in given_up]
        drains += [each.id for each in sorted(ready, key=_age, reverse=True)[: surplus - len(given_up)]]
        # One more than are wanted at most, while revisions change.
        room = endpoint.wanted + (1 if old_ready else 0) - len(current) - min(len(old_ready), kept)
        missing = min(endpoint.wanted - len(current), room)
        if missing > 0 and next_start_at(endpoint.ended) <= now:
            starts += [(endpoint.id, endpoint.revision)] * missing
    return ReplicaPlan(tuple(ends), tuple(drains), tuple(starts))


def count_failures(ended: Sequence[EndedReplica]) -> int:
    """Count the newest replicas that failed one after the other; one that was ready for long begins anew."""
    count = 0
    for each in ended:
        if each.reason not in FAILURES:
            continue
        count += 1
        if each.ready_at is not None and each.ended_at - each.ready_at > STABLE_S:
            break
    return count


def next_start_at(ended: Sequence[EndedReplica]) -> float:
    """Return when the next replica may be started: after the first failure at once."""
    failures = count_failures(ended)
    if failures < 2:
        return float("-inf")
    return ended[0].ended_at + min(FIRST_PAUSE_S * 2.0 ** min(failures - 2, 10), LONGEST_PAUSE_S)


class EndpointState(StrEnum):
    """States of an endpoint, as its replicas are."""

    #: As many as are wanted are ready, and no others.
    READY = "ready"
    #: It answers, and another revision or number of replicas is on its way.
    UPDATING = "updating"
    #: None is ready yet.
    STARTING = "starting"
    #: The wanted revision has failed several times in a row; it may still answer by another one.
    FAILING = "failing"
    #: None is wanted.
    STOPPED = "stopped"


def state_of(endpoint: EndpointSnapshot) -> EndpointState:
    """Derive an endpoint's state (pure)."""
    current, old = _split(endpoint.replicas, endpoint.revision)
    ready = sum(1 for each in current if each.state is ReplicaState.READY)
    if endpoint.wanted == 0:
        return EndpointState.STOPPED if not current and not old else EndpointState.UPDATING
    if ready == endpoint.wanted == len(current) and not old:
        return EndpointState.READY
    if ready < endpoint.wanted and count_failures(endpoint.ended) >= TOLD_FAILURES:
        return EndpointState.FAILING
    is_answering = ready or any(each.state is ReplicaState.READY for each in old)
    return EndpointState.UPDATING if is_answering else EndpointState.STARTING


def _is_late(replica: Replica, now: float) -> bool:
    return replica.lease_expires_at is not None and replica.lease_expires_at < now


def _split(replicas: Sequence[Replica], revision: int) -> tuple[list[Replica], list[Replica]]:
    """Return those of the revision and those of others; draining ones are neither."""
    alive = [each for each in replicas if each.state is not ReplicaState.DRAINING]
    return [e for e in alive if e.revision == revision], [e for e in alive if e.revision != revision]


def _age(replica: Replica) -> tuple[float, str]:
    return replica.created_at, replica.id

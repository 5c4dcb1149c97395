"""Plan of an endpoint's replicas (pure): which to start, drain and end, and the endpoint's state.

A new revision takes over one replica at a time: a new replica becomes ready before an old one drains, so the wanted
number always answers. If replicas of a revision fail, new ones follow after back-off, while the old revision keeps
serving. A replica whose node leaves, or drains its tiles until a deadline, is replaced in the same way. A canary is a
second revision with replicas of its own.

Source: ours; after the rolling update of Kubernetes' Deployments with maxSurge 1 and maxUnavailable 0.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rdukit_platform.endpoints.states import FAILURES, ReplicaReason, ReplicaState

#: Seconds of readiness after which an end counts as a first failure again.
STABLE_S: Final = 60.0
#: Pause in seconds after the second failure, and the longest pause.
FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 60.0
#: Number of successive failures from which on the endpoint's state is ``failing``.
TOLD_FAILURES: Final = 2


@dataclass(frozen=True, slots=True)
class Replica:
    """A live replica. ``lease_expires_at`` is ``None`` until a worker claims it."""

    id: str
    revision: int
    state: ReplicaState
    created_at: float
    lease_expires_at: float | None = None
    ready_at: float | None = None
    #: Its node leaves, or drains its tiles until a deadline: it is replaced like one of an old revision.
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class EndedReplica:
    """A replica that has ended."""

    reason: ReplicaReason
    ended_at: float
    ready_at: float | None = None


@dataclass(frozen=True, slots=True)
class Canary:
    """A second revision, which gets a fraction of the calls."""

    revision: int
    wanted: int
    #: Ended replicas of this revision, the newest first.
    ended: tuple[EndedReplica, ...] = ()


@dataclass(frozen=True, slots=True)
class EndpointSnapshot:
    """An endpoint: its wanted state, and its replicas."""

    id: str
    #: Wanted revision and number of replicas; 0 replicas if the endpoint is deleted or idle.
    revision: int
    wanted: int
    replicas: tuple[Replica, ...]
    #: Ended replicas of the wanted revision, the newest first.
    ended: tuple[EndedReplica, ...] = ()
    canary: Canary | None = None
    #: Whether it has no replicas only because it has not been called for a while.
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Steps to take, in this order: ends, drains, starts."""

    #: Replica and reason.
    ends: tuple[tuple[str, ReplicaReason], ...] = ()
    drains: tuple[str, ...] = ()
    #: Endpoint and revision.
    starts: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ends or self.drains or self.starts)


def plan_replicas(
    endpoints: Sequence[EndpointSnapshot], now: float, silent: Mapping[str, float] | None = None
) -> ReplicaPlan:
    """Plan one step for each endpoint (pure).

    Args:
        silent: last known leases of replicas whose workers send no heartbeats; a lease extended since then is not lost.
    """
    ends: list[tuple[str, ReplicaReason]] = []
    drains: list[str] = []
    starts: list[tuple[str, int]] = []
    for endpoint in endpoints:
        lost = [each for each in endpoint.replicas if _is_lost(each, silent or {})]
        ends += [(each.id, ReplicaReason.LOST) for each in lost]
        alive = [each for each in endpoint.replicas if each not in lost]
        current, old = _split(alive, endpoint)
        ready = [each for each in current if each.state is ReplicaState.READY]
        # Starting replicas of other revisions end at once. Ready ones stay as long as too few wanted ones are ready.
        ends += [(each.id, ReplicaReason.NOT_WANTED) for each in old if each.state is ReplicaState.STARTING]
        old_ready = sorted((each for each in old if each.state is ReplicaState.READY), key=_age)
        kept = max(endpoint.wanted - len(ready), 0)
        drains += [each.id for each in old_ready[: max(len(old_ready) - kept, 0)]]
        surplus = _choose_surplus(current, endpoint.wanted)
        # During a change of revisions, one replica more than wanted may run.
        room = endpoint.wanted + (1 if old_ready else 0) - len(current) - min(len(old_ready), kept)
        missing = min(endpoint.wanted - len(current), room)
        if missing > 0 and next_start_at(endpoint.ended) <= now:
            starts += [(endpoint.id, endpoint.revision)] * missing
        if (canary := endpoint.canary) is not None:
            canaries = [each for each in alive if each.revision == canary.revision and not _is_draining(each)]
            of_canary = [each for each in canaries if not each.is_leaving]
            surplus += _choose_surplus(of_canary, canary.wanted)
            if sum(1 for each in of_canary if each.state is ReplicaState.READY) >= canary.wanted:
                surplus += [each for each in canaries if each.is_leaving]
            if next_start_at(canary.ended) <= now:
                starts += [(endpoint.id, canary.revision)] * (canary.wanted - len(of_canary))
        ends += [(each.id, ReplicaReason.NOT_WANTED) for each in surplus if each.state is ReplicaState.STARTING]
        drains += [each.id for each in surplus if each.state is ReplicaState.READY]
    return ReplicaPlan(tuple(ends), tuple(drains), tuple(starts))


def count_failures(ended: Sequence[EndedReplica]) -> int:
    """Count the successive failures of the newest replicas; a replica that was ready for long restarts the count."""
    count = 0
    for each in ended:
        if each.reason not in FAILURES:
            continue
        count += 1
        if each.ready_at is not None and each.ended_at - each.ready_at > STABLE_S:
            break
    return count


def next_start_at(ended: Sequence[EndedReplica]) -> float:
    """Return when the next replica may be started; after a first failure, at once."""
    failures = count_failures(ended)
    if failures < 2:
        return float("-inf")
    return ended[0].ended_at + min(FIRST_PAUSE_S * 2.0 ** min(failures - 2, 10), LONGEST_PAUSE_S)


def count_canaries(replicas: int, percent: int) -> int:
    """Return the number of a canary's replicas: ``percent`` of the wanted revision's, at least one."""
    return min(replicas, max(1, math.ceil(replicas * percent / 100)))


def is_asleep(replicas: Sequence[Replica], idle_s: float | None, called_at: float, now: float) -> bool:
    """Return whether an endpoint has been idle for ``idle_s`` and needs no replicas.

    The idle time begins after the last replica became ready, so a slow start does not miss the first caller.
    """
    if idle_s is None or any(each.state is ReplicaState.STARTING for each in replicas):
        return False
    return now - max([called_at, *(each.ready_at for each in replicas if each.ready_at is not None)]) > idle_s


class EndpointState(StrEnum):
    """States of an endpoint, derived from its replicas."""

    #: Exactly the wanted replicas are ready.
    READY = "ready"
    #: It answers, while its revision or number of replicas changes.
    UPDATING = "updating"
    #: No replica is ready yet.
    STARTING = "starting"
    #: The wanted revision has failed several times in a row; another revision may still answer.
    FAILING = "failing"
    #: It has no replicas, because it was not called for a while; the next call starts them.
    IDLE = "idle"
    #: No replica is wanted.
    STOPPED = "stopped"


def state_of(endpoint: EndpointSnapshot) -> EndpointState:
    """Derive an endpoint's state (pure)."""
    alive = [each for each in endpoint.replicas if not _is_draining(each)]
    if endpoint.wanted == 0:
        at_rest = EndpointState.IDLE if endpoint.is_idle else EndpointState.STOPPED
        return EndpointState.UPDATING if alive else at_rest
    wanted = [(endpoint.revision, endpoint.wanted, endpoint.ended)]
    if endpoint.canary is not None:
        wanted.append((endpoint.canary.revision, endpoint.canary.wanted, endpoint.canary.ended))
    ready = Counter(each.revision for each in alive if each.state is ReplicaState.READY)
    if len(alive) == ready.total() and ready == {number: count for number, count, _ in wanted}:
        return EndpointState.READY
    if any(ready[number] < count and count_failures(ended) >= TOLD_FAILURES for number, count, ended in wanted):
        return EndpointState.FAILING
    is_answering = ready.total() > 0
    return EndpointState.UPDATING if is_answering else EndpointState.STARTING


def _is_lost(replica: Replica, silent: Mapping[str, float]) -> bool:
    return replica.id in silent and replica.lease_expires_at == silent[replica.id]


def _is_draining(replica: Replica) -> bool:
    return replica.state is ReplicaState.DRAINING


def _split(replicas: Sequence[Replica], endpoint: EndpointSnapshot) -> tuple[list[Replica], list[Replica]]:
    """Split replicas into those of the wanted revision that may stay, and those to replace; replicas on leaving nodes
    are replaced.

    Draining replicas, and the canary's, are in neither part.
    """
    canary = None if endpoint.canary is None else endpoint.canary.revision
    alive = [each for each in replicas if not _is_draining(each) and each.revision != canary]
    current = [each for each in alive if each.revision == endpoint.revision and not each.is_leaving]
    return current, [each for each in alive if each not in current]


def _choose_surplus(current: Sequence[Replica], wanted: int) -> list[Replica]:
    """Return the surplus replicas of a revision: first those that are not ready, then the youngest."""
    youngest = sorted(current, key=_age, reverse=True)
    youngest.sort(key=lambda each: each.state is ReplicaState.READY)
    return youngest[: max(len(current) - wanted, 0)]


def _age(replica: Replica) -> tuple[float, str]:
    return replica.created_at, replica.id

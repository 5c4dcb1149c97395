"""Admission of connections to the daemon: who may connect while it is full, and which idle connection makes room. Pure.

Source: ours; no user of a machine may keep root, the daemon's user or other users from its node.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from rdukit_node.leases.allocator import LeaseId

#: Places that only root and the daemon's user take, at most; of few places a quarter.
RESERVED: Final = 64


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Numbers of connections at once."""

    total: int
    #: Of ``total``, places that only administrators take.
    reserved: int
    #: Of one user who is no administrator.
    per_user: int
    #: At the socket of one lease.
    per_lease: int

    @classmethod
    def of(cls, total: int, per_user: int, per_lease: int) -> "ConnectionLimits":
        """Return limits for ``total`` connections, with a reserve for administrators."""
        return cls(total, min(RESERVED, total // 4), per_user, per_lease)


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """A connection as admission sees it."""

    number: int
    uid: int | None
    #: It belongs to root or the daemon's user, or was authorized with the administration token.
    is_admin: bool
    #: The lease whose own socket it came by.
    lease: LeaseId | None
    #: It holds a lease or waits for one, so that it is never closed for another.
    is_needed: bool
    #: Time of its last request, in seconds of the monotonic clock.
    active_at: float


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision on a new connection."""

    #: Connections to close for it.
    closes: tuple[int, ...] = ()
    #: Why it is refused; empty if it is not.
    refusal: str = ""


def admit(newcomer: OpenConnection, others: Collection[OpenConnection], limits: ConnectionLimits) -> Admission:
    """Decide on a new connection: admit it, close idle ones for it, or refuse it.

    An idle connection makes room within the limit that is reached: of a lease, of a user, or of all. Of all, the
    user with the most connections loses the one that has idled longest, and administrators lose theirs last.
    """
    remaining = {each.number: each for each in others}
    closes: list[int] = []
    while (full := _reached_limit(newcomer, list(remaining.values()), limits)) is not None:
        reason, pool = full
        idle = [each for each in pool if not each.is_needed]
        if not idle:
            return Admission(refusal=reason)
        chosen = min(idle, key=lambda each: each.active_at).number
        del remaining[chosen]
        closes.append(chosen)
    return Admission(tuple(closes))


def _reached_limit(
    newcomer: OpenConnection, others: list[OpenConnection], limits: ConnectionLimits
) -> tuple[str, list[OpenConnection]] | None:
    """Return the first limit that is reached, and the connections one of which may be closed for the newcomer."""
    if newcomer.lease is not None:
        same = [each for each in others if each.lease == newcomer.lease]
        if len(same) >= limits.per_lease:
            return f"lease {newcomer.lease} has {limits.per_lease} connections already; close one first", same
    if not newcomer.is_admin:
        own = [each for each in others if each.uid == newcomer.uid and not each.is_admin]
        if len(own) >= limits.per_user:
            return (
                f"user {newcomer.uid} has {limits.per_user} connections already, and each holds a lease or waits for "
                "one; close one first, or raise snd.user_connections"
            ), own
    everybody_else = [each for each in others if not each.is_admin]
    if len(others) < limits.total and (newcomer.is_admin or len(everybody_else) < limits.total - limits.reserved):
        return None
    reason = (
        f"the node daemon has {len(others)} connections already, and each holds a lease or waits for one; "
        "try again later"
    )
    pool = _of_the_busiest_user([each for each in everybody_else if not each.is_needed])
    return reason, pool or ([each for each in others if each.is_admin] if newcomer.is_admin else [])


def _of_the_busiest_user(connections: list[OpenConnection]) -> list[OpenConnection]:
    if not connections:
        return []
    ((uid, _),) = Counter(each.uid for each in connections).most_common(1)
    return [each for each in connections if each.uid == uid]

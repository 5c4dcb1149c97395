"""Admission of connections to the daemon: decides which are admitted while it is full, and which idle ones are closed
(pure).

Source: ours; no user may lock root, the daemon's user or other users out.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from rdukit_node.leases.allocator import LeaseId

#: Largest number of connections reserved for root and the daemon's user; at most a quarter of all.
RESERVED: Final = 64


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of concurrent connections."""

    total: int
    #: Number of ``total`` that is reserved for administrators.
    reserved: int
    #: Limit for each user other than administrators.
    per_user: int
    #: Limit at the socket of one lease.
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
    #: Lease whose own socket it uses.
    lease: LeaseId | None
    #: It holds a lease or waits for one, so it is never closed for another connection.
    is_needed: bool
    #: Time of its last request, in seconds of the monotonic clock.
    active_at: float


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision on a new connection."""

    #: Connections to close for it.
    closes: tuple[int, ...] = ()
    #: Reason for the refusal; empty: admitted.
    refusal: str = ""


def admit(newcomer: OpenConnection, others: Collection[OpenConnection], limits: ConnectionLimits) -> Admission:
    """Decide on a new connection: admit it, close idle ones for it, or refuse it.

    An idle connection is closed within the reached limit: of a lease, of a user, or of all. If all are in use, the user
    with most connections loses the one idle longest; administrators lose theirs last.
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
    """Return the first reached limit, and the connections of which one may be closed for the new one."""
    if newcomer.lease is not None:
        same = [each for each in others if each.lease == newcomer.lease]
        if len(same) >= limits.per_lease:
            return f"lease {newcomer.lease} has {limits.per_lease} connections already; close one first", same
    if not newcomer.is_admin:
        own = [each for each in others if each.uid == newcomer.uid and not each.is_admin]
        if len(own) >= limits.per_user:
            return (
                f"user {newcomer.uid} already has {limits.per_user} connections, each of which holds a lease or waits "
                "for one; close one first, or raise snd.user_connections"
            ), own
    everybody_else = [each for each in others if not each.is_admin]
    if len(others) < limits.total and (newcomer.is_admin or len(everybody_else) < limits.total - limits.reserved):
        return None
    reason = (
        f"the node daemon already has {len(others)} connections, each of which holds a lease or waits for one; try "
        "again later"
    )
    pool = _of_the_busiest_user([each for each in everybody_else if not each.is_needed])
    return reason, pool or ([each for each in others if each.is_admin] if newcomer.is_admin else [])


def _of_the_busiest_user(connections: list[OpenConnection]) -> list[OpenConnection]:
    if not connections:
        return []
    ((uid, _),) = Counter(each.uid for each in connections).most_common(1)
    return [each for each in connections if each.uid == uid]

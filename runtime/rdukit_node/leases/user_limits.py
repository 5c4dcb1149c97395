"""Limits on one user's share of a node. Pure.

Source: ours; no user of a shared machine can take the complete node. Root and the daemon's user have no limits.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from rdukit.errors import NoResources
from rdukit_node.leases.allocator import LeaseRequest
from rdukit_node.leases.queue import MAX_WAITING

#: Requests of one user that may wait, so that the queue has places for others.
MAX_WAITING_OF_ONE: Final = MAX_WAITING // 4


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Largest resources of one user; 0: no limit."""

    tiles: int = 0
    applications: int = 0


def check_user_limits(
    user: str, request: LeaseRequest, held: Collection[LeaseRequest], waiting: Collection[LeaseRequest],
    limits: UserLimits,
) -> None:  # fmt: skip
    """Refuse a request beyond its user's limits; waiting requests count as held.

    A refusal is immediate: a waiting request at the queue's head would block other users.

    Raises:
        NoResources: the message names the limit and its setting.
    """
    asked = [*held, *waiting]
    tiles = sum(each.tiles for each in asked)
    if limits.tiles and tiles + request.tiles > limits.tiles:
        raise _refusal(user, f"{tiles} tiles and requests {request.tiles} more", f"{limits.tiles} (snd.user_tiles)")
    launches = {each.launch for each in asked if each.launch is not None}
    applications = len(launches) + sum(each.launch is None for each in asked)
    is_new = request.launch is None or request.launch not in launches
    if limits.applications and is_new and applications >= limits.applications:
        raise _refusal(user, f"{applications} applications", f"{limits.applications} (snd.user_applications)")


def check_user_waiting(user: str, waiting: Collection[LeaseRequest]) -> None:
    """Refuse to queue another request of a user with too many waiting ones.

    Raises:
        NoResources: ``MAX_WAITING_OF_ONE`` wait already.
    """
    if len(waiting) >= MAX_WAITING_OF_ONE:
        raise _refusal(user, f"{len(waiting)} requests that wait", str(MAX_WAITING_OF_ONE))


def _refusal(user: str, what: str, limit: str) -> NoResources:
    return NoResources(f"user {user} has {what}; the limit of one user is {limit}; release something first",
                       fits_when_empty=False)  # fmt: skip

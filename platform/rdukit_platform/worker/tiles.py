"""The lease of an attempt: tiles and memory of the node, held by the worker across restarts of the node daemon."""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rdukit.box.links import LinkedPart
from rdukit.box.settings import MEMBERS, PART
from rdukit.errors import LeaseWithdrawn, NoResources, RdukitError
from rdukit.settings import LEASE, SND_SOCKET
from rdukit.snd import HeldLease, SndClient, connect_patiently
from rdukit_platform.nodes.topology import NodeLayout, place_members
from rdukit_platform.nodes.view import view_for_scheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TileRequest:
    """Request for tiles: their number, and their owner; ``id`` is a job's or a replica's."""

    application: str
    tiles: int
    tenant_id: str
    id: str
    #: Seconds to wait in the daemon's queue.
    wait_s: float = 0.0
    #: Latest release in seconds from now; tiles whose maintenance begins earlier are not used.
    run_limit_s: float | None = None
    #: Mask of preferred tiles, as in ``nodes.topology``; others are used if these are taken.
    near: int | None = None


@dataclass(frozen=True, slots=True)
class LeasedTiles:
    """Tiles of one member of a job: ``<id>:<token>`` of their lease, and the socket of this lease only."""

    lease: str
    socket: Path


def environment_of(leases: Sequence[LeasedTiles], part: LinkedPart | None = None) -> dict[str, str]:
    """Return the variables that give a box the leases of its members, and its place in the job (pure)."""
    if not leases:
        return {}
    first = {LEASE.variable: leases[0].lease, SND_SOCKET.variable: str(leases[0].socket)}
    if len(leases) == 1 and part is None:
        return first
    place = {} if part is None else {PART.variable: part.to_text()}
    return {**first, MEMBERS.variable: " ".join(f"{each.lease}@{each.socket}" for each in leases), **place}


@contextlib.contextmanager
def leased_tiles(socket: Path, asked: TileRequest) -> Iterator[tuple[dict[str, Any], Path]]:
    """Lease tiles while the block lasts. Yields the lease, and the socket of this lease only for its box.

    Raises:
        NoResources: the tiles are not free.
        Unavailable: the node does not answer.
    """
    with connect_patiently(socket) as snd:
        status = snd.status()
        # Memory in proportion to the tiles of the node.
        share = int(status["memory"]["total"]) // max(len(status["tiles"]), 1) * asked.tiles
        more: dict[str, object] = {}
        if asked.run_limit_s is not None and "maintenance" in (snd.call("hello").get("features") or ()):
            more["run_limit_s"] = asked.run_limit_s
        more |= {"tenant": asked.tenant_id, "job": asked.id, "launch": asked.id}
        take = partial(acquire_share, snd, asked.application[:64], asked.tiles, share)
        lease = None
        if asked.near is not None:
            with contextlib.suppress(NoResources):
                lease = take(0.0, affinity=asked.near, **more)
        lease = lease or take(asked.wait_s, **more)
        # A worker that is root runs its boxes as other users.
        own = snd.own_socket(str(lease["id"]), "666" if os.geteuid() == 0 else "600")
        with HeldLease(snd, lease):
            yield lease, own


def choose_near(socket: Path, tiles: int, members: int) -> Sequence[int | None]:
    """Return the mask of preferred tiles for each member; ``None``: any.

    Raises:
        Unavailable: the node does not answer.
    """
    with connect_patiently(socket) as snd:
        capacity = view_for_scheduler(snd.status())
    if not capacity.rdu_tiles:
        return [None] * members
    layout = NodeLayout(capacity.rdu_tiles, capacity.xrdu_rdus)
    found = place_members(tiles, members, capacity.free_mask, layout)
    return [None] * members if found is None else found.masks


def is_withdrawn(socket: Path, lease: Mapping[str, Any]) -> bool:
    """Return whether an administrator ended the lease. It asks the node, because boxes are not trusted to report it."""
    try:
        with SndClient(socket) as snd:
            snd.attach(str(lease["id"]), str(lease["token"]))
    except LeaseWithdrawn:
        return True
    except (RdukitError, KeyError):
        return False
    return False


def acquire_share(
    snd: SndClient, application: str, tiles: int, share: int, wait_s: float = 0.0, **more: object
) -> dict[str, Any]:
    """Lease tiles with ``share`` bytes of memory, or with less if memory channels are out of service.

    Raises:
        NoResources: the tiles are not free, or less than half of the share is.
    Source:
        ours: without this, a job that asks for all tiles of an RDU would wait until its memory is repaired.
    """
    try:
        return snd.acquire(application, tiles, share, wait_s, **more)
    except NoResources as refused:
        fits = refused.detail.get("fits_memory_bytes")
        if not isinstance(fits, int) or fits < share // 2:
            raise
        logger.warning("less memory than its share application=%s share=%d given=%d", application, share, fits)
        return snd.acquire(application, tiles, fits, 0.0, **more)


def lease_members(
    stack: ExitStack, snd_socket: Path, asked: TileRequest, members: int, leases: list[dict[str, Any]]
) -> list[LeasedTiles]:  # fmt: skip
    """Lease tiles for each member of a job, near each other, until the stack ends. Either all members get theirs or
    none.

    Args:
        leases: each lease is appended to it.
    Raises:
        NoResources, Unavailable: the node has too few free tiles, or does not answer.
    """
    found = list[LeasedTiles]()
    for near in choose_near(snd_socket, asked.tiles, members) if members > 1 else (None,):
        lease, socket = stack.enter_context(leased_tiles(snd_socket, replace(asked, near=near)))
        leases.append(lease)
        found.append(LeasedTiles(f"{lease['id']}:{lease['token']}", socket))
    return found

"""Walls that keep the boxes of a worker's jobs from the machine and one another, and when they are not enough."""

import logging
import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, NotFenced
from rdukit.fence.probe import Fence, what_holds
from rdukit.fence.spec import FenceLimits, Way
from rdukit.settings import resolve
from rdukit_platform.backends.contract import BoxBackend, BoxFence, TriedBackend
from rdukit_platform.services import UNFENCED
from rdukit_platform.settings import BOX_BACKEND, BOX_DISK, FENCE, FENCE_UIDS, PROCESSES, Home

logger = logging.getLogger(__name__)

#: In the folder of the tenants: links whose names are users, and what they point to the tenants that have them.
USERS: Final = "users"
REMEDY: Final = (
    f"run the worker as root or where user namespaces are allowed, or set {BOX_BACKEND.name} to podman, docker or "
    "kubernetes; rdukit doctor --security says more"
)
REMEDY_OF_PODS: Final = "install a network plugin that enforces the policy of the chart, and restart the worker"


class WallKind(StrEnum):
    """Kinds of walls of a job's box."""

    CONTAINER = "container"
    FENCE = "fence"
    NOTHING = UNFENCED


@dataclass(frozen=True, slots=True)
class Walls:
    """Walls of the boxes of a worker."""

    kind: WallKind
    #: Of a fence.
    way: Way | None = None
    #: Of nothing: why, and what to do.
    why: str = ""
    remedy: str = REMEDY

    @property
    def description(self) -> str:
        """Text for others: the kind, and of nothing why, and what to do."""
        return f"{self.kind}: {self.why}; {self.remedy}" if self.why else str(self.kind)


def choose_walls(mode: str, is_process: bool, fence: Fence | None, why_open: str = "") -> Walls:
    """Choose what this worker's boxes get (pure).

    Args:
        mode: the setting ``worker.fence``.
        fence: what holds on this machine; ``None``: that was not asked.
        why_open: of containers that are not kept from the network, why.
    Raises:
        NotFenced: a fence is required and does not hold.
    """
    if not is_process and not why_open:
        return Walls(WallKind.CONTAINER)
    if not is_process:
        if mode == "required":
            raise NotFenced(f"{FENCE.name} is required, and boxes reach the network: {why_open}; {REMEDY_OF_PODS}")
        return Walls(WallKind.NOTHING, why=why_open, remedy=REMEDY_OF_PODS)
    if mode == "off" or fence is None:
        return Walls(WallKind.NOTHING, why=f"{FENCE.name} is off")
    if fence.way is not None:
        return Walls(WallKind.FENCE, fence.way)
    if mode == "required":
        raise NotFenced(f"{FENCE.name} is required, and no fence holds here: {fence.why}; {REMEDY}")
    return Walls(WallKind.NOTHING, why=f"no fence holds here: {fence.why}")


def check_walls(walls: Walls, tenants: int) -> None:
    """Refuse to run the box of any of several tenants without walls (pure).

    Raises:
        NotFenced: the message says why there are none, and what to do.
    """
    if walls.kind is WallKind.NOTHING and tenants > 1:
        raise NotFenced(
            f"there are {tenants} tenants, and the boxes of their jobs are not fenced on this worker: {walls.why}; "
            f"{walls.remedy}"
        )


def open_walls(backend: BoxBackend) -> Walls:
    """Choose by what the settings and the machine, or the cluster, say; the log has it.

    Raises:
        NotFenced: a fence is required and does not hold.
        PermissionDenied: the backend may not do what it has to.
        Unavailable: what is to be tried cannot be tried.
    """
    mode, is_process, why_open = resolve(FENCE), backend.name in PROCESSES, ""
    if isinstance(backend, TriedBackend):
        backend.check_rights()
        why_open = backend.try_network() if mode != "off" else f"{FENCE.name} is off, so their network was not tried"
    walls = choose_walls(mode, is_process, what_holds() if is_process and mode != "off" else None, why_open)
    if walls.kind is WallKind.NOTHING:
        logger.warning("jobs are not fenced, so there may be one tenant only why=%s", walls.why)
    return walls


@dataclass(frozen=True, slots=True)
class TenantFences:
    """The fence of each tenant's boxes: its home folder, and its user where the worker is root."""

    home: Home
    walls: Walls
    uids: range
    limits: FenceLimits = field(default_factory=FenceLimits)
    #: Of tenants that were asked for; they keep theirs.
    _known: dict[str, BoxFence] = field(default_factory=dict, init=False, compare=False, repr=False)

    def of(self, tenant_id: str) -> BoxFence | None:
        """Return the fence of a tenant's box; ``None``: its boxes have none.

        Raises:
            NotFenced: there are no users left for it.
        """
        if self.walls.way is None:
            return None
        if (known := self._known.get(tenant_id)) is not None:
            return known
        folder = self.home.tenants
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        uid = find_uid(folder / USERS, tenant_id, self.uids) if self.walls.way is Way.ROOT else None
        fence = BoxFence(self.walls.way, f"tenant:{tenant_id}", folder / tenant_id, uid, self.limits)
        return self._known.setdefault(tenant_id, fence)


def open_fences(home: Home, walls: Walls) -> TenantFences:
    """Make them by the settings.

    Raises:
        InvalidArgument: the users are none.
    """
    disk = resolve(BOX_DISK) or None
    return TenantFences(home, walls, read_uids(resolve(FENCE_UIDS)), FenceLimits(disk_bytes=disk))


def read_uids(text: str) -> range:
    """Read ``first-last`` as numbers of users (pure).

    Raises:
        InvalidArgument: it is none, or has users that programs of the system may have.
    """
    first, _, last = text.partition("-")
    if not (first.strip().isdecimal() and last.strip().isdecimal()):
        raise InvalidArgument(f"{FENCE_UIDS.name} is {text!r}; legal is FIRST-LAST, such as {FENCE_UIDS.default}")
    uids = range(int(first), int(last) + 1)
    if not uids or uids.start < 1000 or uids.stop > 1 << 31:
        raise InvalidArgument(f"{FENCE_UIDS.name} is {text!r}; legal are users from 1000 to {(1 << 31) - 1}")
    return uids


def find_uid(users: Path, tenant_id: str, uids: range) -> int:
    """Return the tenant's user: the one that it always had here, or the first that nobody has.

    Any number of workers may ask at once: a link is made whole or not at all, and of two the lower one counts.

    Raises:
        NotFenced: all are taken.
    """
    users.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        taken = {int(path.name): os.readlink(path) for path in users.iterdir()}
        own = [uid for uid, owner in taken.items() if owner == tenant_id and uid in uids]
        if own:
            return min(own)
        free = next((uid for uid in uids if uid not in taken), None)
        if free is None:
            raise NotFenced(f"all {len(uids)} users of {FENCE_UIDS.name} are other tenants'; give it more")
        try:
            (users / str(free)).symlink_to(tenant_id)
        except FileExistsError:
            continue

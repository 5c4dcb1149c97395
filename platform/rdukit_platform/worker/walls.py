"""Isolation of a worker's job boxes from the machine and from each other, and the check that it suffices."""

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

#: Folder, in the tenants' folder, of links named by user; each points to the name of the tenant that has the user.
USERS: Final = "users"
REMEDY: Final = (
    f"run the worker as root or where user namespaces are allowed, or set {BOX_BACKEND.name} to podman, docker or "
    "kubernetes; rdukit doctor --security says more"
)
REMEDY_OF_PODS: Final = "install a network plugin that enforces the policy of the chart, and restart the worker"


class WallKind(StrEnum):
    """Kinds of isolation of a job's box."""

    CONTAINER = "container"
    FENCE = "fence"
    NOTHING = UNFENCED


@dataclass(frozen=True, slots=True)
class Walls:
    """Isolation of a worker's boxes."""

    kind: WallKind
    #: Kind of fence, if there is one.
    way: Way | None = None
    #: Without isolation: the reason, and what to do.
    why: str = ""
    remedy: str = REMEDY

    @property
    def description(self) -> str:
        """Return the kind as text; without isolation also the reason, and the remedy."""
        return f"{self.kind}: {self.why}; {self.remedy}" if self.why else str(self.kind)


def choose_walls(mode: str, is_process: bool, fence: Fence | None, why_open: str = "") -> Walls:
    """Choose the isolation of this worker's boxes (pure).

    Args:
        mode: the setting ``worker.fence``.
        fence: the fence that works on this machine; ``None``: not probed.
        why_open: reason why containers can reach the network; empty: they cannot.
    Raises:
        NotFenced: a fence is required and does not work.
    """
    if not is_process and not why_open:
        return Walls(WallKind.CONTAINER)
    if not is_process:
        if mode == "required":
            raise NotFenced(f"{FENCE.name} is required, but boxes reach the network: {why_open}; {REMEDY_OF_PODS}")
        return Walls(WallKind.NOTHING, why=why_open, remedy=REMEDY_OF_PODS)
    if mode == "off" or fence is None:
        return Walls(WallKind.NOTHING, why=f"{FENCE.name} is off")
    if fence.way is not None:
        return Walls(WallKind.FENCE, fence.way)
    if mode == "required":
        raise NotFenced(f"{FENCE.name} is required, but no fence works here: {fence.why}; {REMEDY}")
    return Walls(WallKind.NOTHING, why=f"no fence works here: {fence.why}")


def check_walls(walls: Walls, tenants: int) -> None:
    """Refuse to run boxes of several tenants without isolation (pure).

    Raises:
        NotFenced: the message gives the reason, and what to do.
    """
    if walls.kind is WallKind.NOTHING and tenants > 1:
        raise NotFenced(
            f"there are {tenants} tenants, but job boxes are not fenced on this worker: {walls.why}; {walls.remedy}"
        )


def open_walls(backend: BoxBackend) -> Walls:
    """Choose the isolation from the settings and the machine or cluster, and log it.

    Raises:
        NotFenced: a fence is required and does not work.
        PermissionDenied: the backend lacks a permission.
        Unavailable: the probe cannot run.
    """
    mode, is_process, why_open = resolve(FENCE), backend.name in PROCESSES, ""
    if isinstance(backend, TriedBackend):
        backend.check_rights()
        why_open = backend.try_network() if mode != "off" else f"{FENCE.name} is off, so their network was not tested"
    walls = choose_walls(mode, is_process, what_holds() if is_process and mode != "off" else None, why_open)
    if walls.kind is WallKind.NOTHING:
        logger.warning("jobs are not fenced, so only one tenant is allowed why=%s", walls.why)
    return walls


@dataclass(frozen=True, slots=True)
class TenantFences:
    """The fence of each tenant's boxes: its home folder, and its user if the worker is root."""

    home: Home
    walls: Walls
    uids: range
    limits: FenceLimits = field(default_factory=FenceLimits)
    #: Fences of tenants seen so far; a tenant keeps its fence.
    _known: dict[str, BoxFence] = field(default_factory=dict, init=False, compare=False, repr=False)

    def of(self, tenant_id: str) -> BoxFence | None:
        """Return the fence of a tenant's boxes; ``None``: no fence.

        Raises:
            NotFenced: no user is left for the tenant.
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
    """Return the tenants' fences by the settings.

    Raises:
        InvalidArgument: the setting of users is invalid.
    """
    disk = resolve(BOX_DISK) or None
    return TenantFences(home, walls, read_uids(resolve(FENCE_UIDS)), FenceLimits(disk_bytes=disk))


def read_uids(text: str) -> range:
    """Parse ``first-last`` as a range of uids (pure).

    Raises:
        InvalidArgument: the text has another form, or the range has system users.
    """
    first, _, last = text.partition("-")
    if not (first.strip().isdecimal() and last.strip().isdecimal()):
        raise InvalidArgument(f"{FENCE_UIDS.name} is {text!r}; expected FIRST-LAST, such as {FENCE_UIDS.default}")
    uids = range(int(first), int(last) + 1)
    if not uids or uids.start < 1000 or uids.stop > 1 << 31:
        raise InvalidArgument(f"{FENCE_UIDS.name} is {text!r}; expected users from 1000 to {(1 << 31) - 1}")
    return uids


def find_uid(users: Path, tenant_id: str, uids: range) -> int:
    """Return the tenant's uid: its existing one here, or the first free one.

    Workers may call it concurrently: creating a link is atomic, and of two links the lower uid counts.

    Raises:
        NotFenced: all users are taken.
    """
    users.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        taken = {int(path.name): os.readlink(path) for path in users.iterdir()}
        own = [uid for uid, owner in taken.items() if owner == tenant_id and uid in uids]
        if own:
            return min(own)
        free = next((uid for uid in uids if uid not in taken), None)
        if free is None:
            raise NotFenced(f"all {len(uids)} users of {FENCE_UIDS.name} belong to other tenants; allow more users")
        try:
            (users / str(free)).symlink_to(tenant_id)
        except FileExistsError:
            continue

"""Opening a lease: on the node daemon if there is one, else on a private node inside this process."""

import logging
import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, NoResources, OutOfDeviceMemory, PefMismatch, Unavailable
from rdukit.hardware import CHIPS, NODES, ChipSpec, NodeSpec, find_chip, find_node
from rdukit.settings import LEASE, resolve
from rdukit.snd import SndClient, connect_patiently
from rdukit.units import format_bytes
from rdukit_node.inventory import tile_of_path
from rdukit_node.leases.allocator import Allocator, LeaseId, LeaseRequest
from rdukit_node.leases.client import DaemonLease, NodeLease, PrivateLease, Region
from rdukit_node.leases.launch import read_launch, slurm_job
from rdukit_node.settings import ACQUIRE_WAIT_S, NODE, PLATFORM, socket_path, tile_affinity

__all__ = ["DaemonLease", "NodeLease", "PrivateLease", "Region", "open_lease"]

logger = logging.getLogger(__name__)

#: Longest wait for the daemon's answer.
_TIMEOUT_S: Final = 10.0


def open_lease(
    application: str, *, arch: str | None, tiles: int, memory_bytes: int, launch: str | None = None
) -> NodeLease:
    """Lease ``tiles`` tiles and ``memory_bytes`` of device memory for a program compiled for ``arch``.

    ``$RDUKIT_LEASE`` (``<id>:<token>``) names a lease to attach to; otherwise the setting ``node`` chooses the daemon
    or a private node.

    Args:
        application: the name that ``rdukit node status`` shows.
        arch: a chip's name; ``None`` or empty: any chip.
        launch: leases of one launch count as one application.
    Raises:
        NoResources: too few tiles or too little memory are free, or the lease to attach to has less.
        OutOfDeviceMemory: the lease to attach to has less memory.
        PefMismatch: the daemon's node has another chip than ``arch``.
        InvalidArgument: a number, a chip's name or a setting is not valid.
        Unavailable: the setting or ``$RDUKIT_LEASE`` requires a daemon, which does not answer.
        LeaseLost, NotFound, Unauthenticated: the lease to attach to ended, never was, or has another token.
    Source:
        Ours; exclusive tiles and memory per application are the vendor's (runtime reference 3.2).
    """
    chip = find_chip(arch) if arch else None
    if held := resolve(LEASE):
        return _attach(held, chip, tiles, memory_bytes)
    choice = resolve(NODE)
    if choice != "private":
        path = socket_path()
        client = _find_daemon(path) if choice == "auto" else SndClient(path, _TIMEOUT_S)
        if client is not None:
            return _acquire(client, application, chip, tiles, memory_bytes, launch)
    return _open_private(application, chip, tiles, memory_bytes)


def _find_daemon(path: Path) -> SndClient | None:
    try:
        return SndClient(path, _TIMEOUT_S)
    except Unavailable as error:
        logger.debug("event=no-daemon reason=%s", error)
        return None


def _acquire(
    client: SndClient, application: str, chip: ChipSpec | None, tiles: int, memory_bytes: int, launch: str | None
) -> NodeLease:
    try:
        node, features = _greet(client, chip)
        more: dict[str, object] = {"job": slurm_job(os.environ)}
        wait_s = 0.0
        if "wait" in features:
            wait_s, more["command"] = resolve(ACQUIRE_WAIT_S), command_line()
        lease = client.acquire(
            application, tiles, memory_bytes, wait_s, launch=launch, affinity=tile_affinity(), **more
        )
        cores, report = _isolate(client, lease, node, features)
        held = DaemonLease(client, lease, node.chip, False, features, cores, report)
    except BaseException:
        client.close()
        raise
    logger.info("event=lease lease=%s kind=daemon tiles=%s", lease["id"], len(lease["tiles"]))
    return held


def _attach(held: str, chip: ChipSpec | None, tiles: int, memory_bytes: int) -> NodeLease:
    lease_id, colon, token = held.partition(":")
    if not (lease_id and colon and token):
        raise InvalidArgument(
            f"${LEASE.variable} is not of the form <id>:<token>; unset it or pass the value that acquire returned"
        )
    client = connect_patiently(socket_path(), _TIMEOUT_S)
    try:
        node, features = _greet(client, chip)
        lease = client.attach(lease_id, token)
        if len(lease["tiles"]) < tiles:
            raise NoResources(
                f"the program needs {tiles} tiles, but lease {lease_id} has {len(lease['tiles'])}; compile for fewer "
                "tiles or acquire a larger lease",
                requested_tiles=tiles, fits_tiles=len(lease["tiles"]), fits_when_empty=False,
            )  # fmt: skip
        if int(lease["memory_bytes"]) < memory_bytes:
            raise OutOfDeviceMemory(
                f"the program needs {format_bytes(memory_bytes)} of device memory but lease {lease_id} has "
                f"{format_bytes(int(lease['memory_bytes']))}; acquire a larger lease",
                requested=memory_bytes, granted=int(lease["memory_bytes"]),
            )  # fmt: skip
        cores, report = _isolate(client, lease, node, features)
        attached = DaemonLease(client, lease, node.chip, True, features, cores, report)
    except BaseException:
        client.close()
        raise
    logger.info("event=attach lease=%s kind=daemon tiles=%s", lease_id, len(lease["tiles"]))
    return attached


def _greet(client: SndClient, chip: ChipSpec | None) -> tuple[NodeSpec, frozenset[str]]:
    """Return the node, and its daemon's features beyond the first version of the protocol."""
    hello = client.call("hello")
    node = find_node(str(hello["platform"]))
    if chip is not None and node.chip.name != chip.name:
        raise PefMismatch(
            f"the program was compiled for {chip.name} but the node at {client.path} is a {node.platform} with "
            f"{node.chip.name}; compile with --arch {node.chip.name}, or run privately with {NODE.variable}=private",
            compiled_for=chip.name,
            node=node.chip.name,
        )
    return node, frozenset(map(str, hello.get("features", ())))


def _isolate(
    client: SndClient, lease: Mapping[str, Any], node: NodeSpec, features: frozenset[str]
) -> tuple[int, Mapping[str, object]]:
    """Keep this process apart from other leases' processes, as far as the machine allows, and report the result to the
    daemon.

    Returns the number of the host's cores of the lease's tiles, and the report to the daemon.
    """
    from rdukit_node.isolation.process import apply as apply_isolation  # a private node needs no isolation
    from rdukit_node.isolation.process import leased_cores

    tiles = [tile_of_path(node, path).index for path in lease["tiles"]]
    report = apply_isolation(tiles, node.tiles)
    if "isolation" in features:
        client.call("isolation", lease=lease["id"], report=report)
    return len(leased_cores(tiles, node.tiles)), report


def command_line() -> str:
    """Return this program's command line, for the node's tools: printable, 256 characters at most."""
    text = " ".join(sys.orig_argv) or "python"
    return "".join(character if character.isprintable() else "?" for character in text)[:256]


def _open_private(application: str, chip: ChipSpec | None, tiles: int, memory_bytes: int) -> NodeLease:
    allocator = Allocator(_private_node(chip))
    request = LeaseRequest(application, tiles, memory_bytes, affinity=tile_affinity())
    lease = allocator.acquire(request, LeaseId(f"private-{secrets.token_hex(4)}"), "", time.time())
    return PrivateLease(allocator, lease, ranks_here(os.environ))


def ranks_here(environ: Mapping[str, str]) -> int:
    """Return ranks of this launch on this machine; 1 if the launcher does not report it. Pure."""
    try:
        launch = read_launch(environ)
    except InvalidArgument:  # said where it matters: when the ranks meet
        return 1
    return launch.world_size if launch.is_one_node else 1


def _private_node(chip: ChipSpec | None) -> NodeSpec:
    """Return the platform by setting if it has the chip, else the first one that has."""
    preferred = find_node(resolve(PLATFORM))
    if chip is None or preferred.chip.name == chip.name:
        return preferred
    assert chip.name in CHIPS
    return next(node for node in NODES.values() if node.chip.name == chip.name)

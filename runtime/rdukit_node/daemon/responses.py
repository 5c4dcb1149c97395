"""What the daemon says about leases and tiles, as plain containers (``docs/design/node.md``). Pure."""

from collections.abc import Callable, Mapping, Sequence

from rdukit.errors import RdukitError
from rdukit.hardware import NodeSpec
from rdukit_node.daemon.connections import Peer
from rdukit_node.daemon.protocol import error_body
from rdukit_node.inventory import lanes_of, node_tiles
from rdukit_node.leases.accounting import Totals
from rdukit_node.leases.allocator import Allocator, EndedLease, Lease


def lease_paths(node: NodeSpec, lease: Lease) -> tuple[str, ...]:
    """Paths of a lease's tiles."""
    tiles = node_tiles(node)
    return tuple(tiles[index].path for index in lease.tiles)


def lease_body(node: NodeSpec, lease: Lease, peer: Peer, command: str | None) -> dict[str, object]:
    """A lease as its holder sees it, with its token."""
    request = lease.request
    return {
        "id": lease.id, "token": lease.token, "application": request.application, "tenant": request.tenant,
        "job": request.job, "launch": request.launch, "tiles": list(lease_paths(node, lease)),
        "memory_bytes": lease.memory_bytes, "granted_at": lease.granted_at, "io": lanes_of(node, lease.tiles),
        "user": peer.user, "command": command,
    }  # fmt: skip


def lease_status(
    body: Mapping[str, object],
    totals: Totals,
    phase: str | None,
    allocated: int,
    pids: Sequence[int],
    failure: RdukitError | None,
    isolation: Mapping[str, object],
) -> dict[str, object]:
    """A lease as everybody may see it: without its token, with its counters."""
    counters: dict[str, object] = dict(totals.as_json())
    if phase is not None:
        counters["phase"] = phase
    return {
        **{name: value for name, value in body.items() if name != "token"},
        "memory_allocated": allocated, "pids": list(pids), "counters": counters, "isolation": dict(isolation),
        "fault": None if failure is None else error_body(failure)["error"],
    }  # fmt: skip


def tile_rows(allocator: Allocator, health_of: Callable[[str], str]) -> list[dict[str, object]]:
    """Every tile: who has it, and how it is."""
    rows: list[dict[str, object]] = []
    for tile, holder in zip(node_tiles(allocator.node), allocator.tile_holders, strict=True):
        application = None if holder is None else allocator.leases[holder].request.application
        rows.append(
            {
                "path": tile.path, "rdu": tile.rdu, "tile": tile.tile, "lease": holder, "application": application,
                "health": health_of(tile.path),
            }
        )  # fmt: skip
    return rows


def application_row(
    node: NodeSpec, ended: EndedLease, totals: Totals, peer: Peer, command: str | None, failure: RdukitError | None
) -> dict[str, object]:
    """The accounting of one lease, when it has ended. Times are nanoseconds since the epoch."""
    lease, request = ended.lease, ended.lease.request
    counters = totals.as_json()
    return {
        "lease": lease.id, "application": request.application, "tenant": request.tenant, "job": request.job,
        "user": peer.user, "pid": peer.pid, "command": command, "tiles": list(lease_paths(node, lease)),
        "memory_bytes": lease.memory_bytes, "granted_at": int(lease.granted_at * 1e9),
        "ended_at": int(ended.ended_at * 1e9), "reason": str(ended.reason),
        **{name: counters[name] for name in ("runs", "sections", "cycles", "flops", "bytes", "host_seconds")},
        "fault": None if failure is None else failure.detail.get("fault_uuid") or failure.detail.get("error_uuid"),
    }  # fmt: skip

"""Differences between two readings of a node: shares of time by tile and by lease, bytes by channel and link.

The daemon's counters only grow, so tools, exporter and live picture show the difference of two readings. Only
``take_reading`` asks a node.

Source: runtime reference 6.1 (six shares that add up to 100), 6.2 (differences of hardware counters).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

#: The five ways in which a tile is busy, in sntilestat's order; the rest of the time is idle.
BUSY_PHASES: Final = ("exec", "pload", "aload", "chkpt", "quiesce")
#: The six shares of a tile, in sntilestat's order.
SHARES: Final = ("idle", *BUSY_PHASES)
#: Health of components that take part; others carry no traffic.
WORKING: Final = frozenset({"Online", "Degraded"})
_AMOUNTS: Final = (
    "ddr_read_bytes", "ddr_written_bytes", "pcie_rx_bytes", "pcie_tx_bytes",
    "runs", "sections", "cycles", "flops", "host_seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """A node at one moment: its answers to ``counters`` and ``status``, and its inventory's rows if asked for."""

    counters: Mapping[str, Any]
    status: Mapping[str, Any]
    components: Sequence[Mapping[str, Any]] = ()

    @property
    def time_ns(self) -> int:
        """Nanoseconds since the epoch, by the daemon's clock."""
        return int(self.counters["time_ns"])


@dataclass(frozen=True, slots=True)
class TileHolder:
    """The holder of a lease, and its resources."""

    lease: str
    application: str
    tenant: str | None
    job: str | None
    #: Leases of one launch are one application.
    launch: str | None
    user: str | None
    #: The process that acquired the lease, and all that hold it.
    pid: int | None
    pids: tuple[int, ...]
    command: str
    phase: str
    tiles: tuple[str, ...]
    memory_bytes: int
    granted_at: float
    #: Lanes by the path of the PCIe link.
    lanes: tuple[tuple[str, int], ...]
    #: Message of the failure that ended its use.
    fault: str | None


@dataclass(frozen=True, slots=True)
class TileShares:
    """Shares of one tile's time in the window: ``tenths`` of a percent in the order of ``SHARES``, 1000 in all."""

    path: str
    rdu: int
    tile: int
    health: str
    tenths: tuple[int, ...]
    holder: TileHolder | None

    @property
    def is_working(self) -> bool:
        """True if the tile can be used."""
        return self.health in WORKING


@dataclass(frozen=True, slots=True)
class LeaseRates:
    """Activity of one lease in the window: shares of a tile's time, and amounts per second."""

    holder: TileHolder
    tenths: tuple[int, ...]
    ddr_read_bytes: float
    ddr_written_bytes: float
    pcie_rx_bytes: float
    pcie_tx_bytes: float
    runs: float
    sections: float
    cycles: float
    flops: float
    #: Seconds of the host's work a second.
    host_seconds: float


@dataclass(frozen=True, slots=True)
class RduRates:
    """Bytes a second and replays of one RDU. ``state``: the words of ``op_state``."""

    path: str
    rdu: int
    state: str
    ddr_read_bytes: float
    ddr_written_bytes: float
    pcie_rx_bytes: float
    pcie_tx_bytes: float
    pcie_replays: int


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split ``total`` into whole parts in proportion to ``weights``, so that they add up to it exactly.

    The largest remainders are rounded up, the earlier one of two equal ones. Without any weight all are equal.
    """
    if not weights:
        return []
    whole = sum(weights)
    if whole <= 0:
        return apportion(total, [1] * len(weights))
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def window_ns(before: Reading, after: Reading) -> int:
    """Return nanoseconds between two readings; at least 1, even if the machine's clock was set back."""
    return max(1, after.time_ns - before.time_ns)


def holders(reading: Reading) -> dict[str, TileHolder]:
    """Return the holders of leases by lease id, in the daemon's order."""
    details = {row["id"]: row for row in reading.status.get("leases", ())}
    return {row["id"]: _holder(row, details.get(row["id"], {})) for row in reading.counters.get("leases", ())}


def tile_shares(before: Reading, after: Reading) -> list[TileShares]:
    """Compute the shares of every tile's time between the readings, in the node's order."""
    window = window_ns(before, after)
    by_lease = holders(after)
    health = {row["path"]: str(row["health"]) for row in after.status.get("tiles", ())}
    return [
        TileShares(
            path=row["path"],
            rdu=int(row["rdu"]),
            tile=int(row["tile"]),
            health=health.get(row["path"], "Online"),
            tenths=_tenths(row, old, window),
            holder=by_lease.get(row["lease"]),
        )
        for row, old in _pairs(before, after, "tiles", "path")
    ]


def lease_rates(before: Reading, after: Reading) -> list[LeaseRates]:
    """Compute the activity of every present lease between the readings."""
    window = window_ns(before, after)
    by_lease = holders(after)
    return [
        LeaseRates(
            by_lease[row["id"]],
            _tenths(row, old, window),
            *(max(0.0, _number(row, name) - _number(old, name)) * 1e9 / window for name in _AMOUNTS),
        )
        for row, old in _pairs(before, after, "leases", "id")
    ]


def rdu_rates(before: Reading, after: Reading) -> list[RduRates]:
    """Compute the traffic of every RDU between the readings."""
    window = window_ns(before, after)
    states = {int(row["rdu"]): str(row["state"]) for row in after.status.get("rdus", ())}
    return [
        RduRates(
            path=row["path"],
            rdu=int(row["rdu"]),
            state=states.get(int(row["rdu"]), "FUNCTIONAL"),
            ddr_read_bytes=grown(row, old, "ddr_read_bytes") * 1e9 / window,
            ddr_written_bytes=grown(row, old, "ddr_written_bytes") * 1e9 / window,
            pcie_rx_bytes=grown(row, old, "pcie_rx_bytes") * 1e9 / window,
            pcie_tx_bytes=grown(row, old, "pcie_tx_bytes") * 1e9 / window,
            pcie_replays=grown(row, old, "pcie_replays"),
        )
        for row, old in _pairs(before, after, "rdus", "path")
    ]


def rdu_pairs(before: Reading, after: Reading) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the RDUs' rows of both readings, the newer first."""
    return _pairs(before, after, "rdus", "path")


def lease_pairs(before: Reading, after: Reading) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the present leases' rows of both readings, the newer first; a new lease has an empty older one."""
    return _pairs(before, after, "leases", "id")


def grown(after: Mapping[str, Any], before: Mapping[str, Any], name: str) -> int:
    """Return the growth of a counter; never negative."""
    return max(0, _amount(after, name) - _amount(before, name))


_PHASE_NAMES: Final = tuple(f"{phase}_ns" for phase in BUSY_PHASES)
_RDU_NAMES: Final = (*_AMOUNTS[:4], "pcie_replays")


def _holder(row: Mapping[str, Any], details: Mapping[str, Any]) -> TileHolder:
    pid = row.get("pid")
    fault = details.get("fault")
    return TileHolder(
        lease=str(row["id"]),
        application=str(row["application"]),
        tenant=row.get("tenant"),
        job=row.get("job"),
        launch=details.get("launch"),
        user=row.get("user"),
        pid=pid,
        pids=tuple(details.get("pids") or ([] if pid is None else [pid])),
        command=str(row.get("command") or row["application"]),
        phase=str(row.get("phase") or "setup"),
        tiles=tuple(row.get("tiles") or ()),
        memory_bytes=int(details.get("memory_bytes", 0)),
        granted_at=float(details.get("granted_at", 0.0)),
        lanes=tuple((str(lane["path"]), int(lane["lanes"])) for lane in details.get("io") or ()),
        fault=None if not fault else str(fault.get("message", fault)) if isinstance(fault, Mapping) else str(fault),
    )


def _tenths(after: Mapping[str, Any], before: Mapping[str, Any], window: int) -> tuple[int, ...]:
    busy = [grown(after, before, name) for name in _PHASE_NAMES]
    # Two processes that share a lease may be busy at the same time; their sum is limited to always busy.
    return tuple(apportion(1000, [max(0, window - sum(busy)), *busy]))


def _pairs(before: Reading, after: Reading, table: str, key: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    old = {row[key]: row for row in before.counters.get(table, ())}
    return [(row, old.get(row[key], {})) for row in after.counters.get(table, ())]


def _amount(row: Mapping[str, Any], name: str) -> int:
    return int(row.get(name) or 0)


def _number(row: Mapping[str, Any], name: str) -> float:
    return float(row.get(name) or 0)


class NodeClient(Protocol):
    """A client that answers a node's operations: a connection to its daemon."""

    def call(self, op: str) -> Mapping[str, Any]:
        """Return the answer; see ``docs/design/node.md``."""
        ...


def take_reading(node: NodeClient, with_components: bool = False) -> Reading:
    """Ask for counters and status, and for the inventory if wanted.

    Counters are read last, so that their time is that of the reading.

    Raises:
        Unavailable: the daemon went away.
    """
    components = node.call("inventory")["components"] if with_components else ()
    status = node.call("status")
    return Reading(node.call("counters"), status, components)

"""Bytes between two readings, spread over the DDR channels and PCIe links of the RDUs that moved them. Pure.

The daemon counts by RDU and by lease. Device memory is interleaved over an RDU's working channels; a lease's transfers
use its granted lanes. Traffic of a channel or link that is out of service moves to the others.

Source: ours; that such statistics exist, by channel and link, is runtime reference 6.2.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rdukit.hardware import find_node
from rdukit_node.telemetry.sampling import (
    WORKING,
    Reading,
    TileHolder,
    apportion,
    grown,
    holders,
    lease_pairs,
    rdu_pairs,
    window_ns,
)

DDR: Final = "DDRCH"
PCIE: Final = "PCIE"
#: Names of the counters by kind: read or received, and written or sent.
_COUNTERS: Final = {DDR: ("ddr_read_bytes", "ddr_written_bytes"), PCIE: ("pcie_rx_bytes", "pcie_tx_bytes")}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes over one channel or link for one lease; a component that several leases use has a row for each."""

    path: str
    kind: str
    rdu: int
    health: str
    #: Read (DDR) or received by the device (PCIe).
    in_bytes: int
    #: Written (DDR) or sent by the device (PCIe).
    out_bytes: int
    replays: int
    seconds: float
    #: Bytes a second: of a channel both ways together, of a link each way.
    capacity: float
    holder: TileHolder | None

    @property
    def in_rate(self) -> float:
        """Bytes a second."""
        return self.in_bytes / self.seconds

    @property
    def out_rate(self) -> float:
        """Bytes a second."""
        return self.out_bytes / self.seconds

    @property
    def percent(self) -> float:
        """Percent of the capacity; a link's busier direction counts."""
        used = self.in_rate + self.out_rate if self.kind == DDR else max(self.in_rate, self.out_rate)
        return 100.0 * used / self.capacity

    @property
    def is_working(self) -> bool:
        """True if anything can go through."""
        return self.health in WORKING


def spread_traffic(before: Reading, after: Reading, kind: str) -> list[Traffic]:
    """Return rows of every channel (``DDR``) or link (``PCIE``) in the node's order; the readings carry the inventory.

    The bytes of an RDU's rows add up to the RDU's total, unless all its components are broken.

    Raises:
        InvalidArgument: the node's platform is not known here.
    """
    node = find_node(str(after.status["platform"]))
    channel = node.chip.ddr_bandwidth / node.chip.ddr_channels
    capacity = channel if kind == DDR else node.board.pcie_link_bandwidth
    health = component_health(after.components, kind)
    seconds = window_ns(before, after) / 1e9
    by_lease = holders(after)
    rows: list[Traffic] = []
    for rdu, old in rdu_pairs(before, after):
        parts = _Parts(kind, rdu, old, lease_pairs(before, after), by_lease, health)
        rows += [
            Traffic(path, kind, int(rdu["rdu"]), health, into, out, replays, seconds, capacity, holder)
            for path, health, into, out, replays, holder in parts.rows()
        ]
    return rows


def component_health(components: Sequence[Mapping[str, Any]], kind: str) -> dict[str, str]:
    """Return health of every component of a kind by its path; a channel is no better than the modules in its slots."""
    words = {row["comp_name"]: _health(row) for row in components if row["kind"] == kind}
    for row in components:
        channel = row.get("parent")
        if row["kind"] == "DIMM" and row.get("presence") == "Present" and words.get(channel) == "Online":
            words[channel] = str(row["health"])
    return words


def _health(row: Mapping[str, Any]) -> str:
    return str(row["health"]) if row.get("presence", "Present") == "Present" else str(row["presence"])


class _Parts:
    """An RDU's bytes: first by lease, then by component."""

    def __init__(
        self,
        kind: str,
        rdu: Mapping[str, Any],
        old: Mapping[str, Any],
        leases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
        by_lease: Mapping[str, TileHolder],
        health: Mapping[str, str],
    ) -> None:
        self.kind = kind
        self.prefix = f"{rdu['path']}/"
        self.components = [(path, word) for path, word in health.items() if path.startswith(self.prefix)]
        self.working = [i for i, (_, health) in enumerate(self.components) if health in WORKING]
        here = [(row, before) for row, before in leases if self._tiles_here(by_lease[row["id"]])]
        #: The leases on this RDU, and ``None`` for leases that ended in between.
        self.holders: list[TileHolder | None] = [*(by_lease[row["id"]] for row, _ in here), None]
        self.amounts = [self._by_holder(grown(rdu, old, name), name, here) for name in _COUNTERS[kind]]
        self.replays = grown(rdu, old, "pcie_replays") if kind == PCIE else 0

    def rows(self) -> Iterator[tuple[str, str, int, int, int, TileHolder | None]]:
        weights = [self._weights(holder) for holder in self.holders]
        into, out = (
            [
                apportion(amount, row) if any(row) else [0] * len(row)
                for amount, row in zip(amounts, weights, strict=True)
            ]
            for amounts in self.amounts
        )
        replays = self._replays([sum(column) for column in zip(*into, *out, strict=True)])
        for i, (path, health) in enumerate(self.components):
            users = [
                h for h, holder in enumerate(self.holders)
                if (holder is not None and weights[h][i]) or into[h][i] or out[h][i]
            ]  # fmt: skip
            if not users:
                yield path, health, 0, 0, replays[i], None
            for position, h in enumerate(users):
                yield path, health, into[h][i], out[h][i], replays[i] if position == 0 else 0, self.holders[h]

    def _tiles_here(self, holder: TileHolder) -> int:
        return sum(path.startswith(self.prefix) for path in holder.tiles)

    def _by_holder(
        self, total: int, name: str, here: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> list[int]:
        """Parts of ``total`` by holder. A lease over several RDUs moves bytes in proportion to its tiles."""
        shares = []
        for holder, (row, before) in zip(self.holders, here, strict=False):
            assert holder is not None
            shares.append(grown(row, before, name) * self._tiles_here(holder) // max(1, len(holder.tiles)))
        rest = max(0, total - sum(shares))
        if rest < len(shares) and any(shares):
            rest = 0  # the divisions' remainders
        return apportion(total, [*shares, rest if any(shares) or rest else 1])

    def _weights(self, holder: TileHolder | None) -> list[int]:
        """Weigh the components: by lanes of the links that the lease was granted, else all that work alike."""
        even = [int(i in self.working) for i in range(len(self.components))]
        if self.kind != PCIE or holder is None:
            return even
        lanes = dict(holder.lanes)
        granted = [lanes.get(path, 0) * works for (path, _), works in zip(self.components, even, strict=True)]
        return granted if any(granted) else even

    def _replays(self, moved: Sequence[int]) -> list[int]:
        """Spread an RDU's count over its degraded links if there are any, else by each link's traffic."""
        degraded = [int(health == "Degraded") for _, health in self.components]
        working = [int(i in self.working) for i in range(len(self.components))]
        weights = degraded if any(degraded) else list(moved) if any(moved) else working
        return apportion(self.replays, weights) if any(weights) else [0] * len(self.components)

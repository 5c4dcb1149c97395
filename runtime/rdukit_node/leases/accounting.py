"""Accounting of leases, tiles and RDUs since the daemon started: sums, without a clock or shared memory.

A lease's totals are spread evenly over its RDUs, except traffic between them; its phases count for each of its tiles.

Source: ours; that the tools show differences of such counters is the vendor's (runtime reference 6.2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any, Final

from rdukit.hardware import NodeSpec
from rdukit_node.inventory import node_tiles, rdu_path
from rdukit_node.status_page import PageValues

#: Names of the nanosecond counters, in the order of ``status_page.TIMED_PHASES``.
PHASE_COUNTERS: Final = ("exec_ns", "pload_ns", "aload_ns", "chkpt_ns", "quiesce_ns")
BYTE_COUNTERS: Final = ("ddr_read_bytes", "ddr_written_bytes", "pcie_rx_bytes", "pcie_tx_bytes")

LINK_COUNTERS: Final = ("link_rx_bytes", "link_tx_bytes")
#: Byte counter → the part of it that is known per RDU.
_LINKED: Final = {"pcie_rx_bytes": "link_rx_bytes", "pcie_tx_bytes": "link_tx_bytes"}


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Counted by one holder, or by all of a lease; whole numbers from 0."""

    exec_ns: int = 0
    pload_ns: int = 0
    aload_ns: int = 0
    chkpt_ns: int = 0
    quiesce_ns: int = 0
    ddr_read_bytes: int = 0
    ddr_written_bytes: int = 0
    pcie_rx_bytes: int = 0
    pcie_tx_bytes: int = 0
    runs: int = 0
    sections: int = 0
    cycles: int = 0
    flops: int = 0
    #: Part of ``pcie_rx_bytes`` and ``pcie_tx_bytes`` between the lease's own RDUs, by RDU in order.
    link_rx_bytes: tuple[int, ...] = ()
    link_tx_bytes: tuple[int, ...] = ()

    def __add__(self, other: "UsageTotals") -> "UsageTotals":
        values: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in _NAMES}
        for name in LINK_COUNTERS:
            both = zip_longest(getattr(self, name), getattr(other, name), fillvalue=0)
            values[name] = tuple(a + b for a, b in both)
        return UsageTotals(**values)

    @property
    def host_seconds(self) -> float:
        """Seconds that this machine spent in sections."""
        return self.exec_ns / 1e9

    def as_json(self) -> dict[str, int | float]:
        """Return every counter, and the two that follow from others."""
        values: dict[str, int | float] = {name: getattr(self, name) for name in _NAMES}
        return {
            **values, "bytes": self.ddr_read_bytes + self.ddr_written_bytes, "host_seconds": self.host_seconds
        }  # fmt: skip


_NAMES: Final = tuple(field.name for field in fields(UsageTotals) if field.name not in LINK_COUNTERS)


def totals_of_page(values: PageValues) -> UsageTotals:
    """Return the totals on a holder's page."""
    execute, program_load, argument_load, checkpoint, quiesce = values.phase_ns
    return UsageTotals(
        execute, program_load, argument_load, checkpoint, quiesce,
        values.ddr_read, values.ddr_written, values.pcie_rx, values.pcie_tx,
        values.runs, values.sections, values.cycles, values.flops, values.link_rx, values.link_tx,
    )  # fmt: skip


def totals_of_report(counters: Mapping[str, float | str]) -> UsageTotals:
    """Return the totals that a holder without a page reported. Reports do not distinguish reads and writes: all count
    as reads.
    """

    def number(name: str) -> float:
        value = counters.get(name, 0)
        assert not isinstance(value, str)
        return value

    return UsageTotals(
        exec_ns=int(number("host_seconds") * 1e9),
        ddr_read_bytes=int(number("bytes")),
        runs=int(number("runs")),
        sections=int(number("sections")),
        cycles=int(number("cycles")),
        flops=int(number("flops")),
    )


class NodeTotals:
    """Sums by tile and by RDU of the leases that ended."""

    def __init__(self, node: NodeSpec) -> None:
        self._node = node
        self._tiles = [[0] * len(PHASE_COUNTERS) for _ in range(node.tiles)]
        self._rdus = [[0] * len(BYTE_COUNTERS) for _ in range(node.rdus)]

    def book(self, tiles: Sequence[int], totals: UsageTotals) -> None:
        """Add a lease's totals. ``tiles``: its flat tile numbers."""
        _add(self._node, self._tiles, self._rdus, tiles, totals)

    def rows(
        self,
        active: Sequence[tuple[Sequence[int], UsageTotals]],
        leases: Sequence[str | None],
        replays: Mapping[int, int],
    ) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
        """Return rows of the ``counters`` operation, by tile and by RDU, with the active leases' totals added.

        Args:
            active: flat tile numbers and totals of each active lease. leases: holder of each tile, by flat number.
            replays: PCIe replays by flat RDU number.
        """
        by_tile, by_rdu = [list(row) for row in self._tiles], [list(row) for row in self._rdus]
        for tiles, totals in active:
            _add(self._node, by_tile, by_rdu, tiles, totals)
        tile_rows: list[dict[str, object]] = [
            {
                "path": tile.path, "rdu": tile.rdu, "tile": tile.tile, "lease": leases[tile.index],
                **dict(zip(PHASE_COUNTERS, by_tile[tile.index], strict=True)),
            }
            for tile in node_tiles(self._node)
        ]  # fmt: skip
        rdu_rows: list[dict[str, object]] = [
            {
                "path": rdu_path(self._node, rdu), "rdu": rdu, **dict(zip(BYTE_COUNTERS, row, strict=True)),
                "pcie_replays": replays.get(rdu, 0),
            }
            for rdu, row in enumerate(by_rdu)
        ]  # fmt: skip
        return tile_rows, rdu_rows


def _add(
    node: NodeSpec, by_tile: list[list[int]], by_rdu: list[list[int]], tiles: Sequence[int], totals: UsageTotals
) -> None:
    times = [getattr(totals, name) for name in PHASE_COUNTERS]
    for index in tiles:
        by_tile[index] = [a + b for a, b in zip(by_tile[index], times, strict=True)]
    rdus = sorted({index // node.chip.tiles for index in tiles})
    for position, name in enumerate(BYTE_COUNTERS):
        linked = getattr(totals, _LINKED[name]) if name in _LINKED else ()
        share, rest = divmod(getattr(totals, name) - sum(linked), len(rdus))
        for i, rdu in enumerate(rdus):
            by_rdu[rdu][position] += share + (1 if i < rest else 0) + (linked[i] if i < len(linked) else 0)

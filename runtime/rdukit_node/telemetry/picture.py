"""The node at a glance: its tiles as a grid with a letter for each application, and the applications' activity. Pure.

Source: ours.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rdukit_node.telemetry.sampling import (
    LeaseRates,
    RduRates,
    Reading,
    TileHolder,
    TileShares,
    lease_rates,
    rdu_rates,
    tile_shares,
)

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+*"


@dataclass(frozen=True, slots=True)
class TileCell:
    """A tile. ``slot``: its application's number; ``None``: free."""

    slot: int | None
    #: Percent of the window in which it was not idle.
    busy: float
    health: str
    is_working: bool


@dataclass(frozen=True, slots=True)
class RduPicture:
    """An RDU: its tiles and its traffic. ``exec_percent``: mean of the tiles that somebody has, if any."""

    name: str
    cells: tuple[TileCell, ...]
    exec_percent: float | None
    rates: RduRates


@dataclass(frozen=True, slots=True)
class XrduPicture:
    """A module of RDUs."""

    name: str
    rdus: tuple[RduPicture, ...]


@dataclass(frozen=True, slots=True)
class RunningApplication:
    """An application: all leases of a launch together."""

    slot: int
    holders: tuple[TileHolder, ...]
    tiles: int
    exec_percent: float
    idle_percent: float
    #: Bytes and operations a second.
    ddr_bytes: float
    pcie_bytes: float
    flops: float
    runs: float

    @property
    def first(self) -> TileHolder:
        """The holder that stands for it: of the oldest lease."""
        return self.holders[0]

    @property
    def letter(self) -> str:
        """Shown in its tiles."""
        return LETTERS[self.slot % len(LETTERS)]


@dataclass(frozen=True, slots=True)
class Picture:
    """Content of the live picture at one moment."""

    status: Mapping[str, Any]
    time_ns: int
    xrdus: tuple[XrduPicture, ...]
    occupants: tuple[RunningApplication, ...]
    faults: tuple[Mapping[str, Any], ...]
    waiting: tuple[Mapping[str, Any], ...]

    @property
    def tiles_in_use(self) -> int:
        """Tiles that somebody has."""
        return sum(cell.slot is not None for x in self.xrdus for rdu in x.rdus for cell in rdu.cells)

    @property
    def is_whole(self) -> bool:
        """Return whether every RDU and tile is in service, which excludes pending recoveries."""
        return all(
            rdu.rates.state == "FUNCTIONAL" and all(cell.is_working for cell in rdu.cells)
            for xrdu in self.xrdus
            for rdu in xrdu.rdus
        )


class SlotNumbers:
    """Numbers of applications: the lowest free one, kept during the application's life."""

    def __init__(self) -> None:
        #: By the application's key.
        self.taken: dict[str, int] = {}

    def assign(self, keys: Collection[str]) -> Mapping[str, int]:
        """Return the number of each key; numbers of other keys become free."""
        self.taken = {key: slot for key, slot in self.taken.items() if key in keys}
        for key in keys:
            if key not in self.taken:
                used = set(self.taken.values())
                self.taken[key] = next(slot for slot in range(len(used) + 1) if slot not in used)
        return self.taken


def application_key(holder: TileHolder) -> str:
    """Return the key that the leases of one application share."""
    return f"launch {holder.launch}" if holder.launch else f"lease {holder.lease}"


def make_picture(
    before: Reading, after: Reading, faults: Sequence[Mapping[str, Any]], slots: Mapping[str, int]
) -> Picture:
    """Return the picture of the time between two readings.

    Args:
        faults: rows of the ``faults`` answer; cleared ones are left out.
        slots: number of each application, by ``application_key``.
    """
    tiles = tile_shares(before, after)
    xrdus: dict[str, list[RduPicture]] = {}
    for rates in rdu_rates(before, after):
        _, _, xrdu, rdu = rates.path.split("/")
        mine = [tile for tile in tiles if tile.rdu == rates.rdu]
        xrdus.setdefault(xrdu, []).append(_rdu_view(rdu, mine, rates, slots))
    severity = {"Critical": 0, "Major": 1, "Minor": 2}
    active = [fault for fault in faults if fault["fault_state"] == "ACTIVE"]
    return Picture(
        status=after.status,
        time_ns=after.time_ns,
        xrdus=tuple(XrduPicture(name, tuple(rdus)) for name, rdus in xrdus.items()),
        occupants=_occupants(lease_rates(before, after), slots),
        faults=tuple(sorted(active, key=lambda fault: (severity.get(fault["severity"], 3), -int(fault["timestamp"])))),
        waiting=tuple(after.status.get("waiting", ())),
    )


def of_job(picture: Picture, job: str) -> Picture:
    """Return a picture with the applications and requests of one job; tiles and faults are those of the node."""
    return replace(
        picture,
        occupants=tuple(each for each in picture.occupants if any(holder.job == job for holder in each.holders)),
        waiting=tuple(row for row in picture.waiting if row["job"] == job),
    )


def _rdu_view(name: str, tiles: Sequence[TileShares], rates: RduRates, slots: Mapping[str, int]) -> RduPicture:
    cells = tuple(
        TileCell(
            slot=None if tile.holder is None else slots[application_key(tile.holder)],
            busy=100 - tile.tenths[0] / 10,
            health=tile.health,
            is_working=tile.is_working,
        )
        for tile in tiles
    )
    held = [tile.tenths[1] / 10 for tile in tiles if tile.holder is not None]
    return RduPicture(name, cells, sum(held) / len(held) if held else None, rates)


def _occupants(leases: Sequence[LeaseRates], slots: Mapping[str, int]) -> tuple[RunningApplication, ...]:
    groups: dict[str, list[LeaseRates]] = {}
    for lease in sorted(leases, key=lambda lease: lease.holder.granted_at):
        groups.setdefault(application_key(lease.holder), []).append(lease)
    found = []
    for key, group in groups.items():
        weights = [max(1, len(lease.holder.tiles)) for lease in group]
        shares = [
            sum(weight * lease.tenths[i] for weight, lease in zip(weights, group, strict=True)) / sum(weights) / 10
            for i in (0, 1)
        ]
        found.append(
            RunningApplication(
                slot=slots[key],
                holders=tuple(lease.holder for lease in group),
                tiles=sum(len(lease.holder.tiles) for lease in group),
                exec_percent=shares[1],
                idle_percent=shares[0],
                ddr_bytes=sum(lease.ddr_read_bytes + lease.ddr_written_bytes for lease in group),
                pcie_bytes=sum(lease.pcie_rx_bytes + lease.pcie_tx_bytes for lease in group),
                flops=sum(lease.flops for lease in group),
                runs=sum(lease.runs for lease in group),
            )
        )
    return tuple(sorted(found, key=lambda occupant: occupant.slot))

"""Emulated hardware as data: chips and nodes.

Source: compiler reference 8.1, 8.2 (public figures; clock rates are inferred there from peak rates) and runtime
reference 1.1 to 1.3. ``Test`` platforms are ours: small, for tests.

PCIe links of an RDU: an inventory listing of a platform with 4 tiles has ids up to 11, so the SN10 has 12; those of
SN30 and SN40L are not published and are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rdukit.errors import InvalidArgument, suggest

MIB: Final = 1024**2
GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class ChipSpec:
    """An RDU."""

    name: str
    tiles: int
    pcus_per_tile: int
    pmus_per_tile: int
    pmu_bytes: int
    clock_hz: float
    ddr_channels: int
    ddr_bytes: int
    #: Peak streaming bytes a second of all channels together.
    ddr_bandwidth: float
    hbm_bytes: int
    hbm_bandwidth: float
    pcie_links: int
    pcie_bandwidth: float

    @property
    def pcus(self) -> int:
        return self.tiles * self.pcus_per_tile

    @property
    def pmus(self) -> int:
        return self.tiles * self.pmus_per_tile

    def peak_flops(self, tiles: int) -> float:
        """Return bf16 floating-point operations a second of ``tiles`` tiles: 384 per PCU and cycle."""
        return tiles * self.pcus_per_tile * 384 * self.clock_hz


CHIPS: Final = {
    chip.name: chip
    for chip in (
        ChipSpec("sn10", 4, 160, 160, MIB // 2, 1.32e9, 6, 384 * GIB, 128e9, 0, 0.0, 12, 32e9),
        ChipSpec("sn30", 8, 160, 160, MIB // 2, 1.40e9, 8, 1024 * GIB, 204.8e9, 0, 0.0, 6, 32e9),
        ChipSpec("sn40l", 4, 260, 260, MIB // 2, 1.60e9, 4, 1536 * GIB, 100e9, 64 * GIB, 1.6e12, 4, 32e9),
    )
}

#: Alternative spellings for ``--arch`` in programs. sn20 has no public figures and is treated as sn10 (ours).
CHIP_ALIASES: Final = {
    "sn20": "sn10", "sn40": "sn40l", "sn10-8": "sn10", "sn30-8": "sn30", "sn40l-8": "sn40l", "sn40l-16": "sn40l",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """An XRDU's board without the chips: memory modules and PCIe links."""

    #: Letters of the DIMM slots as printed on the board, by RDU of the XRDU and by channel. Boards print
    #: letters in no fixed order. Channels beyond the table get the next letters of the alphabet.
    dimm_letters: tuple[str, ...] = ()
    #: Bytes of the module in each slot of a channel, 0 for an empty slot; ``()``: one slot with the channel's share.
    dimm_bytes: tuple[int, ...] = ()
    dimm_part: str = "N/A"
    #: Bytes a second, transfers a second and lanes of one PCIe link.
    pcie_link_bandwidth: float = 32e9
    pcie_transfers: float = 16e9
    pcie_width: int = 16


#: Published: on the SN10 RDU_0 channel 0 has C, RDU_1 channels 0 and 1 have G and H, two slots a channel of which the
#: first has 64 GB and the second is empty; on the SN30 RDU_1 channels 6 and 7 have L and M, one slot a channel. The
#: other letters, the SN40L's three slots and all part numbers are ours. Letters never repeat within an XRDU.
BOARDS: Final = {
    "sn10": BoardSpec(("CDEFAB", "GHJKLM"), (64 * GIB, 0), "RDUKIT-DDR4-64G"),
    "sn30": BoardSpec(("CDABNPQR", "EFGHJKLM"), (128 * GIB,), "RDUKIT-DDR4-128G"),
    "sn40l": BoardSpec(("ABCD", "EFGH"), (128 * GIB,) * 3, "RDUKIT-DDR5-128G"),
}

_LETTERS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """An emulated node: ``xrdus`` modules with ``rdus_per_xrdu`` chips each."""

    platform: str
    chip: ChipSpec
    xrdus: int
    rdus_per_xrdu: int
    #: Maximum applications at the same time: 8 in the vendor's overview; a setting of the daemon.
    max_applications: int = 8
    board: BoardSpec = field(default_factory=BoardSpec)

    @property
    def title(self) -> str:
        """The platform as the vendor's tools print it."""
        return f"DataScale {self.platform}"

    @property
    def rdus(self) -> int:
        return self.xrdus * self.rdus_per_xrdu

    @property
    def tiles(self) -> int:
        return self.rdus * self.chip.tiles

    def dimm_slots(self, rdu_in_xrdu: int, channel: int) -> tuple[tuple[str, int], ...]:
        """Return name (``DIMM_C0``) and bytes of each memory slot of a channel; 0 bytes: the slot is empty."""
        tables = self.board.dimm_letters
        table = tables[rdu_in_xrdu] if rdu_in_xrdu < len(tables) else ""
        if channel < len(table):
            letter = table[channel]
        else:
            group, place = divmod(rdu_in_xrdu * self.chip.ddr_channels + channel, len(_LETTERS))
            letter = _LETTERS[place] * (group + 1)
        sizes = self.board.dimm_bytes or (self.chip.ddr_bytes // self.chip.ddr_channels,)
        return tuple((f"DIMM_{letter}{slot}", size) for slot, size in enumerate(sizes))


NODES: Final = {
    node.platform: node
    for node in (
        NodeSpec("SN10-8", CHIPS["sn10"], 4, 2, board=BOARDS["sn10"]),
        NodeSpec("SN30-8", CHIPS["sn30"], 4, 2, board=BOARDS["sn30"]),
        NodeSpec("SN40L-8", CHIPS["sn40l"], 4, 2, board=BOARDS["sn40l"]),
        NodeSpec("SN40L-16", CHIPS["sn40l"], 8, 2, max_applications=16, board=BOARDS["sn40l"]),
        NodeSpec("TEST-1", CHIPS["sn10"], 1, 1, board=BOARDS["sn10"]),
    )
}


def fill_fewest(rooms: Sequence[int], needed: int) -> list[tuple[int, int]] | None:
    """Choose the fewest of several free capacities that hold an amount (pure); ``None``: all together do not.

    The largest are chosen first; the last one is the best fit, or the lower index of equals. Source: ours.

    Returns:
        Index and assigned amount of each; all but the last are filled.
    """
    left, found = needed, list[tuple[int, int]]()
    order = sorted((-room, index) for index, room in enumerate(rooms) if room > 0)
    for place, (room, index) in enumerate(order):
        if -room >= left:
            _, index = min((-each, other) for each, other in order[place:] if -each >= left)
            return [*found, (index, left)]
        found.append((index, -room))
        left += room
    return None


def find_chip(name: str) -> ChipSpec:
    """Return the chip called ``name``, by any spelling.

    Raises:
        InvalidArgument: no such chip; the message lists the legal names.
    """
    key = name.lower()
    chip = CHIPS.get(CHIP_ALIASES.get(key, key))
    if chip is None:
        raise InvalidArgument(f"unknown chip {name!r}; expected {', '.join(sorted({*CHIPS, *CHIP_ALIASES}))}")
    return chip


def find_node(platform: str) -> NodeSpec:
    """Return the node platform called ``platform``, in any case.

    Raises:
        InvalidArgument: no such platform; the message lists the legal names.
    """
    for name, node in NODES.items():
        if name.lower() == platform.lower():
            return node
    raise InvalidArgument(
        f"unknown platform {platform!r}; expected {', '.join(sorted(NODES))}.{suggest(platform, NODES)}"
    )

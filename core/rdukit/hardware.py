"""Emulated hardware as data: chips and nodes.

Source: compiler reference 8.1, 8.2 (public figures; clock rates are inferred there from peak rates) and runtime
reference 1.3. ``Test`` platforms are ours: small, for tests.
"""

from dataclasses import dataclass
from typing import Final

from rdukit.errors import InvalidArgument

MIB: Final = 1024**2
GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class ChipSpec:
    """One RDU."""

    name: str
    tiles: int
    pcus_per_tile: int
    pmus_per_tile: int
    pmu_bytes: int
    clock_hz: float
    ddr_channels: int
    ddr_bytes: int
    #: Bytes a second of all channels together, streaming, before efficiency.
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
        """bf16 floating-point operations a second of ``tiles`` tiles: 384 per PCU and cycle."""
        return tiles * self.pcus_per_tile * 384 * self.clock_hz


CHIPS: Final = {
    chip.name: chip
    for chip in (
        ChipSpec("sn10", 4, 160, 160, MIB // 2, 1.32e9, 6, 384 * GIB, 128e9, 0, 0.0, 4, 32e9),
        ChipSpec("sn30", 8, 160, 160, MIB // 2, 1.40e9, 8, 1024 * GIB, 204.8e9, 0, 0.0, 6, 32e9),
        ChipSpec("sn40l", 4, 260, 260, MIB // 2, 1.60e9, 4, 1536 * GIB, 100e9, 64 * GIB, 1.6e12, 4, 32e9),
    )
}

#: Other spellings that programs use for ``--arch``. sn20 has no public figures and is treated as sn10 (ours).
CHIP_ALIASES: Final = {
    "sn20": "sn10", "sn40": "sn40l", "sn10-8": "sn10", "sn30-8": "sn30", "sn40l-8": "sn40l", "sn40l-16": "sn40l",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One emulated node: ``xrdus`` modules with ``rdus_per_xrdu`` chips each."""

    platform: str
    chip: ChipSpec
    xrdus: int
    rdus_per_xrdu: int
    #: Applications at once: 8 by the vendor's overview; a setting of the daemon.
    max_applications: int = 8

    @property
    def rdus(self) -> int:
        return self.xrdus * self.rdus_per_xrdu

    @property
    def tiles(self) -> int:
        return self.rdus * self.chip.tiles


NODES: Final = {
    node.platform: node
    for node in (
        NodeSpec("SN10-8", CHIPS["sn10"], 4, 2),
        NodeSpec("SN30-8", CHIPS["sn30"], 4, 2),
        NodeSpec("SN40L-8", CHIPS["sn40l"], 4, 2),
        NodeSpec("SN40L-16", CHIPS["sn40l"], 8, 2, max_applications=16),
        NodeSpec("TEST-1", CHIPS["sn10"], 1, 1),
    )
}


def find_chip(name: str) -> ChipSpec:
    """The chip called ``name``, by any spelling.

    Raises:
        InvalidArgument: no such chip; the message lists the legal names.
    """
    key = name.lower()
    chip = CHIPS.get(CHIP_ALIASES.get(key, key))
    if chip is None:
        raise InvalidArgument(f"no chip is called {name!r}; legal: {sorted({*CHIPS, *CHIP_ALIASES})}")
    return chip


def find_node(platform: str) -> NodeSpec:
    """The node platform called ``platform``, in any case.

    Raises:
        InvalidArgument: no such platform; the message lists the legal names.
    """
    for name, node in NODES.items():
        if name.lower() == platform.lower():
            return node
    raise InvalidArgument(f"no platform is called {platform!r}; legal: {sorted(NODES)}")

"""On-chip memory: the PMUs of a tile. Source: runtime reference 3.4, 4.2 (type and threshold are ours there)."""

import random

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, Severity
from rdukit_node.faults.register import Hits, fault
from rdukit_node.inventory import ComponentKind


@fault(
    "scratchpad-correctable",
    kind=ComponentKind.TILE,
    error_type="ETYPE_SCRATCHPAD_CE",
    error_desc="correctable error in on-chip memory",
    cause="A single bit of a PMU flipped.",
    signs="The count of ETYPE_SCRATCHPAD_CE of one tile grows; programs notice nothing.",
    effect="None on programs. At the threshold a fault says that the tile gets worse.",
    suggestion="Watch for uncorrectable errors of the same tile.",
    fault_type="FTYPE_TILE_CE_RATE",
    fault_desc="too many correctable errors in on-chip memory",
    severity=Severity.MINOR,
    count=100,
    window_s=86_400,
)
def draw_correctable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Which PMU and bank, and the syndrome."""
    return {**_place(random_, node), "syndrome": f"0x{random_.randrange(1, 256):02x}"}


@fault(
    "scratchpad-uncorrectable",
    kind=ComponentKind.TILE,
    error_type="ETYPE_SCRATCHPAD_UE",
    error_desc="uncorrectable error in on-chip memory",
    cause="More bits of a PMU's word are wrong than the code can correct.",
    signs="The program on the tile ends with ScratchpadUeException.",
    effect="The owner's program fails at once and the tile is reset. If that fails, or at the second error within a "
    "day, the tile is excluded.",
    suggestion="Reset the RDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_TILE_EXCLUDED",
    fault_desc="tile excluded: uncorrectable errors in on-chip memory",
    severity=Severity.MAJOR,
    count=2,
    window_s=86_400,
    action=Action.RESET_TILE,
    hits=Hits.TILE,
    exception_code="scratchpad-uncorrectable",
)
def draw_uncorrectable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Which PMU and bank, and how many bits are wrong."""
    return {**_place(random_, node), "bits": random_.randrange(2, 9)}


def _place(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    return {
        "pmu": random_.randrange(node.chip.pmus_per_tile),
        "bank": random_.randrange(16),
        "offset": f"0x{random_.randrange(node.chip.pmu_bytes // 16) & ~7:05x}",
    }

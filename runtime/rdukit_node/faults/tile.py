"""Tiles that hang, are reset or are taken out. Source: runtime reference 1.4, 4.2 (``FTYPE_TILE_EXCLUDED`` is the
vendor's name, and so is that a tile's reset is in the error log; error types and thresholds are ours)."""

import random

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, Severity
from rdukit_node.faults.register import Hits, fault
from rdukit_node.inventory import ComponentKind


@fault(
    "tile-hang",
    kind=ComponentKind.TILE,
    error_type="ETYPE_TILE_HANG",
    error_desc="a tile hangs",
    cause="A section does not end: a lost token, a deadlock of the switches, a hardware defect.",
    signs="The program on the tile ends with TileFaultException; the hang log has a TILE_RESET.",
    effect="The owner's program fails and the tile is reset. If that fails, or at the third hang within an hour, the "
    "tile is excluded.",
    suggestion="Reset the RDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_TILE_EXCLUDED",
    fault_desc="tile excluded: it hangs",
    severity=Severity.MAJOR,
    count=3,
    window_s=3600,
    action=Action.RESET_TILE,
    hits=Hits.TILE,
    exception_code="tile-fault",
)
def draw_hang(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Where the tile stands still, and for how long already."""
    return {"switch": random_.randrange(node.chip.pcus_per_tile), "stalled_us": random_.randrange(1000, 1_000_000)}


@fault(
    "tile-excluded",
    kind=ComponentKind.TILE,
    error_type="ETYPE_TILE_BAD",
    error_desc="a tile is broken",
    cause="A tile that no reset brings back.",
    signs="The program on the tile ends with TileFaultException; `snconfig show Node dynamic` says that the RDU is "
    "not perfect.",
    effect="The owner's program fails and the tile is not granted any more.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_TILE_EXCLUDED",
    fault_desc="tile excluded: it does not answer",
    severity=Severity.MAJOR,
    action=Action.EXCLUDE_TILE,
    hits=Hits.TILE,
    exception_code="tile-fault",
    persists=True,
    resets_that_fail=None,
)
def draw_excluded(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """The register that shows it."""
    return {"status": f"0x{random_.getrandbits(32):08x}"}


@fault(
    "tile-reset",
    is_command=True,
    kind=ComponentKind.TILE,
    error_type="ETYPE_TILE_RESET",
    error_desc="a tile was reset",
    cause="Somebody asked for it.",
    signs="The hang log has a TILE_RESET.",
    effect="The program on the tile fails. If the reset fails the tile is excluded.",
    suggestion="Reset the RDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_TILE_EXCLUDED",
    fault_desc="tile excluded: its reset failed",
    severity=Severity.MAJOR,
    count=1_000_000,
    window_s=60,
    action=Action.RESET_TILE,
    hits=Hits.TILE,
    exception_code="tile-fault",
)
def draw_reset(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Nothing beside the component."""
    return {}

"""Fault classes of an RDU: the whole chip, its tiles, on-chip memory, dies and device memory.

Source: runtime reference 1.1, 1.4, 3.4, 4.2. ``FTYPE_RDU_INIT``, ``FTYPE_RDU_RESET``, ``FTYPE_RDU_REMOVED`` and
``FTYPE_TILE_EXCLUDED`` are the vendor's names, as is a tile's reset in the error log; other types, thresholds and
advice are ours.
"""

import random

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, FaultSeverity
from rdukit_node.faults.register import ImpactScope, Suspect, fault
from rdukit_node.inventory import ComponentKind


@fault(
    "rdu-init",
    part="rdu",
    kind=ComponentKind.RDU,
    error_type="ETYPE_RDU_INIT",
    error_desc="an RDU could not be initialised",
    cause="Clocks, memory training or firmware of the RDU failed.",
    signs="`snconfig show Node op-state` says UNAVAILABLE; none of the RDU's tiles is granted.",
    effect="Every program on the RDU fails. The RDU is reset once more; if that fails, it is unavailable.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_RDU_INIT",
    fault_desc="an RDU could not be initialised",
    severity=FaultSeverity.CRITICAL,
    count=3,
    action=Action.RESET_RDU,
    impact=ImpactScope.RDU,
    exception_code="hardware-error",
    persists=True,
    resets_that_fail=None,
)
def sample_rdu_init(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample the step that failed."""
    return {"step": random_.choice(("clocks", "memory-training", "firmware", "link-training"))}


@fault(
    "rdu-reset",
    part="rdu",
    kind=ComponentKind.RDU,
    error_type="ETYPE_RDU_RESET",
    error_desc="an RDU does not come back from a reset",
    cause="The RDU stopped answering and a reset does not help.",
    signs="The hang log has a CHIP_RESET that FAILED; `snconfig show Node op-state` says UNAVAILABLE.",
    effect="Every program on the RDU fails and the RDU is unavailable.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_RDU_RESET",
    fault_desc="the reset of an RDU failed",
    severity=FaultSeverity.CRITICAL,
    count=3,
    action=Action.RESET_RDU,
    impact=ImpactScope.RDU,
    exception_code="hardware-error",
    persists=True,
    resets_that_fail=None,
)
def sample_rdu_reset(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample the register that shows it."""
    return {"status": f"0x{random_.getrandbits(32):08x}"}


@fault(
    "rdu-hang",
    part="rdu",
    kind=ComponentKind.RDU,
    error_type="ETYPE_RDU_HANG",
    error_desc="an RDU hangs",
    cause="The whole RDU stopped answering.",
    signs="Programs on it end with HwException; the hang log has a CHIP_RESET.",
    effect="Every program on the RDU fails and the RDU is reset. If that fails, or at the third hang within a day, it "
    "is unavailable.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_RDU_RESET",
    fault_desc="an RDU hangs",
    severity=FaultSeverity.CRITICAL,
    count=3,
    action=Action.RESET_RDU,
    impact=ImpactScope.RDU,
    exception_code="hardware-error",
)
def sample_rdu_hang(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample the time for which the RDU did not answer."""
    return {"silent_ms": random_.randrange(100, 10_000)}


@fault(
    "rdu-removed",
    part="rdu",
    kind=ComponentKind.RDU,
    error_type="ETYPE_RDU_LOST",
    error_desc="an RDU vanished from the bus",
    cause="The module lost power or was removed.",
    signs="The inventory says Absent.",
    effect="Every program on the RDU fails and the RDU is unavailable.",
    suggestion="Check that the XRDU is seated and has power, then clear the fault.",
    fault_type="FTYPE_RDU_REMOVED",
    fault_desc="an RDU was removed",
    severity=FaultSeverity.CRITICAL,
    action=Action.RETIRE_RDU,
    impact=ImpactScope.RDU,
    exception_code="hardware-error",
    persists=True,
    resets_that_fail=None,
    removes=True,
)
def sample_rdu_removed(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Return the value that the bus reads from an empty slot."""
    return {"vendor_id": "0xffff"}


@fault(
    "chip-reset",
    part="rdu",
    is_command=True,
    kind=ComponentKind.RDU,
    error_type="ETYPE_CHIP_RESET",
    error_desc="an RDU was reset",
    cause="A user requested the reset.",
    signs="The hang log has a CHIP_RESET; the RDU is PENDING meanwhile.",
    effect="Every program on the RDU fails. If the reset fails the RDU is unavailable.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_RDU_RESET",
    fault_desc="the reset of an RDU failed",
    severity=FaultSeverity.CRITICAL,
    count=1_000_000,
    window_s=60,
    action=Action.RESET_RDU,
    impact=ImpactScope.RDU,
    exception_code="hardware-error",
)
def sample_chip_reset(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Return no data: the component identifies the error."""
    return {}


@fault(
    "tile-hang",
    part="tile",
    kind=ComponentKind.TILE,
    error_type="ETYPE_TILE_HANG",
    error_desc="a tile hangs",
    cause="A section never ends because of a lost token, a switch deadlock or a hardware defect.",
    signs="The program on the tile ends with TileFaultException; the hang log has a TILE_RESET.",
    effect="The owner's program fails and the tile is reset. If that fails, or at the third hang within an hour, the "
    "tile is excluded.",
    suggestion="Reset the RDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_TILE_EXCLUDED",
    fault_desc="tile excluded: it hangs",
    severity=FaultSeverity.MAJOR,
    count=3,
    window_s=3600,
    action=Action.RESET_TILE,
    impact=ImpactScope.TILE,
    exception_code="tile-fault",
)
def sample_tile_hang(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample the place and the duration of a tile's hang."""
    return {"switch": random_.randrange(node.chip.pcus_per_tile), "stalled_us": random_.randrange(1000, 1_000_000)}


@fault(
    "tile-excluded",
    part="tile",
    kind=ComponentKind.TILE,
    error_type="ETYPE_TILE_BAD",
    error_desc="a tile is broken",
    cause="A tile does not recover after a reset.",
    signs="The program on the tile ends with TileFaultException; `snconfig show Node dynamic` shows the RDU as not "
    "perfect.",
    effect="The owner's program fails, and the tile is no longer granted.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_TILE_EXCLUDED",
    fault_desc="tile excluded: it does not answer",
    severity=FaultSeverity.MAJOR,
    action=Action.EXCLUDE_TILE,
    impact=ImpactScope.TILE,
    exception_code="tile-fault",
    persists=True,
    resets_that_fail=None,
)
def sample_tile_excluded(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample the register that shows it."""
    return {"status": f"0x{random_.getrandbits(32):08x}"}


@fault(
    "tile-reset",
    part="tile",
    is_command=True,
    kind=ComponentKind.TILE,
    error_type="ETYPE_TILE_RESET",
    error_desc="a tile was reset",
    cause="A user requested the reset.",
    signs="The hang log has a TILE_RESET.",
    effect="The program on the tile fails. If the reset fails the tile is excluded.",
    suggestion="Reset the RDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_TILE_EXCLUDED",
    fault_desc="tile excluded: its reset failed",
    severity=FaultSeverity.MAJOR,
    count=1_000_000,
    window_s=60,
    action=Action.RESET_TILE,
    impact=ImpactScope.TILE,
    exception_code="tile-fault",
)
def sample_tile_reset(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Return no data: the component identifies the error."""
    return {}


@fault(
    "scratchpad-correctable",
    part="scratchpad",
    kind=ComponentKind.TILE,
    error_type="ETYPE_SCRATCHPAD_CE",
    error_desc="correctable error in on-chip memory",
    cause="A single bit of a PMU flipped.",
    signs="One tile's count of ETYPE_SCRATCHPAD_CE grows; programs are not affected.",
    effect="Programs are not affected. At the threshold a fault reports that the tile degrades.",
    suggestion="Watch for uncorrectable errors of the same tile.",
    fault_type="FTYPE_TILE_CE_RATE",
    fault_desc="too many correctable errors in on-chip memory",
    severity=FaultSeverity.MINOR,
    count=100,
    window_s=86_400,
)
def sample_scratchpad_correctable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample a PMU, a bank and the syndrome."""
    return {**_scratchpad_place(random_, node), "syndrome": f"0x{random_.randrange(1, 256):02x}"}


@fault(
    "scratchpad-uncorrectable",
    part="scratchpad",
    kind=ComponentKind.TILE,
    error_type="ETYPE_SCRATCHPAD_UE",
    error_desc="uncorrectable error in on-chip memory",
    cause="A PMU word has more wrong bits than the code can correct.",
    signs="The program on the tile ends with ScratchpadUeException.",
    effect="The owner's program fails at once and the tile is reset. If that fails, or at the second error within a "
    "day, the tile is excluded.",
    suggestion="Reset the RDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_TILE_EXCLUDED",
    fault_desc="tile excluded: uncorrectable errors in on-chip memory",
    severity=FaultSeverity.MAJOR,
    count=2,
    window_s=86_400,
    action=Action.RESET_TILE,
    impact=ImpactScope.TILE,
    exception_code="scratchpad-uncorrectable",
)
def sample_scratchpad_uncorrectable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample a PMU, a bank and how many bits are wrong."""
    return {**_scratchpad_place(random_, node), "bits": random_.randrange(2, 9)}


def _scratchpad_place(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    return {
        "pmu": random_.randrange(node.chip.pmus_per_tile),
        "bank": random_.randrange(16),
        "offset": f"0x{random_.randrange(node.chip.pmu_bytes // 16) & ~7:05x}",
    }


@fault(
    "d2d-correctable",
    part="d2d",
    kind=ComponentKind.RDU,
    error_type="ETYPE_D2D_CE",
    error_desc="correctable error of a link between dies",
    cause="A flit was damaged and resent.",
    signs="One RDU's count of ETYPE_D2D_CE grows; programs are not affected.",
    effect="Programs are not affected. At the threshold a fault reports that the link degrades.",
    suggestion="Watch for uncorrectable errors of the same RDU.",
    fault_type="FTYPE_D2D_CE_RATE",
    fault_desc="too many correctable errors of a link between dies",
    severity=FaultSeverity.MINOR,
    count=100,
    window_s=3600,
)
def sample_d2d_correctable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample a link and a lane."""
    return {"link": random_.randrange(2), "lane": random_.randrange(64)}


@fault(
    "d2d-uncorrectable",
    part="d2d",
    kind=ComponentKind.RDU,
    error_type="ETYPE_D2D_UE",
    error_desc="uncorrectable error of a link between dies",
    cause="A flit was lost permanently.",
    signs="Programs on the RDU end with D2dUeException.",
    effect="Every program on the RDU fails and the RDU is reset. If that fails, or at the second error within a day, "
    "it is unavailable.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_D2D_LINK",
    fault_desc="uncorrectable errors of a link between dies",
    severity=FaultSeverity.CRITICAL,
    count=2,
    window_s=86_400,
    action=Action.RESET_RDU,
    impact=ImpactScope.RDU,
    exception_code="d2d-uncorrectable",
    suspects=(Suspect.SELF, Suspect.XRDU),
)
def sample_d2d_uncorrectable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample a link and the number of lost flits."""
    return {"link": random_.randrange(2), "lost_flits": random_.randrange(1, 100)}


@fault(
    "ddr-correctable",
    part="ddr",
    kind=ComponentKind.DIMM,
    error_type="ETYPE_DDR_CE",
    error_desc="correctable error in device memory",
    cause="A single bit flipped: radiation, a weak cell, a marginal contact.",
    signs="One DIMM's count of ETYPE_DDR_CE grows; programs are not affected.",
    effect="Programs are not affected. At the threshold a fault reports that the module degrades.",
    suggestion="Plan to replace the DIMM at the next maintenance.",
    fault_type="FTYPE_DIMM_CE_RATE",
    fault_desc="too many correctable errors in device memory",
    severity=FaultSeverity.MINOR,
    count=24,
    window_s=86_400,
)
def sample_ddr_correctable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample the address of a flipped bit, and its syndrome."""
    return {**_ddr_address(random_, node), "syndrome": f"0x{random_.randrange(1, 256):02x}", "bits": 1}


@fault(
    "ddr-uncorrectable",
    part="ddr",
    kind=ComponentKind.DIMM,
    error_type="ETYPE_DDR_UE",
    error_desc="uncorrectable error in device memory",
    cause="A word has more wrong bits than the code can correct: the module is broken or badly seated.",
    signs="The program that owns the address ends with DramUeException; its data cannot be trusted.",
    effect="The owner's program fails at once. The channel is retired: its memory is no longer granted.",
    suggestion="Reseat the DIMM; if the fault returns, replace it. Then clear the fault.",
    fault_type="FTYPE_DIMM_UE",
    fault_desc="uncorrectable error in device memory",
    severity=FaultSeverity.MAJOR,
    action=Action.RETIRE_CHANNEL,
    impact=ImpactScope.MEMORY,
    exception_code="dram-uncorrectable",
    persists=True,
    resets_that_fail=None,
    suspects=(Suspect.SELF, Suspect.CHANNEL, Suspect.RDU),
)
def sample_ddr_uncorrectable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample an address, the syndrome and how many bits are wrong."""
    syndrome, bits = f"0x{random_.randrange(256, 65_536):04x}", random_.randrange(2, 9)
    return {**_ddr_address(random_, node), "syndrome": syndrome, "bits": bits}


def _ddr_address(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    offset = random_.randrange(max(64, node.chip.ddr_bytes // max(1, node.chip.ddr_channels))) & ~63
    return {
        "address": f"0x{offset:010x}",
        "bank": offset >> 13 & 15,
        "row": offset >> 17 & 0x1FFFF,
        "column": offset >> 3 & 0x3FF,
    }

"""Whole RDUs: their start, resets and removal. Source: runtime reference 1.4, 4.2 (the names ``FTYPE_RDU_INIT``,
``FTYPE_RDU_RESET`` and ``FTYPE_RDU_REMOVED`` are the vendor's, the rest is ours)."""

import random

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, Severity
from rdukit_node.faults.register import Hits, fault
from rdukit_node.inventory import ComponentKind


@fault(
    "rdu-init",
    kind=ComponentKind.RDU,
    error_type="ETYPE_RDU_INIT",
    error_desc="an RDU could not be initialised",
    cause="Clocks, memory training or firmware of the RDU failed.",
    signs="`snconfig show Node op-state` says UNAVAILABLE; none of the RDU's tiles is granted.",
    effect="Every program on the RDU fails. It is reset once more; if that fails it is unavailable.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_RDU_INIT",
    fault_desc="an RDU could not be initialised",
    severity=Severity.CRITICAL,
    count=3,
    action=Action.RESET_RDU,
    hits=Hits.RDU,
    exception_code="hardware-error",
    persists=True,
    resets_that_fail=None,
)
def draw_init(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """The step that failed."""
    return {"step": random_.choice(("clocks", "memory-training", "firmware", "link-training"))}


@fault(
    "rdu-reset",
    kind=ComponentKind.RDU,
    error_type="ETYPE_RDU_RESET",
    error_desc="an RDU does not come back from a reset",
    cause="The RDU stopped answering and a reset does not help.",
    signs="The hang log has a CHIP_RESET that FAILED; `snconfig show Node op-state` says UNAVAILABLE.",
    effect="Every program on the RDU fails and the RDU is unavailable.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_RDU_RESET",
    fault_desc="the reset of an RDU failed",
    severity=Severity.CRITICAL,
    count=3,
    action=Action.RESET_RDU,
    hits=Hits.RDU,
    exception_code="hardware-error",
    persists=True,
    resets_that_fail=None,
)
def draw_reset(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """The register that shows it."""
    return {"status": f"0x{random_.getrandbits(32):08x}"}


@fault(
    "rdu-hang",
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
    severity=Severity.CRITICAL,
    count=3,
    action=Action.RESET_RDU,
    hits=Hits.RDU,
    exception_code="hardware-error",
)
def draw_hang(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """How long it did not answer."""
    return {"silent_ms": random_.randrange(100, 10_000)}


@fault(
    "rdu-removed",
    kind=ComponentKind.RDU,
    error_type="ETYPE_RDU_LOST",
    error_desc="an RDU vanished from the bus",
    cause="Lost power, or somebody took the module out.",
    signs="The inventory says Absent.",
    effect="Every program on the RDU fails and the RDU is unavailable.",
    suggestion="Check that the XRDU is seated and has power, then clear the fault.",
    fault_type="FTYPE_RDU_REMOVED",
    fault_desc="an RDU was removed",
    severity=Severity.CRITICAL,
    action=Action.RETIRE_RDU,
    hits=Hits.RDU,
    exception_code="hardware-error",
    persists=True,
    resets_that_fail=None,
    removes=True,
)
def draw_removed(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """What reading the bus gives where nothing is."""
    return {"vendor_id": "0xffff"}


@fault(
    "chip-reset",
    is_command=True,
    kind=ComponentKind.RDU,
    error_type="ETYPE_CHIP_RESET",
    error_desc="an RDU was reset",
    cause="Somebody asked for it.",
    signs="The hang log has a CHIP_RESET; the RDU is PENDING meanwhile.",
    effect="Every program on the RDU fails. If the reset fails the RDU is unavailable.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_RDU_RESET",
    fault_desc="the reset of an RDU failed",
    severity=Severity.CRITICAL,
    count=1_000_000,
    window_s=60,
    action=Action.RESET_RDU,
    hits=Hits.RDU,
    exception_code="hardware-error",
)
def draw_chip_reset(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Nothing beside the component."""
    return {}

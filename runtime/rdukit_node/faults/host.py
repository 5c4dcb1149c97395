"""The host: its port to each RDU and its own memory. Source: runtime reference 4.1, 4.2 (that the host's port is
watched is the vendor's; types and thresholds are ours)."""

import random

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, Severity
from rdukit_node.faults.register import Hits, Suspect, fault
from rdukit_node.inventory import ComponentKind


@fault(
    "host-pcie",
    kind=ComponentKind.RDU,
    error_type="ETYPE_HIC_PCIE",
    error_desc="error of the host's PCIe port to an RDU",
    cause="The card or cable between host and RDU, or the host's own port.",
    signs="Programs on the RDU end with HwException.",
    effect="Transfers between host and RDU were lost: every program on the RDU fails. "
    "The RDU is unavailable until the port is repaired.",
    suggestion="Reseat cable and card in the order of the suspect list, then reboot the host.",
    fault_type="FTYPE_HOST_PCIE",
    fault_desc="the host's PCIe port to an RDU fails",
    severity=Severity.CRITICAL,
    action=Action.RETIRE_RDU,
    hits=Hits.RDU,
    exception_code="hardware-error",
    persists=True,
    resets_that_fail=None,
    suspects=(Suspect.NODE, Suspect.XRDU, Suspect.SELF),
)
def draw_pcie(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Which port, and its status register."""
    return {"port": random_.randrange(4), "status": f"0x{random_.getrandbits(16):04x}"}


@fault(
    "host-memory",
    kind=ComponentKind.NODE,
    error_type="ETYPE_HOST_MEMORY",
    error_desc="uncorrectable error in the host's memory",
    cause="A broken memory module of the host.",
    signs="The host's own log has a machine check.",
    effect="None known on programs: which of them owned the page only the host's system knows. "
    "Those that run go on; until the memory is repaired nobody else gets tiles of the node.",
    suggestion="Let the programs end, then replace the host's memory module.",
    fault_type="FTYPE_HOST_MEMORY",
    fault_desc="the host's memory fails",
    severity=Severity.CRITICAL,
    action=Action.RETIRE_NODE,
    persists=True,
    resets_that_fail=None,
)
def draw_memory(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """The page, and the module's place."""
    return {"page": f"0x{random_.getrandbits(36) << 12:012x}", "module": f"DIMM_{random_.randrange(16)}"}

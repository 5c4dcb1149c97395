"""PCIe links between RDUs. Source: runtime reference 4.1, 4.2 (suspect lists are the vendor's, their order, all types
and thresholds ours)."""

import random
from typing import Final

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, Severity
from rdukit_node.faults.register import Hits, Suspect, fault
from rdukit_node.inventory import ComponentKind

_PATH: Final = (Suspect.SELF, Suspect.RDU, Suspect.XRDU)


@fault(
    "pcie-correctable",
    kind=ComponentKind.PCIE,
    error_type="ETYPE_PCIE_CE",
    error_desc="correctable error of a PCIe link",
    cause="A damaged packet was caught and sent again: noise, a marginal connector.",
    signs="The count of ETYPE_PCIE_CE of one link grows; transfers take a little longer.",
    effect="None on programs. At the threshold a fault says that the link is bad.",
    suggestion="Check the suspect list in order: reseat, then replace.",
    fault_type="FTYPE_PCIE_LINK_DEGRADED",
    fault_desc="too many correctable errors of a PCIe link",
    severity=Severity.MINOR,
    count=100,
    window_s=3600,
    suspects=_PATH,
)
def draw_correctable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Which lane, and the bit of the correctable status register."""
    return {"lane": random_.randrange(16), "status": f"0x{1 << random_.choice((0, 6, 7)):04x}"}


@fault(
    "pcie-replay",
    kind=ComponentKind.PCIE,
    error_type="ETYPE_PCIE_REPLAY",
    error_desc="a PCIe link sent packets again",
    cause="Acknowledgements are lost or late.",
    signs="`snpciestat` shows replays; bandwidth falls.",
    effect="None on programs beside the time. At the threshold a fault says that the link is bad.",
    suggestion="Check the suspect list in order: reseat, then replace.",
    fault_type="FTYPE_PCIE_LINK_DEGRADED",
    fault_desc="a PCIe link sends too many packets again",
    severity=Severity.MINOR,
    count=1000,
    window_s=3600,
    suspects=_PATH,
)
def draw_replay(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """How often the replay timer ran out."""
    return {"timeouts": random_.randrange(1, 5)}


@fault(
    "pcie-link-degraded",
    kind=ComponentKind.PCIE,
    error_type="ETYPE_PCIE_WIDTH",
    error_desc="a PCIe link runs with fewer lanes or slower than it should",
    cause="A lane failed while the link was trained.",
    signs="`snfadm -l error -v` shows the width; transfers between RDUs take longer.",
    effect="Less bandwidth on this link.",
    suggestion="Check the suspect list in order: reseat, then replace.",
    fault_type="FTYPE_PCIE_LINK_DEGRADED",
    fault_desc="a PCIe link is degraded",
    severity=Severity.MINOR,
    persists=True,
    resets_that_fail=None,
    suspects=_PATH,
)
def draw_degraded(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Width and speed that the link has and should have."""
    width, speed = random_.choice(((8, 16), (4, 16), (2, 16), (16, 8)))
    return {"width": width, "expected_width": 16, "speed_gts": speed, "expected_speed_gts": 16}


@fault(
    "pcie-link-down",
    kind=ComponentKind.PCIE,
    error_type="ETYPE_PCIE_LINK_DOWN",
    error_desc="a PCIe link is down",
    cause="A connector, a cable or a port failed.",
    signs="The RDU is DEGRADED; its other links carry the traffic.",
    effect="Traffic is rerouted over the RDU's other links. Without any left the RDU is unavailable and all programs "
    "on it fail.",
    suggestion="Check the suspect list in order: reseat, then replace. Then clear the fault.",
    fault_type="FTYPE_PCIE_LINK_DOWN",
    fault_desc="a PCIe link is down",
    severity=Severity.MAJOR,
    action=Action.REROUTE,
    persists=True,
    resets_that_fail=None,
    suspects=_PATH,
)
def draw_down(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """State of the link's training machine."""
    return {"ltssm": random_.choice(("Detect", "Polling", "Recovery"))}


@fault(
    "pcie-uncorrectable",
    kind=ComponentKind.PCIE,
    error_type="ETYPE_PCIE_UE",
    error_desc="uncorrectable error of a PCIe link",
    cause="A transfer was lost for good: a malformed packet, a completion that never came.",
    signs="Programs on the RDU end with HwException.",
    effect="Every program on the RDU fails. At the third error within a day the link is left out.",
    suggestion="Check the suspect list in order: reseat, then replace. Then clear the fault.",
    fault_type="FTYPE_PCIE_LINK_DOWN",
    fault_desc="a PCIe link loses transfers",
    severity=Severity.MAJOR,
    count=3,
    action=Action.REROUTE,
    hits=Hits.RDU,
    exception_code="hardware-error",
    suspects=_PATH,
)
def draw_uncorrectable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """The bit of the uncorrectable status register, and the packet's header."""
    bit = random_.choice((4, 12, 14, 18))
    return {"status": f"0x{1 << bit:08x}", "header": [f"0x{random_.getrandbits(32):08x}" for _ in range(4)]}

"""Fault classes around the RDUs: the host, PCIe links, heat and fans, and the node daemon itself.

Source: runtime reference 2, 4.1, 4.2. The vendor watches the host's port and the fans, lets the daemon report its own
events, and lists suspects of PCIe links. Their order, all types and thresholds are ours.
"""

import random
from typing import Final

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, FaultSeverity
from rdukit_node.faults.register import ImpactScope, Suspect, fault
from rdukit_node.inventory import ComponentKind


@fault(
    "host-pcie",
    part="host",
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
    severity=FaultSeverity.CRITICAL,
    action=Action.RETIRE_RDU,
    impact=ImpactScope.RDU,
    exception_code="hardware-error",
    persists=True,
    resets_that_fail=None,
    suspects=(Suspect.NODE, Suspect.XRDU, Suspect.SELF),
)
def sample_host_pcie(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample a port and its status register."""
    return {"port": random_.randrange(4), "status": f"0x{random_.getrandbits(16):04x}"}


@fault(
    "host-memory",
    part="host",
    kind=ComponentKind.NODE,
    error_type="ETYPE_HOST_MEMORY",
    error_desc="uncorrectable error in the host's memory",
    cause="A broken memory module of the host.",
    signs="The host's own log has a machine check.",
    effect="Unknown for programs, because only the host knows which one owned the page. Running programs continue, "
    "but the node allocates no tiles until the memory is repaired.",
    suggestion="Let the programs end, then replace the host's memory module.",
    fault_type="FTYPE_HOST_MEMORY",
    fault_desc="the host's memory fails",
    severity=FaultSeverity.CRITICAL,
    action=Action.RETIRE_NODE,
    persists=True,
    resets_that_fail=None,
)
def sample_host_memory(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample a page and its module's place."""
    return {"page": f"0x{random_.getrandbits(36) << 12:012x}", "module": f"DIMM_{random_.randrange(16)}"}


_PATH: Final = (Suspect.SELF, Suspect.RDU, Suspect.XRDU)


@fault(
    "pcie-correctable",
    part="pcie",
    kind=ComponentKind.PCIE,
    error_type="ETYPE_PCIE_CE",
    error_desc="correctable error of a PCIe link",
    cause="A damaged packet was detected and resent: noise, or a marginal connector.",
    signs="One link's count of ETYPE_PCIE_CE grows; transfers take slightly longer.",
    effect="Programs are not affected. At the threshold a fault reports the link.",
    suggestion="Check the suspect list in order: reseat, then replace.",
    fault_type="FTYPE_PCIE_LINK_DEGRADED",
    fault_desc="too many correctable errors of a PCIe link",
    severity=FaultSeverity.MINOR,
    count=100,
    window_s=3600,
    suspects=_PATH,
)
def sample_pcie_correctable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample a lane and a bit of the correctable status register."""
    return {"lane": random_.randrange(16), "status": f"0x{1 << random_.choice((0, 6, 7)):04x}"}


@fault(
    "pcie-replay",
    part="pcie",
    kind=ComponentKind.PCIE,
    error_type="ETYPE_PCIE_REPLAY",
    error_desc="a PCIe link resent packets",
    cause="Acknowledgements are lost or late.",
    signs="`snpciestat` shows replays; bandwidth falls.",
    effect="Programs only run slower. At the threshold a fault reports the link.",
    suggestion="Check the suspect list in order: reseat, then replace.",
    fault_type="FTYPE_PCIE_LINK_DEGRADED",
    fault_desc="a PCIe link resends too many packets",
    severity=FaultSeverity.MINOR,
    count=1000,
    window_s=3600,
    suspects=_PATH,
)
def sample_pcie_replay(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample the number of expired replay timers."""
    return {"timeouts": random_.randrange(1, 5)}


@fault(
    "pcie-link-degraded",
    part="pcie",
    kind=ComponentKind.PCIE,
    error_type="ETYPE_PCIE_WIDTH",
    error_desc="a PCIe link runs with fewer lanes or a lower speed than expected",
    cause="A lane failed while the link was trained.",
    signs="`snfadm -l error -v` shows the width; transfers between RDUs take longer.",
    effect="Less bandwidth on this link.",
    suggestion="Check the suspect list in order: reseat, then replace.",
    fault_type="FTYPE_PCIE_LINK_DEGRADED",
    fault_desc="a PCIe link is degraded",
    severity=FaultSeverity.MINOR,
    persists=True,
    resets_that_fail=None,
    suspects=_PATH,
)
def sample_pcie_degraded(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Width and speed that the link has and should have."""
    width, speed = random_.choice(((8, 16), (4, 16), (2, 16), (16, 8)))
    return {"width": width, "expected_width": 16, "speed_gts": speed, "expected_speed_gts": 16}


@fault(
    "pcie-link-down",
    part="pcie",
    kind=ComponentKind.PCIE,
    error_type="ETYPE_PCIE_LINK_DOWN",
    error_desc="a PCIe link is down",
    cause="A connector, a cable or a port failed.",
    signs="The RDU is DEGRADED; its other links carry the traffic.",
    effect="Traffic is rerouted over the RDU's other links. If none is left, the RDU is unavailable and all programs "
    "on it fail.",
    suggestion="Check the suspect list in order: reseat, then replace. Then clear the fault.",
    fault_type="FTYPE_PCIE_LINK_DOWN",
    fault_desc="a PCIe link is down",
    severity=FaultSeverity.MAJOR,
    action=Action.REROUTE,
    persists=True,
    resets_that_fail=None,
    suspects=_PATH,
)
def sample_pcie_down(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample the state of the link's training machine."""
    return {"ltssm": random_.choice(("Detect", "Polling", "Recovery"))}


@fault(
    "pcie-uncorrectable",
    part="pcie",
    kind=ComponentKind.PCIE,
    error_type="ETYPE_PCIE_UE",
    error_desc="uncorrectable error of a PCIe link",
    cause="A transfer failed permanently: a malformed packet, or a completion that never arrived.",
    signs="Programs on the RDU end with HwException.",
    effect="Every program on the RDU fails. At the third error within a day the link is left out.",
    suggestion="Check the suspect list in order: reseat, then replace. Then clear the fault.",
    fault_type="FTYPE_PCIE_LINK_DOWN",
    fault_desc="a PCIe link loses transfers",
    severity=FaultSeverity.MAJOR,
    count=3,
    action=Action.REROUTE,
    impact=ImpactScope.RDU,
    exception_code="hardware-error",
    suspects=_PATH,
)
def sample_pcie_uncorrectable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample a bit of the uncorrectable status register and the packet's header."""
    bit = random_.choice((4, 12, 14, 18))
    return {"status": f"0x{1 << bit:08x}", "header": [f"0x{random_.getrandbits(32):08x}" for _ in range(4)]}


@fault(
    "thermal",
    part="thermal",
    kind=ComponentKind.RDU,
    error_type="ETYPE_THERMAL_WARNING",
    error_desc="an RDU is too warm",
    cause="Air flow, room temperature or a heat sink.",
    signs="Three readings above the limit within a minute make a fault.",
    effect="Emulated programs are not affected; real hardware would reduce its clocks.",
    suggestion="Check fans, filters and room temperature.",
    fault_type="FTYPE_THERMAL",
    fault_desc="an RDU stays too warm",
    severity=FaultSeverity.MAJOR,
    count=3,
    window_s=60,
    suspects=(Suspect.SELF, Suspect.XRDU, Suspect.NODE),
)
def sample_thermal(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample a reading above its limit."""
    return {"celsius": random_.randrange(91, 100), "limit_celsius": 90}


@fault(
    "thermal-shutdown",
    part="thermal",
    kind=ComponentKind.RDU,
    error_type="ETYPE_THERMAL_SHUTDOWN",
    error_desc="an RDU shut down because of heat",
    cause="The RDU shut down before heat could damage it.",
    signs="Programs on the RDU end with HwException; `snconfig show Node op-state` reports UNAVAILABLE.",
    effect="Every program on the RDU fails and the RDU is unavailable.",
    suggestion="Let it cool down, check fans and heat sink, then clear the fault.",
    fault_type="FTYPE_THERMAL",
    fault_desc="an RDU shut down because of heat",
    severity=FaultSeverity.CRITICAL,
    action=Action.RETIRE_RDU,
    impact=ImpactScope.RDU,
    exception_code="hardware-error",
    persists=True,
    resets_that_fail=None,
    suspects=(Suspect.SELF, Suspect.XRDU, Suspect.NODE),
)
def sample_thermal_shutdown(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample the last reading before the shutdown."""
    return {"celsius": random_.randrange(106, 120), "limit_celsius": 105}


@fault(
    "fan",
    part="thermal",
    kind=ComponentKind.XRDU,
    error_type="ETYPE_FAN",
    error_desc="a fan is too slow or stands still",
    cause="The fan wears out or is blocked.",
    signs="Three polls in a row, a minute apart, see it.",
    effect="Programs are not affected; without action the machine overheats.",
    suggestion="Replace the fan.",
    fault_type="FTYPE_FAN",
    fault_desc="a fan failed",
    severity=FaultSeverity.MAJOR,
    count=3,
    window_s=180,
)
def sample_fan(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Sample a fan and its speed."""
    return {"fan": random_.randrange(4), "rpm": random_.randrange(0, 800), "lowest_rpm": 2000}


@fault(
    "daemon-restart",
    part="daemon",
    kind=ComponentKind.NODE,
    error_type="ETYPE_SND_RESTART",
    error_desc="the node daemon restarted without a clean stop",
    cause="The daemon was killed, crashed, or the host lost power.",
    signs="Events of kind restore for earlier leases, followed by attach or death.",
    effect="Programs continue and attach to their leases again. The fifth restart within an hour becomes a fault.",
    suggestion="Look for the reason in snd.log, and for killed processes in the host's log.",
    fault_type="FTYPE_SND_RESTARTS",
    fault_desc="the node daemon restarts repeatedly",
    severity=FaultSeverity.MAJOR,
    count=5,
    window_s=3600,
)
def sample_daemon_restart(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Return no data: the component identifies the error."""
    return {}


@fault(
    "database-damaged",
    part="daemon",
    kind=ComponentKind.NODE,
    error_type="ETYPE_SNFM_DATABASE",
    error_desc="the fault database was damaged and moved aside",
    cause="A fault of disk or file system, a copy taken while the node ran, or another writer.",
    signs="The file snfm.db.damaged-… lies next to the database; the error's data has its name and the number of kept "
    "rows.",
    effect="Unreadable errors, faults and accounting are lost, so broken parts may be unknown.",
    suggestion="Check the disk; inject or repair faults that the node no longer knows. Keep or delete the damaged "
    "file.",
    fault_type="FTYPE_SNFM_DATABASE",
    fault_desc="the fault database was damaged; the node started with the readable rows",
    severity=FaultSeverity.MAJOR,
)
def sample_database_damaged(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Return no data: the daemon names the file."""
    return {}

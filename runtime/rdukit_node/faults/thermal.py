"""Heat and fans. Source: ours; that the vendor's fault management watches fans is in runtime reference 4.1, 4.2."""

import random

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, Severity
from rdukit_node.faults.register import Hits, Suspect, fault
from rdukit_node.inventory import ComponentKind


@fault(
    "thermal",
    kind=ComponentKind.RDU,
    error_type="ETYPE_THERMAL_WARNING",
    error_desc="an RDU is too warm",
    cause="Air flow, room temperature or a heat sink.",
    signs="Three readings above the limit within a minute make a fault.",
    effect="None on programs here; on real hardware clocks would fall.",
    suggestion="Check fans, filters and room temperature.",
    fault_type="FTYPE_THERMAL",
    fault_desc="an RDU stays too warm",
    severity=Severity.MAJOR,
    count=3,
    window_s=60,
    suspects=(Suspect.SELF, Suspect.XRDU, Suspect.NODE),
)
def draw_thermal(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """The reading and its limit."""
    return {"celsius": random_.randrange(91, 100), "limit_celsius": 90}


@fault(
    "thermal-shutdown",
    kind=ComponentKind.RDU,
    error_type="ETYPE_THERMAL_SHUTDOWN",
    error_desc="an RDU switched itself off because of heat",
    cause="The RDU got so hot that it would have been damaged.",
    signs="Programs on the RDU end with HwException; `snconfig show Node op-state` says UNAVAILABLE.",
    effect="Every program on the RDU fails and the RDU is unavailable.",
    suggestion="Let it cool down, check fans and heat sink, then clear the fault.",
    fault_type="FTYPE_THERMAL",
    fault_desc="an RDU switched itself off because of heat",
    severity=Severity.CRITICAL,
    action=Action.RETIRE_RDU,
    hits=Hits.RDU,
    exception_code="hardware-error",
    persists=True,
    resets_that_fail=None,
    suspects=(Suspect.SELF, Suspect.XRDU, Suspect.NODE),
)
def draw_shutdown(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """The last reading and its limit."""
    return {"celsius": random_.randrange(106, 120), "limit_celsius": 105}


@fault(
    "fan",
    kind=ComponentKind.XRDU,
    error_type="ETYPE_FAN",
    error_desc="a fan is too slow or stands still",
    cause="The fan wears out or is blocked.",
    signs="Three polls in a row, a minute apart, see it.",
    effect="None on programs; heat follows if nobody acts.",
    suggestion="Replace the fan.",
    fault_type="FTYPE_FAN",
    fault_desc="a fan failed",
    severity=Severity.MAJOR,
    count=3,
    window_s=180,
)
def draw_fan(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Which fan, and its speed."""
    return {"fan": random_.randrange(4), "rpm": random_.randrange(0, 800), "lowest_rpm": 2000}

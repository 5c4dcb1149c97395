"""Links between the dies of an RDU. Source: runtime reference 1.1, 3.4 (that they exist and raise an exception of their
own; types and thresholds are ours)."""

import random

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, Severity
from rdukit_node.faults.register import Hits, Suspect, fault
from rdukit_node.inventory import ComponentKind


@fault(
    "d2d-correctable",
    kind=ComponentKind.RDU,
    error_type="ETYPE_D2D_CE",
    error_desc="correctable error of a link between dies",
    cause="A flit was damaged and sent again.",
    signs="The count of ETYPE_D2D_CE of one RDU grows; programs notice nothing.",
    effect="None on programs. At the threshold a fault says that the link wears out.",
    suggestion="Watch for uncorrectable errors of the same RDU.",
    fault_type="FTYPE_D2D_CE_RATE",
    fault_desc="too many correctable errors of a link between dies",
    severity=Severity.MINOR,
    count=100,
    window_s=3600,
)
def draw_correctable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Which link and lane."""
    return {"link": random_.randrange(2), "lane": random_.randrange(64)}


@fault(
    "d2d-uncorrectable",
    kind=ComponentKind.RDU,
    error_type="ETYPE_D2D_UE",
    error_desc="uncorrectable error of a link between dies",
    cause="A flit was lost for good.",
    signs="Programs on the RDU end with D2dUeException.",
    effect="Every program on the RDU fails and the RDU is reset. If that fails, or at the second error within a day, "
    "it is unavailable.",
    suggestion="Power-cycle the XRDU and clear the fault; if it returns, replace the XRDU.",
    fault_type="FTYPE_D2D_LINK",
    fault_desc="uncorrectable errors of a link between dies",
    severity=Severity.CRITICAL,
    count=2,
    window_s=86_400,
    action=Action.RESET_RDU,
    hits=Hits.RDU,
    exception_code="d2d-uncorrectable",
    suspects=(Suspect.SELF, Suspect.XRDU),
)
def draw_uncorrectable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Which link, and how many flits were lost."""
    return {"link": random_.randrange(2), "lost_flits": random_.randrange(1, 100)}

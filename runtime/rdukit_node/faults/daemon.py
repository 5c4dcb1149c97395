"""The node daemon itself. Source: ours; that the daemon reports its own events to fault management is the vendor's
(runtime reference 2)."""

import random

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Severity
from rdukit_node.faults.register import fault
from rdukit_node.inventory import ComponentKind


@fault(
    "daemon-restart",
    kind=ComponentKind.NODE,
    error_type="ETYPE_SND_RESTART",
    error_desc="the node daemon started again without having been stopped",
    cause="The daemon was killed, crashed, or the host lost power.",
    signs="Events of the kind restore for the leases of the time before; then attach, or death.",
    effect="Programs compute on and attach to their leases again. At the fifth restart within an hour a fault says so.",
    suggestion="Look into snd.log for the reason, and into the host's log for killed processes.",
    fault_type="FTYPE_SND_RESTARTS",
    fault_desc="the node daemon restarts again and again",
    severity=Severity.MAJOR,
    count=5,
    window_s=3600,
)
def draw_restart(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Nothing beside the component."""
    return {}


@fault(
    "database-damaged",
    kind=ComponentKind.NODE,
    error_type="ETYPE_SNFM_DATABASE",
    error_desc="the fault database was damaged and was set aside",
    cause="The disk or file system, a copy while the node was running, or somebody who wrote into the file.",
    signs="Beside the database is a file snfm.db.damaged-…; the error's data has its name and how many rows were kept.",
    effect="Errors, faults and accounting that could not be read are missing; what is broken may be unknown.",
    suggestion="Check the disk; inject or repair what the node no longer knows. Keep or delete the file set aside.",
    fault_type="FTYPE_SNFM_DATABASE",
    fault_desc="the fault database was damaged; the node started with what could be read",
    severity=Severity.MAJOR,
)
def draw_database(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Nothing: the daemon says which file."""
    return {}

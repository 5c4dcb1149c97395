"""Device memory: DIMMs and their channels. Source: runtime reference 4.2 (types, thresholds and advice: ours there)."""

import random

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, Severity
from rdukit_node.faults.register import Hits, Suspect, fault
from rdukit_node.inventory import ComponentKind


@fault(
    "ddr-correctable",
    kind=ComponentKind.DIMM,
    error_type="ETYPE_DDR_CE",
    error_desc="correctable error in device memory",
    cause="A single bit flipped: radiation, a weak cell, a marginal contact.",
    signs="The count of ETYPE_DDR_CE of one DIMM grows; programs notice nothing.",
    effect="None on programs. At the threshold a fault says that the module wears out.",
    suggestion="Plan to replace the DIMM at the next maintenance.",
    fault_type="FTYPE_DIMM_CE_RATE",
    fault_desc="too many correctable errors in device memory",
    severity=Severity.MINOR,
    count=24,
    window_s=86_400,
)
def draw_correctable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Where the bit flipped, and its syndrome."""
    return {**_address(random_, node), "syndrome": f"0x{random_.randrange(1, 256):02x}", "bits": 1}


@fault(
    "ddr-uncorrectable",
    kind=ComponentKind.DIMM,
    error_type="ETYPE_DDR_UE",
    error_desc="uncorrectable error in device memory",
    cause="More bits of a word are wrong than the code can correct: a broken module, or one that is badly seated.",
    signs="The program that owns the address ends with DramUeException; its data cannot be trusted.",
    effect="The owner's program fails at once. The channel is retired: its memory is not granted any more.",
    suggestion="Reseat the DIMM; if the fault returns, replace it. Then clear the fault.",
    fault_type="FTYPE_DIMM_UE",
    fault_desc="uncorrectable error in device memory",
    severity=Severity.MAJOR,
    action=Action.RETIRE_CHANNEL,
    hits=Hits.MEMORY,
    exception_code="dram-uncorrectable",
    persists=True,
    resets_that_fail=None,
    suspects=(Suspect.SELF, Suspect.CHANNEL, Suspect.RDU),
)
def draw_uncorrectable(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    """Where it is, its syndrome and how many bits are wrong."""
    syndrome, bits = f"0x{random_.randrange(256, 65_536):04x}", random_.randrange(2, 9)
    return {**_address(random_, node), "syndrome": syndrome, "bits": bits}


def _address(random_: random.Random, node: NodeSpec) -> dict[str, object]:
    offset = random_.randrange(max(64, node.chip.ddr_bytes // max(1, node.chip.ddr_channels))) & ~63
    return {
        "address": f"0x{offset:010x}",
        "bank": offset >> 13 & 15,
        "row": offset >> 17 & 0x1FFFF,
        "column": offset >> 3 & 0x3FF,
    }

"""Rows of an earlier daemon as the next one takes them over. Pure."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from rdukit_node.faults.enums import FaultState, HangOutcome
from rdukit_node.faults.model import Snapshot

#: Outcomes of recoveries that were under way.
UNFINISHED: Final = frozenset({HangOutcome.IN_PROGRESS, HangOutcome.PENDING})


def fitted(snapshot: Snapshot, paths: Collection[str], now_ns: int) -> Snapshot:
    """``snapshot`` for a node with the components ``paths``.

    Faults of other components are cleared, their conditions left out; recoveries that were under way have failed.
    """
    faults = tuple(
        row
        if not row.is_active or row.comp_name in paths
        else replace(
            row, fault_state=FaultState.CLEARED, cleared_timestamp=now_ns, cleared_by="snd",
            fault_desc=f"{row.fault_desc} (this node has no such component)",
        )
        for row in snapshot.faults
    )  # fmt: skip
    hangs = tuple(
        replace(row, outcome=HangOutcome.FAILED) if row.outcome in UNFINISHED else row for row in snapshot.hangs
    )
    conditions = tuple(row for row in snapshot.conditions if row.component in paths)
    return replace(snapshot, faults=faults, hangs=hangs, conditions=conditions)

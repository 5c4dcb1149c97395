"""Holds the engine to the memory plan: after each run, what its slots really keep is at most what the plan says."""

from collections.abc import Iterable, Sequence

import torch

from rdukit.errors import RuntimeFault
from rdukit.pef.memory import MemoryPlan, MemoryWalk
from rdukit.pef.model import Graph, Pef
from rdukit.units import format_bytes


class MemoryWatch:
    """Follows a program's runs by the plan. Good from load until a run fails: what that one leaves nobody plans.

    Switched on by ``RDUKIT_CHECK``.
    """

    def __init__(self, pef: Pef) -> None:
        self._walk = MemoryWalk(pef)

    def check(self, graph: Graph, sections: Sequence[int], passing: Iterable[torch.Tensor]) -> MemoryPlan:
        """``sections`` have run, and ``passing`` is what slots hold outside persistent memory.

        Returns:
            The plan of this run.
        Raises:
            RuntimeFault: they keep more memory than the plan says.
        """
        plan = self._walk.run(graph, sections)
        held = held_bytes(passing)
        if held > plan.end_bytes:
            raise RuntimeFault(
                f"internal: after sections {list(sections)[:8]} of graph {graph.name!r} the engine keeps "
                f"{format_bytes(held)} beyond persistent memory, the plan says {format_bytes(plan.end_bytes)}"
            )
        return plan


def held_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of memory that the tensors keep: each storage once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())

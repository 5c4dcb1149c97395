"""The named graphs of a multigraph program: parts of a trace that run separately.

Source: SDK reference 12.1.
"""

from typing import Any

import torch

from rdukit.errors import InvalidArgument
from sambaflow.samba.sambatensor import SambaTensor, SambaTensors


class SambaGraph:
    """A graph that ``session.run`` finds by ``graph_name``.

    Raises:
        InvalidArgument: the name is empty or not a string.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"a graph's name is {name!r}; expected a non-empty string")
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


class FwdGraph(SambaGraph):
    """The operators between ``start`` and ``stop``: the operators that ``stop`` needs, cut at ``start``.

    Args:
        start, stop: SambaTensors of the trace: one, or tuples, lists and dicts of them in any nesting; values other
            than tensors are ignored. They are flattened depth first, without duplicate names.
        name: unique in a session.
    Raises:
        InvalidArgument: a torch tensor is among them, or ``stop`` holds no tensor and ``start`` does.
    Source: the public Model Zoo adds a graph with neither for a model that generates several tokens at once; such a
        graph is empty, and is neither compiled nor run.
    """

    def __init__(self, start: Any, stop: Any, name: str) -> None:
        super().__init__(name)
        self.start: tuple[SambaTensor, ...] = _flat(start, f"start of graph {name!r}")
        self.stop: tuple[SambaTensor, ...] = _flat(stop, f"stop of graph {name!r}")
        if self.start and not self.stop:
            raise InvalidArgument(f"stop of graph {name!r} holds no SambaTensor; pass what trace_multigraph returned")


def _flat(value: Any, where: str) -> tuple[SambaTensor, ...]:
    found: dict[str, SambaTensor] = {}

    def walk(item: Any) -> None:
        if isinstance(item, SambaTensor):
            found.setdefault(item.sn_name, item)
        elif isinstance(item, torch.Tensor):
            raise InvalidArgument(f"{where} holds a torch tensor; expected SambaTensors that were traced")
        elif isinstance(item, dict):
            for inner in item.values():
                walk(inner)
        elif isinstance(item, list | tuple | SambaTensors):
            for inner in item:
                walk(inner)

    walk(value)
    return tuple(found.values())


__all__ = ["FwdGraph", "SambaGraph"]

"""Compile hints inside a program: recorded on the operators inside them, without effect on results.

While a model is traced, the end of a block labels every operator that was recorded inside. Inner blocks end
first, so their labels take precedence.

Source: SDK reference 11, compiler reference 5.6.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import fx, nn

from rdukit.errors import InvalidArgument


class Recording:
    """The current trace: its record, the open blocks, and the ids of fusion groups; empty between traces.

    Ids count from 0 in each trace, so equal traces have equal ids.
    """

    def __init__(self) -> None:
        self.graph: fx.Graph | None = None
        #: Open blocks: labels, and the number of recorded operators at the start of the block.
        self._open: list[tuple[Mapping[str, str], int]] = []
        self._next_id = 0
        #: Group's name → its last id.
        self._last_ids: dict[str, int] = {}
        self._last_id: int | None = None
        #: Name → tensor that ``add_aux_tensor`` exposed in this trace.
        self.auxiliary: dict[str, torch.Tensor] = {}

    @contextmanager
    def of(self, graph: fx.Graph) -> Iterator[None]:
        """Use ``graph`` as the record while the block lasts."""
        self.__init__()  # type: ignore[misc]
        self.graph = graph
        try:
            yield
        finally:
            self.graph = None

    def enter(self, labels: Mapping[str, str]) -> None:
        """Open a block."""
        self._open.append((labels, len(self.graph.nodes) if self.graph is not None else 0))

    def leave(self) -> None:
        """Close the innermost block, and label the operators that were recorded inside."""
        labels, begun = self._open.pop()
        if self.graph is not None:
            self.label(labels, len(self.graph.nodes) - begun)

    def label(self, labels: Mapping[str, str], count: int) -> None:
        """Label the last ``count`` operators; existing labels stay."""
        from rdukit_compiler import LABELS_META

        if self.graph is not None and labels:
            for node, _ in zip(reversed(self.graph.nodes), range(count), strict=False):
                node.meta[LABELS_META] = {**labels, **node.meta.get(LABELS_META, {})}

    def expose(self, name: str, tensor: torch.Tensor) -> None:
        """Make ``tensor`` an output of the graph.

        Raises:
            InvalidArgument: the name was used in this trace.
        """
        if name in self.auxiliary:
            raise InvalidArgument(f"add_aux_tensor: {name!r} is used twice in this forward; names must differ")
        self.auxiliary[name] = tensor

    def group_id(self, name: str, reuse_last: bool = False) -> str:
        """Return a new fusion group's id; with ``reuse_last``, that of the last group of this name, or of any name if
        there is none.
        """
        known = self._last_ids.get(name, self._last_id) if reuse_last else None
        if known is None:
            known = self._next_id
            self._next_id += 1
        self._last_ids[name] = self._last_id = known
        return str(known)


#: State of the current trace: a process traces one model at a time.
recording = Recording()


class op_fusion:
    """Mark operators as one fusion group: ``with op_fusion(func_name=…):`` around calls in forward.

    With a module (``op_fusion(module, 'Encoder')``) it marks each call of the module as a group. The context can be
    entered repeatedly: each time begins a new group, unless ``reuse_last_id`` continues the last group of the same
    name, so that separate calls share one. ``plugins`` are recorded.
    """

    def __init__(
        self, func_name: "str | nn.Module | None" = None, heuristic: "str | Mapping[str, Any] | None" = None,
        heuristic_params: Mapping[str, Any] | None = None, plugins: str | Sequence[str] | None = None,
        reuse_last_id: bool = False, user_annotated: bool = False,
    ) -> None:  # fmt: skip
        module = func_name if isinstance(func_name, nn.Module) else None
        name = heuristic if module is not None else func_name
        self._reuse = reuse_last_id
        self._labels = {"op_fusion": str(name or "")}
        if module is None and heuristic is not None:
            self._labels["heuristic"] = heuristic if isinstance(heuristic, str) else str(dict(heuristic))
        if heuristic_params:
            self._labels["heuristic_params"] = str(dict(heuristic_params))
        if plugins:
            self._labels["plugins"] = plugins if isinstance(plugins, str) else " ".join(plugins)
        if user_annotated or module is not None:
            self._labels["user_annotated"] = "true"
        if module is not None:
            module.sn_labels = dict(self._labels)  # type: ignore[assignment]

    def __enter__(self) -> "op_fusion":
        name = self._labels["op_fusion"]
        recording.enter({**self._labels, "op_fusion_id": recording.group_id(name, self._reuse)})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recording.leave()


@contextmanager
def sdpa_directives(directives: Mapping[str, Any]) -> Iterator[None]:
    """Record options of attention for the block (keys seen: ``sdp_mixed_p``, ``sdp_block_size``)."""
    with hints({f"sdpa.{key}": str(value) for key, value in directives.items()}):
        yield


@contextmanager
def hints(labels: Mapping[str, str]) -> Iterator[None]:
    """Label the operators of a block."""
    recording.enter(labels)
    try:
        yield
    finally:
        recording.leave()


def module_labels(module: nn.Module) -> dict[str, str]:
    """Return labels of one call of ``module`` that ``op_fusion(module, …)`` marked; empty for others."""
    labels = dict(getattr(module, "sn_labels", {}))
    if "op_fusion" in labels:
        labels["op_fusion_id"] = recording.group_id(labels["op_fusion"])
    return labels


__all__ = ["hints", "module_labels", "op_fusion", "recording", "sdpa_directives"]

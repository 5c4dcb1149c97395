"""Buffers whose values forward may look at: integers and masks that it never changes.

Audio codecs keep the padding of a convolution as such buffers. Those that are not part of a checkpoint
(``persistent=False``) are what a module computes from its settings, so that what is seen while a graph is traced is
what the device would have. A checkpoint may change the others, such as the mask of a pruned layer: each run checks
them.
"""

from collections.abc import Mapping

import torch
from torch import fx, nn

from rdukit.errors import TraceError
from rdukit_compiler.backend.record_marks import READ_META
from rdukit_compiler.ir import ModelGraph
from sambaflow.samba.earlier_traces import Source


def fixed_buffers(model: nn.Module, buffers: Mapping[str, torch.Tensor], first: int) -> dict[int, torch.Tensor]:
    """Those of ``buffers`` that no checkpoint changes, by their position among a trace's values.

    Args:
        first: the position of the first buffer.
    """
    temporary = _temporary(model)
    return {place: b for place, (path, b) in enumerate(buffers.items(), first) if path in temporary and _is_whole(b)}


def checked_buffers(model: nn.Module, buffers: Mapping[str, torch.Tensor], first: int) -> dict[int, torch.Tensor]:
    """Those that a checkpoint may change, in the same way: what forward does by their values holds for these values."""
    temporary = _temporary(model)
    return {
        place: b for place, (path, b) in enumerate(buffers.items(), first) if path not in temporary and _is_whole(b)
    }


def _temporary(model: nn.Module) -> set[str]:
    """Paths of buffers that are no part of a checkpoint."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }


def _is_whole(buffer: torch.Tensor) -> bool:
    """Whether it has whole numbers, or is a mask, and has its values."""
    return not (buffer.is_floating_point() or buffer.is_complex() or buffer.is_meta)


def check_fixed(recorded: fx.Graph, sources: Mapping[fx.Node, Source], graph: ModelGraph) -> None:
    """Check that no buffer whose value forward looked at is one that the graph changes.

    Raises:
        TraceError: one is.
    """
    for node, source in sources.items():
        if READ_META in node.meta and source.value.name in graph.updates:
            raise TraceError(
                f"forward looks at the value of buffer {source.value.name!r} and changes it: control flow, shapes and "
                "Python numbers cannot depend on state: use torch.where, or pass the value in as an argument"
            )

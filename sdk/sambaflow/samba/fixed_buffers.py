"""Buffers whose values forward may look at: integers that a module computes from its settings and never changes.

Audio codecs keep the padding of a convolution as such buffers. They are not part of a checkpoint
(``persistent=False``), so that what is seen while a graph is traced is what the device would have.
"""

from collections.abc import Mapping

import torch
from torch import fx, nn

from rdukit.errors import TraceError
from rdukit_compiler.backend.record_marks import READ_META
from rdukit_compiler.ir import ModelGraph
from sambaflow.samba.earlier_traces import Source


def fixed_buffers(model: nn.Module, buffers: Mapping[str, torch.Tensor], first: int) -> dict[int, torch.Tensor]:
    """Those of ``buffers``, by their position among a trace's values, where the first buffer is number ``first``."""
    temporary = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return {
        first + place: buffer
        for place, (path, buffer) in enumerate(buffers.items())
        if path in temporary and not (buffer.is_floating_point() or buffer.is_complex() or buffer.is_meta)
    }


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

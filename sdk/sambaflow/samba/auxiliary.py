"""Intermediate tensors that a program exposes as outputs by ``add_aux_tensor``. Source: SDK reference 6.3."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from rdukit.errors import TraceError
from rdukit_compiler.ir import ModelGraph
from sambaflow.samba.directives import recording


def auxiliary_outputs(exposed: Collection[str] = ()) -> list[torch.Tensor]:
    """What the trace that just ran exposed, detached: no gradient flows in, and each is a value of its own.

    Names in ``exposed`` are left out, here and by ``name_auxiliary``: an earlier trace exposes that tensor.
    """
    for name in set(exposed) & recording.auxiliary.keys():
        del recording.auxiliary[name]
    return [torch.ops.aten.detach.default(tensor) for tensor in recording.auxiliary.values()]


def name_auxiliary(graph: ModelGraph) -> ModelGraph:
    """The last outputs of ``graph``, which ``auxiliary_outputs`` made, under the names that the program gave them.

    Raises:
        TraceError: a name is taken, or forward returns nothing else.
    """
    names: Sequence[str] = tuple(recording.auxiliary)
    if not names:
        return graph
    new = dict(zip(graph.outputs[-len(names) :], names, strict=True))
    if taken := [name for name in names if name in graph.values]:
        raise TraceError(f"add_aux_tensor: {taken[0]!r} is the name of another tensor; choose another")
    if len(graph.outputs) == len(names):
        raise TraceError(f"forward of {graph.name!r} returns no tensor; auxiliary tensors come beside its outputs")
    values = {new.get(n, n): replace(v, name=new.get(n, n)) for n, v in graph.values.items()}
    operators = tuple(
        replace(o, outputs=tuple(new.get(n, n) for n in o.outputs)) if new.keys() & set(o.outputs) else o
        for o in graph.operators
    )
    return replace(graph, values=values, operators=operators, outputs=tuple(new.get(n, n) for n in graph.outputs))

"""``trace_multigraph``, where programs import it from."""

from typing import Any

from torch import nn

from sambaflow.samba.sambatensor import SambaTensor


def trace_multigraph(model: nn.Module, inputs: Any, trace_prefix: str = "") -> tuple[SambaTensor, ...]:
    """Trace a converted model, beside what was traced before, for graphs to be cut from.

    Args:
        inputs: named SambaTensors: one, a tuple or list of positional arguments, or a dict of keyword arguments; nested
            as forward takes them, with values that are no tensors among them.
        trace_prefix: put before generated names, so that one module can be traced several times.
    Returns:
        The outputs, flat in depth-first order (dicts in value order); also set as ``model.output_tensors``. Source: SDK
        reference 12.1.
    Raises:
        TraceError: forward cannot be traced, or a name stands for two different tensors.
    """
    from sambaflow import samba

    return samba.session.trace_multigraph(model, inputs, trace_prefix)

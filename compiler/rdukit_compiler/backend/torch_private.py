"""Every private interface of torch that the compiler uses, in one place, with a self-test.

torch is pinned to one exact version; an upgrade runs ``self_test`` first.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from rdukit_compiler.backend.record import record_forward
from rdukit_compiler.backend.split_saving import split_saving

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """While tracing: operators decompose as they do without oneDNN. Kernels use it all the same when they run.

    ``torch.backends.mkldnn.flags`` does the same and touches settings of other devices, which warns.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def trace_aten(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """Record the ATen calls of ``function(list of tensors)``, autograd's included, on fake tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="fake")(*inputs)


def split_joint(joint: fx.GraphModule, forward_outputs: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Split a joint graph (placeholders ``primals_…`` then ``tangents_…``) into forward and backward.

    The forward returns its outputs and then the values saved for backward; the backward takes the saved values, by
    their names, and then the tangents. A minimal cut decides what is saved and what is cheap enough to compute again.
    """
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    try:
        return min_cut_rematerialization_partition(
            joint, (), num_fwd_outputs=forward_outputs, static_lifetime_input_indices=[]
        )
    except AssertionError as refusal:  # it takes for granted what only its own tracer ensures
        logger.debug("no minimal cut reason=%s; saving what backward reads", refusal)
        return split_saving(joint, forward_outputs)


def build_library(module: fx.GraphModule, inputs: Sequence[torch.Tensor], share_headers: bool) -> Path:
    """Compile a flat module to a native library with AOTInductor. Needs a C++ compiler.

    Args:
        share_headers: precompile the C++ headers: costs seconds once, saves one or two for each later library.
    Returns:
        The path of the ``.so`` in inductor's own cache.
    """
    from torch._inductor import aot_compile

    with torch.no_grad():
        made = aot_compile(
            module,
            tuple(inputs),
            options={
                "aot_inductor.package": True,
                "aot_inductor.enable_line_tables": False,
                "aot_inductor.precompile_headers": share_headers,
                # Fused operators round to bf16 where lone ones do: a library gives what the portable form gives.
                "emulate_precision_casts": True,
            },
        )
    assert isinstance(made, list)
    (library,) = [Path(str(p)) for p in made if str(p).endswith(".so")]
    return library


def self_test() -> None:
    """Check that the private interfaces behave as this module says; raises AssertionError if not."""

    def joint(primals: list[torch.Tensor], tangents: list[torch.Tensor]) -> list[torch.Tensor]:
        out = primals[0].tanh() * 2
        return [out, *torch.autograd.grad([out], [primals[0]], tangents)]

    x = torch.ones(3, requires_grad=True)
    traced = trace_aten(lambda a, b: joint([a], [b]), [x, torch.ones(3)])
    assert any(str(node.target) == "aten.tanh_backward.default" for node in traced.graph.nodes)
    with FakeTensorMode():
        values = [torch.empty(3, 4)]
    recorded = record_forward(lambda tensors: [tensors[0].t() + 1, tensors[0].t() + 1], values)
    made = [(str(node.target), node.meta["val"].shape) for node in recorded.graph.nodes if node.op == "call_function"]
    assert made == [("aten.t.default", (4, 3)), ("aten.add.Tensor", (4, 3))] * 2

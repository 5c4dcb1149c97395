"""What the engine keeps: inputs that nobody needs any more are freed inside a kernel."""

import weakref

import torch

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, TensorSpec
from rdukit_runtime.engine.memory_watch import held_bytes
from rdukit_runtime.engine.portable import build_portable


def test_a_kernel_frees_an_input_after_its_last_use_when_it_is_given_away() -> None:
    spec = TensorSpec("x", "float32", (4,), (1,))
    kernel = build_portable(
        KernelGraph(
            (spec,),
            (KernelNode("a", "aten.exp.default", (Ref("x"),)), KernelNode("b", "aten.sin.default", (Ref("a"),))),
            ("b",),
        )
    )
    given = [torch.ones(4)]
    gone = weakref.ref(given[0])
    kernel(given, {})
    assert gone() is None and not given


def test_inputs_that_are_no_list_stay_the_callers() -> None:
    spec = TensorSpec("x", "float32", (4,), (1,))
    kernel = build_portable(KernelGraph((spec,), (KernelNode("a", "aten.exp.default", (Ref("x"),)),), ("a",)))
    given = (torch.ones(4),)
    kernel(given, {})
    assert given[0].tolist() == [1.0] * 4


def test_views_keep_one_memory() -> None:
    whole = torch.ones(16)
    assert held_bytes([whole, whole[:2], whole.view(4, 4)]) == 64

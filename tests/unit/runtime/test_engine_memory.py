"""What the engine keeps: inputs that nobody needs any more are freed inside a kernel."""

import weakref

import torch

from rdukit.pef.kernel import KernelGraph, KernelNode, Ref, TensorSpec
from rdukit_runtime.engine.optimizer_operators import PIECE, adamw_stepwise
from rdukit_runtime.engine.portable import build_portable
from rdukit_runtime.engine.program import held_bytes
from support import shows

pytestmark = shows("engine")


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


def test_a_large_parameter_is_updated_piece_by_piece_and_bit_for_bit_as_torch_does() -> None:
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(3, PIECE // 2 + 7))
    ours = [parameter.detach().clone(), *(torch.zeros_like(parameter) for _ in range(2)), torch.zeros(())]
    optimizer = torch.optim.AdamW([parameter], lr=1e-2, foreach=False, fused=False)
    for _ in range(3):
        parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        weight, average, square, count = ([tensor] for tensor in ours)
        with torch.no_grad():
            adamw_stepwise(
                weight, [parameter.grad], average, square, count,
                lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=1e-2,
            )  # fmt: skip
        assert torch.equal(weight[0], parameter.detach())

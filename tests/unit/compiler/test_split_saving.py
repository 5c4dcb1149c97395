"""The split that saves everything: forward and backward together give autograd's gradients."""

import torch

from rdukit_compiler.torch_private import split_saving, trace_aten
from support import shows

pytestmark = shows("engine")


def joint_of_two_tensors() -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    torch.manual_seed(0)
    x, w, tangent = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True), torch.randn(2, 5)

    def joint(x: torch.Tensor, w: torch.Tensor, tangent: torch.Tensor) -> list[torch.Tensor]:
        first, _ = torch.split(torch.tanh(x @ w), [2, 1])
        out = first * first
        return [out, *torch.autograd.grad([out], [w], [tangent])]

    traced = trace_aten(joint, [x, w, tangent])
    names = iter(["primals_1", "primals_2", "tangents_1"])
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            node.name = node.target = next(names)
    traced.recompile()
    return traced, [x, w.detach(), tangent]


def test_the_parts_together_give_autograds_gradient() -> None:
    joint, (x, w, tangent) = joint_of_two_tensors()
    forward, backward = split_saving(joint, 1)
    out, *saved = forward(x, w)
    assert len([n for n in backward.graph.nodes if n.op == "placeholder"]) == len(saved) + 1
    (gradient,) = backward(*saved, tangent)
    leaf = w.clone().requires_grad_()
    expected = torch.split(torch.tanh(x @ leaf), [2, 1])[0].square()
    expected.backward(tangent)
    torch.testing.assert_close(out, expected.detach())
    torch.testing.assert_close(gradient, leaf.grad)


def test_nothing_of_the_tangents_is_in_the_forward() -> None:
    joint, _ = joint_of_two_tensors()
    forward, _ = split_saving(joint, 1)
    assert not [n for n in forward.graph.nodes if n.name.startswith("tangents")]

"""A backward rounds f32 masters itself, rather than keep what its forward rounded."""

from collections.abc import Callable, Sequence

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from rdukit_compiler.passes.section_rewrites import rematerialize_casts
from rdukit_compiler.torch_private import split_joint, trace_aten
from support import shows

pytestmark = shows("precision", "engine")

Tensors = list[torch.Tensor]


def split(function: Callable[[Tensors], torch.Tensor], primals: Sequence[torch.Tensor]) -> Sequence[fx.GraphModule]:
    """Forward and backward of ``function``, whose gradient with respect to the first primal is asked for."""

    def joint(*tensors: torch.Tensor) -> Tensors:
        made = function(list(tensors[:-1]))
        return [made, *torch.autograd.grad([made], [tensors[0]], [tensors[-1]])]

    with FakeTensorMode():
        fakes = [torch.empty(p.shape, dtype=p.dtype, requires_grad=p.is_floating_point()) for p in primals]
        with torch.no_grad():
            tangent = torch.empty_like(function(fakes))
        traced = trace_aten(joint, [*fakes, tangent])
    for position, node in enumerate(n for n in traced.graph.nodes if n.op == "placeholder"):
        node.name = node.target = f"primals_{position + 1}" if position < len(primals) else "tangents_1"
    traced.recompile()
    return split_joint(traced, 1)


def placeholders(module: fx.GraphModule) -> list[str]:
    return [node.name for node in module.graph.nodes if node.op == "placeholder"]


def linear(tensors: Tensors) -> torch.Tensor:
    x, weight = tensors
    return torch.nn.functional.linear(x, weight.bfloat16())


X, WEIGHT = torch.randn(3, 4).bfloat16(), torch.randn(5, 4)


def test_the_backward_reads_the_master_and_gives_the_same_gradient() -> None:
    forward, backward = split(linear, [X, WEIGHT])
    former = [*placeholders(backward)]
    rematerialize_casts(forward, backward, [False, True])
    assert placeholders(backward) == ["primals_2", "tangents_1"] != former
    tangent = torch.randn(3, 5).bfloat16()
    (gradient,) = backward(WEIGHT, tangent)
    assert torch.equal(gradient, tangent @ WEIGHT.bfloat16())


def test_the_copy_is_made_just_before_it_is_read() -> None:
    def deep(tensors: Tensors) -> torch.Tensor:
        x, first, second = tensors
        return torch.tanh(torch.tanh(x @ first.bfloat16()) @ second.bfloat16())

    forward, backward = split(deep, [torch.randn(3, 4).bfloat16(), torch.randn(4, 4), torch.randn(4, 4)])
    rematerialize_casts(forward, backward, [False, True, True])
    calls = [str(node.target) for node in backward.graph.nodes if node.op == "call_function"]
    conversions = [number for number, call in enumerate(calls) if call == "aten._to_copy.default"]
    products = [number for number, call in enumerate(calls) if call == "aten.mm.default"]
    assert conversions[0] < products[0] < conversions[1] < products[1]


def test_what_is_no_master_is_saved_as_before() -> None:
    forward, backward = split(linear, [X, WEIGHT])
    former = [*placeholders(backward)]
    rematerialize_casts(forward, backward, [False, False])
    assert placeholders(backward) == former


def test_what_was_computed_from_a_master_is_saved_as_before() -> None:
    forward, backward = split(lambda t: t[0] @ t[1].t().bfloat16().tanh(), [X, WEIGHT])
    former = [*placeholders(backward)]
    rematerialize_casts(forward, backward, [False, True])
    assert [name for name in placeholders(backward) if name.startswith("primals")] == [
        name for name in former if name.startswith("primals")
    ]


def test_a_widened_weight_stays_saved() -> None:
    def widened(tensors: Tensors) -> torch.Tensor:
        x, weight = tensors
        return x @ weight.float()

    forward, backward = split(widened, [torch.randn(3, 4), torch.randn(4, 5).bfloat16()])
    former = [*placeholders(backward)]
    rematerialize_casts(forward, backward, [False, True])
    assert placeholders(backward) == former

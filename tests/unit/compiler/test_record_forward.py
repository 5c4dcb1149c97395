"""The fast recorder records what torch's own does, call by call."""

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from rdukit_compiler.backend.record import record_forward
from rdukit_compiler.backend.torch_private import self_test

Forward = Callable[[list[torch.Tensor]], list[torch.Tensor]]
OUTSIDE = torch.arange(6.0).reshape(2, 3)


def attention(t: list[torch.Tensor]) -> list[torch.Tensor]:
    x = t[0]
    for _ in range(3):
        q = F.linear(x, t[1]).view(4, 2, 3).transpose(0, 1)
        q = torch.cat((-q[..., 2:], q[..., :2]), dim=-1)
        x = x + F.scaled_dot_product_attention(q[None], q[None], q[None])[0].transpose(0, 1).reshape(4, 6)
        x = F.layer_norm(x.float(), (6,)).to(x.dtype)
    return [x]


def in_place(t: list[torch.Tensor]) -> list[torch.Tensor]:
    x = t[0]
    for _ in range(3):
        y = x * 2
        y.unsqueeze_(0)
        y += 1
        y[0, :2].mul_(3)
        x = y.squeeze(0) + y.t_()[0] if y.dim() == 2 else y[0]
    return [x]


def numbers_of_each_kind(t: list[torch.Tensor]) -> list[torch.Tensor]:
    x = t[0]
    made = [x.sum(0, keepdim=flag) for flag in (True, False, True, False)]
    made += [x + number for number in (1, 1.0, True, 2, 1)]
    made += [x.to(dtype) for dtype in (torch.bfloat16, torch.float64, torch.bfloat16)]
    made += [torch.zeros(2, dtype=torch.int64) for _ in range(2)]
    return [*made, *x.split(2), *x.split(2), *x.split([1, 3])]


def constants_and_modes(t: list[torch.Tensor]) -> list[torch.Tensor]:
    x = t[0]
    for number in (1.0, 2.0):
        x = x + torch.tensor(number) + OUTSIDE.sum()
        with torch.no_grad():
            x = x * 3
    mask = torch.ones(4, 6, dtype=torch.bool).tril()
    return [x.masked_fill(mask, 0.0), F.dropout(x, 0.5), F.dropout(x, 0.5, training=False), x.detach(), x.detach()]


def memory_of_many_forms(t: list[torch.Tensor]) -> list[torch.Tensor]:
    made = []
    for _ in range(2):
        x = t[0]
        made += [
            x.t(),
            x.t().contiguous(),
            x.contiguous(),
            x[1:, ::2],
            x[1:, ::2] * 2,
            x.expand(2, 4, 6),
            x.unfold(1, 2, 2),
        ]
        made += [x.expand(2, 4, 6) + 1, x.t() * 2, x.reshape(2, 12), x.t().reshape(2, 12), x[:, None], x.unbind(0)[1]]
        made += [torch.max(x, 1).values, torch.view_as_complex(x.reshape(4, 3, 2)).abs()]
    return made


def under_vmap(t: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.vmap(lambda row: row * 2 + row.sum())(t[0]) for _ in range(2)]


def described(module: fx.GraphModule) -> tuple[list[object], list[object]]:
    """Calls, and their results: dtype, shape, strides, and which of them share memory."""
    calls: list[object] = []
    results: list[object] = []
    numbered: dict[int, int] = {}
    place = {node: index for index, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        args = fx.node.map_arg((node.args, node.kwargs), lambda n: f"node {place[n]}")
        calls.append((node.op, str(node.target), repr(args)))
        value = node.meta.get("val")
        for tensor in value if isinstance(value, list | tuple) else [value]:  # a tensor of vmap has no storage
            if isinstance(tensor, torch.Tensor) and (isinstance(tensor, FakeTensor) or tensor.is_meta):
                memory = numbered.setdefault(tensor.untyped_storage()._cdata, len(numbered))
                form = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
                results.append((node.op, *form, memory))
    return calls, results


@pytest.mark.parametrize(
    "forward",
    [attention, in_place, numbers_of_each_kind, constants_and_modes, memory_of_many_forms, under_vmap],
)
def test_calls_results_and_shared_memory_are_those_of_torchs_recorder(forward: Forward) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        values = [torch.empty(4, 6), torch.empty(6, 6)]
    theirs = make_fx(forward, tracing_mode="fake", pre_dispatch=True, _allow_non_fake_inputs=True)(values)
    assert described(record_forward(forward, values)) == described(theirs)


def test_a_conversion_that_changes_nothing_does_not_stand_for_what_it_converted() -> None:
    def forward(t: list[torch.Tensor]) -> list[torch.Tensor]:
        return [made for _ in range(2) for made in (t[0].to(torch.float32).exp(), t[0].sin())]

    with FakeTensorMode(allow_non_fake_inputs=True):
        recorded = record_forward(forward, [torch.empty(4, 6)])
    x, *calls, _ = recorded.graph.nodes
    first, exp, sin, second, _, again = calls
    assert [first.args[0], exp.args[0], sin.args[0], second.args[0], again.args[0]] == [x, first, x, x, x]
    assert first.meta["val"].untyped_storage()._cdata == x.meta["val"].untyped_storage()._cdata


def test_what_is_done_in_place_later_does_not_change_an_earlier_result() -> None:
    def forward(t: list[torch.Tensor]) -> list[torch.Tensor]:
        for _ in range(2):
            y = t[0] * 2
            y.unsqueeze_(0)
        return [y]

    with FakeTensorMode():
        values = [torch.empty(4, 6)]
    nodes = list(record_forward(forward, values).graph.nodes)
    assert [tuple(n.meta["val"].shape) for n in nodes if "mul" in str(n.target)] == [(4, 6), (4, 6)]


def test_a_value_that_is_needed_while_recording_is_refused_as_by_torch() -> None:
    def forward(t: list[torch.Tensor]) -> list[torch.Tensor]:
        return [t[0] * 2 if (t[0] * 2).sum() > 0 else t[0]]

    with FakeTensorMode():
        values = [torch.empty(4, 6)]
    with pytest.raises(Exception, match=r"data-dependent|DataDependent|value out of|_local_scalar_dense"):
        record_forward(forward, values)


def test_torchs_private_interfaces_behave_as_the_compiler_takes_for_granted() -> None:
    self_test()

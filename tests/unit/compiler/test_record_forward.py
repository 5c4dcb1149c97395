"""The fast recorder records what torch's own does, call by call."""

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from rdukit_compiler.capture.record import record_forward
from support import shows

pytestmark = shows("pytorch")

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
    return [x.masked_fill(mask, 0.0), F.dropout(x, 0.5), x.detach(), x.detach()]


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


def layers(t: list[torch.Tensor]) -> list[torch.Tensor]:
    x, w = t
    labels = torch.zeros(4, dtype=torch.int64)
    narrow = x.bfloat16()
    made = [
        F.linear(a, b, c)
        for a in (x, x[None], x.t(), x[0])
        for b in (w[:5], w.t())
        for c in (None, b[:, 0])
        if a.shape[-1] == 6
    ]
    made += [F.linear(x, w[:5].contiguous()), F.linear(narrow, w.bfloat16()), F.linear(x[:0], w), F.linear(x[1:], w)]
    made += [F.layer_norm(a, shape) for a, shape in ((x, (6,)), (x, (4, 6)), (x.t(), (4,)), (narrow, (6,)))]
    made += [F.layer_norm(x, (6,), w[0], w[1]), F.layer_norm(x[:0], (6,)), F.layer_norm(x, [6], w[0])]
    made += [F.cross_entropy(x, labels, reduction=r, label_smoothing=0.1) for r in ("mean", "sum", "none")]
    made += [F.cross_entropy(x, labels, w[0]), F.cross_entropy(x[0], labels[0]), F.cross_entropy(x, x.softmax(1))]
    made += [F.cross_entropy(x[None].transpose(1, 2), labels[None]), F.cross_entropy(narrow, labels)]
    made += [F.mse_loss(x, x * 2, reduction=r) for r in ("mean", "sum", "none")]
    made += [
        f(a) for f in (torch.relu, torch.tanh, torch.sigmoid, F.silu, F.gelu) for a in (x, narrow, x.t(), x[:, 1:])
    ]
    made += [
        torch.relu(labels),
        torch.tanh(labels),
        F.gelu(x, approximate="tanh"),
        torch.relu(x[0, 0]),
        torch.relu(x[:0]),
    ]
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
    [attention, in_place, numbers_of_each_kind, constants_and_modes, memory_of_many_forms, layers],
)
def test_calls_results_and_shared_memory_are_those_of_torchs_recorder(forward: Forward) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        values = [torch.empty(4, 6), torch.empty(6, 6)]
    theirs = make_fx(forward, tracing_mode="fake", pre_dispatch=True, _allow_non_fake_inputs=True)(values)
    assert described(record_forward(forward, values)) == described(theirs)


def test_what_runs_under_vmap_is_recorded_for_all_rows() -> None:
    """torch's own recorder takes down the calls for one row, as the program makes them."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        values = [torch.empty(4, 6)]
    recorded = record_forward(under_vmap, values)
    x = torch.randn(4, 6)
    for made, expected in zip(recorded([x]), under_vmap([x]), strict=True):
        torch.testing.assert_close(made, expected)


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


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, w: F.linear(x, w[:, :5].contiguous()),
        lambda x, w: F.linear(x, w, w[0, :5]),
        lambda x, w: F.layer_norm(x, (5,)),
        lambda x, w: F.layer_norm(x, (6,), w[0, :5]),
        lambda x, w: F.cross_entropy(x, torch.zeros(3, dtype=torch.int64)),
    ],
)
def test_operands_that_do_not_fit_are_refused_in_torchs_words(wrong: Callable[..., torch.Tensor]) -> None:
    def forward(t: list[torch.Tensor]) -> list[torch.Tensor]:
        return [wrong(*t)]

    with FakeTensorMode(allow_non_fake_inputs=True):
        values = [torch.empty(4, 6), torch.empty(6, 6)]
    with pytest.raises(Exception) as theirs:
        make_fx(forward, tracing_mode="fake", pre_dispatch=True, _allow_non_fake_inputs=True)(values)
    with pytest.raises(type(theirs.value)) as ours:
        record_forward(forward, values)
    assert str(ours.value) == str(theirs.value)

"""Modules of torch that programs use: outputs and gradients equal torch's, in sections and as a whole."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sambaflow import samba
from sambaflow.samba.sambatensor import SambaTensor
from support import shows
from support.programs import load_model

pytestmark = shows("pytorch", "o0", "o1", "o3")


class Model(nn.Module):
    """``function(self, x)`` over the modules given."""

    def __init__(self, function: Callable[..., torch.Tensor], **modules: Any) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self._function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._function(self, x)


def real(*shape: int) -> SambaTensor:
    return samba.randn(*shape, name="x")


def tied() -> Model:
    layer = nn.Linear(4, 4)
    return Model(lambda m, x: m.b(m.a(x).tanh()), a=layer, b=layer)


def tied_weights() -> Model:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return Model(lambda m, x: m.b(m.a(x).tanh()), a=first, b=second)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], SambaTensor]]] = {
    "conv2d-pool": (
        lambda: Model(lambda m, x: F.max_pool2d(m.c(x).relu(), 2), c=nn.Conv2d(1, 3, 3)), lambda: real(2, 1, 8, 8)),
    "conv-transpose-upsample": (
        lambda: Model(lambda m, x: F.interpolate(m.c(x), scale_factor=2, mode="bilinear"),
                      c=nn.ConvTranspose2d(2, 3, 3, stride=2)), lambda: real(1, 2, 4, 4)),
    "lstm": (lambda: Model(lambda m, x: m.r(x)[0], r=nn.LSTM(4, 5, batch_first=True)), lambda: real(2, 5, 4)),
    "embedding-attention": (
        lambda: Model(lambda m, x: m.a(*[m.e(x)] * 3, need_weights=False)[0], e=nn.Embedding(10, 8),
                      a=nn.MultiheadAttention(8, 2, batch_first=True)),
        lambda: samba.randint(10, (2, 5), name="x")),
    "group-norm": (lambda: Model(lambda m, x: m.g(x).relu(), g=nn.GroupNorm(2, 4)), lambda: real(2, 4, 6)),
    "chunk-cat": (
        lambda: Model(lambda m, x: torch.cat([a * b for a, b in zip(*[m.l(x).chunk(2, -1)] * 2, strict=True)], -1),
                      l=nn.Linear(6, 6)), lambda: real(2, 6)),
    "causal-softmax": (
        lambda: Model(lambda m, x: m.l(x).masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf")).softmax(-1),
                      l=nn.Linear(4, 4)), lambda: real(4, 4)),
    "einsum-topk": (
        lambda: Model(lambda m, x: torch.einsum("bi,ij->bj", x, m.w).topk(2, -1)[0], w=nn.Parameter(torch.randn(4, 4))),
        lambda: real(4, 4)),
    "tied-module": (tied, lambda: real(2, 4)),
    "tied-weights": (tied_weights, lambda: real(2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_torchs(case: str, mode: str, tmp_path: Path) -> None:
    make, inputs = CASES[case]
    net = make()
    reference = copy.deepcopy(net)
    loaded = load_model(
        net, inputs(), tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode, precision="f32"
    )
    (out,) = loaded.run()
    gold = reference(loaded.inputs.data)
    gold.backward(torch.ones_like(gold))
    assert torch.allclose(out.data, gold, atol=1e-5)
    for ours, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        assert theirs.grad is not None
        assert torch.allclose(ours.sn_grad, theirs.grad, atol=1e-4)


@pytest.mark.parametrize("function", [F.dropout, F.dropout2d], ids=["dropout", "dropout2d"])
@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_backward_uses_the_mask_of_forward(mode: str, function: Any, tmp_path: Path) -> None:
    net = Model(lambda m, x: function(m.w * x, 0.4, m.training), w=nn.Parameter(torch.ones(2, 8, 4, 4)))
    x = samba.from_torch_tensor(torch.ones(2, 8, 4, 4), name="x")
    loaded = load_model(net, x, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode, precision="f32")
    (out,) = loaded.run()
    first = out.data
    assert 0 < int((first == 0).sum()) < first.numel()
    assert torch.equal(net.w.sn_grad, first)  # out = w * mask with w = 1, so its gradient is the mask
    if function is F.dropout2d:
        assert torch.equal(first, first[..., :1, :1].expand_as(first))
    (again,) = loaded.run()
    assert not torch.equal(again.data, first)


def test_dropout_does_nothing_in_a_model_that_evaluates(tmp_path: Path) -> None:
    net = Model(lambda m, x: m.d(x), d=nn.Dropout(0.9)).eval()
    (out,) = load_model(net, x := real(3, 3), tmp_path, precision="f32").run()
    assert torch.equal(out.data, x.data)

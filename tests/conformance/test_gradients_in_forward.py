"""``torch.autograd.grad`` inside forward, through layers: gradients are values, and are differentiated again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.nn import functional as F

from rdukit.errors import UnsupportedOperator
from sambaflow import samba
from support import shows
from support.programs import compare_step, compile_model

pytestmark = shows("pytorch")


class Differentiates(nn.Module):
    """``rest(self, x)`` with layers of every kind."""

    def __init__(self, rest: Any) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(6, 6), nn.Linear(6, 1)
        self.norm, self.batch_norm = nn.LayerNorm(6), nn.BatchNorm1d(6)
        self.conv = nn.Conv1d(2, 3, 3)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.rest = rest

    def forward(self, x: Any) -> Any:
        return self.rest(self, x)


def residual(m: Any, x: Any) -> Any:
    u = m.head(torch.tanh(m.linear(x)))
    first = grad(u.sum(), x, create_graph=True)[0]
    second = grad(first[:, 0].sum(), x, create_graph=True)[0]
    return (second[:, 0] + u[:, 0]).pow(2)


def without_graph(m: Any, x: Any) -> Any:
    return grad(m.linear(x).sin().sum(), x)[0] + m.linear(x)


def penalty(m: Any, x: Any) -> Any:
    slope = grad(m.head(F.relu(m.linear(x))).sum(), x, create_graph=True)[0]
    return (slope.norm(dim=1) - 1) ** 2


def of_parameters(m: Any, x: Any) -> Any:
    weight, bias = grad(m.linear(x).sin().sum(), list(m.linear.parameters()), create_graph=True)
    return x @ weight + bias


def of_three_axes(m: Any, x: Any) -> Any:
    h = x.reshape(2, 2, 6)
    return grad(m.linear(h).sigmoid().sum(), h, create_graph=True)[0]


def through_norm(m: Any, x: Any) -> Any:
    return grad(m.head(m.norm(F.gelu(m.linear(x)))).sum(), x, create_graph=True)[0]


def through_convolution(m: Any, x: Any) -> Any:
    return grad(m.conv(x.reshape(2, 2, 6)).tanh().sum(), x, create_graph=True)[0]


def through_attention(m: Any, x: Any) -> Any:
    return grad(m.attention(x[None], x[None], x[None])[0].sum(), x, create_graph=True)[0]


def of_a_loss(m: Any, x: Any) -> Any:
    loss = F.cross_entropy(m.linear(x), torch.tensor([0, 1, 2, 3]))
    return loss, grad(loss, x, create_graph=True)[0].sign() * 0.1 + x


def of_each_row(m: Any, x: Any) -> Any:
    return torch.vmap(torch.func.hessian(lambda row: m.linear(row).sin().sum()))(x)


def of_a_leaf(m: Any, x: Any) -> Any:
    leaf = x.detach().requires_grad_(True)
    return grad(m.linear(leaf).sin().sum(), leaf, create_graph=True)[0]


def beside_statistics(m: Any, x: Any) -> Any:
    return m.batch_norm(m.linear(x)), grad(m.head(x).sin().sum(), x, create_graph=True)[0]


# torch scripts its decompositions for forward mode when they are first used
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    "rest",
    [residual, without_graph, penalty, of_parameters, of_three_axes, through_norm, through_convolution,
     through_attention, of_a_loss, of_each_row, of_a_leaf, beside_statistics],
)  # fmt: skip
def test_gradients_of_layers_are_compiled(rest: Any, tmp_path: Path) -> None:
    x = samba.randn(4, 6, name="x", batch_dim=0)
    x.requires_grad_(True)
    compare_step(Differentiates(rest), (x,), tmp_path, tolerance=1e-4)


def through_statistics(m: Any, x: Any) -> Any:
    return grad(m.batch_norm(m.linear(x)).sin().sum(), x, create_graph=True)[0]


def backward(m: Any, x: Any) -> Any:
    m.linear(x).sum().backward()
    return m.linear(x)


def through_norm_without_weights(m: Any, x: Any) -> Any:
    return grad(F.layer_norm(m.linear(x), (6,)).sin().sum(), x, create_graph=True)[0]


class Doubles(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


def mapped_function(m: Any, x: Any) -> Any:
    return torch.vmap(Doubles.apply)(m.linear(x))


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (through_statistics, "autograd keeps it for a gradient"),
        (backward, r"calls backward\(\).*torch.autograd.grad"),
        (through_norm_without_weights, "native_layer_norm_backward is None"),
        (mapped_function, "'Doubles' inside a transformation of torch.func"),
    ],
)
def test_what_is_not_compiled_is_refused_by_name(rest: Any, words: str, tmp_path: Path) -> None:
    x = samba.randn(4, 6, name="x", batch_dim=0)
    x.requires_grad_(True)
    with pytest.raises(UnsupportedOperator, match=words):
        compile_model(Differentiates(rest), (x,), None, tmp_path)

"""Parameters that forward freezes, and hooks on saved tensors: as in eager torch, or refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from rdukit.errors import TraceError, UnsupportedOperator
from sambaflow import samba
from support import shows
from support.programs import compare_step, compile_model

pytestmark = shows("pytorch", "o0", "o3")


class Computes(nn.Module):
    """``rest(self, x)``, with a linear layer and an embedding-like parameter."""

    def __init__(self, rest: Any) -> None:
        super().__init__()
        self.l = nn.Linear(6, 6)
        self.w = nn.Parameter(torch.linspace(-1, 1, 6))
        self.rest = rest

    def forward(self, x: Any) -> Any:
        return self.rest(self, x)


def frozen_call(m: Any, x: Any) -> Any:
    m.l.requires_grad_(False)
    y = m.l(x)
    m.l.requires_grad_(True)
    return y.sum() + m.l.bias.sum() * 2 + m.w.sum()


def frozen_second_call(m: Any, x: Any) -> Any:
    y = m.l(x).tanh()
    for parameter in m.l.parameters():
        parameter.requires_grad = False
    z = m.l(y)
    for parameter in m.l.parameters():
        parameter.requires_grad = True
    return y * z, m.l(x)


def frozen_from_the_start(m: Any, x: Any) -> Any:
    m.l.requires_grad_(False)
    return m.l(x) * m.w


def asked(m: Any, x: Any) -> Any:
    m.w.requires_grad_(False)
    scale = 2.0 if m.w.requires_grad or (m.w * 1).requires_grad else 3.0
    m.w.requires_grad_(True)
    return m.l(x) * m.w * (scale if m.w.requires_grad else 5.0)


def frozen_twice(m: Any, x: Any) -> Any:
    made = []
    for _ in range(2):
        m.w.requires_grad_(False)
        made.append(x * m.w)
        m.w.requires_grad_()
        made.append(m.w * m.l(x))
    return torch.cat(made)


def moved_to_the_host(m: Any, x: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return m.l(x) ** 2


def checkpointed(m: Any, x: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(lambda v: m.l(v).tanh() * m.w, x, use_reentrant=False)


def kept_as_they_are(m: Any, x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return m.l(x) ** 2 * m.w


@pytest.mark.parametrize(
    "rest",
    [
        frozen_call,
        frozen_second_call,
        frozen_from_the_start,
        asked,
        frozen_twice,
        moved_to_the_host,
        checkpointed,
        kept_as_they_are,
    ],
)
@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_gradients_are_those_of_eager_torch(rest: Any, mode: str, tmp_path: Path) -> None:
    x = samba.randn(4, 6, name="x", batch_dim=0)
    x.requires_grad_(True)
    compare_step(Computes(rest), (x,), tmp_path, optim_level=mode, tolerance=1e-4)


def frozen_for_good(m: Any, x: Any) -> Any:
    y = m.l(x)
    m.l.requires_grad_(False)
    return y


def frozen_value(m: Any, x: Any) -> Any:
    y = m.l(x)
    y.requires_grad_(False)
    return y


def doubled(m: Any, x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return m.l(x) ** 2


def doubled_if_large(m: Any, x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2 if t.numel() > 20 else t, lambda t: t):
        return m.l(x) ** 2


@pytest.mark.parametrize(
    ("rest", "kind", "words"),
    [
        (frozen_for_good, TraceError, "freezes parameter 'l.weight' after its use"),
        (frozen_value, TraceError, "leaf variables"),
        (doubled, UnsupportedOperator, "saved_tensors_hooks with 'doubled.*' and .*save_on_cpu"),
        (doubled_if_large, UnsupportedOperator, "saved_tensors_hooks"),
    ],
)
def test_what_a_graph_cannot_say_is_refused(rest: Any, kind: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=words):
        compile_model(Computes(rest), (samba.randn(4, 6, name="x", batch_dim=0),), None, tmp_path)


def test_a_frozen_parameter_is_trained_only_if_it_was_to_be_at_compile(tmp_path: Path) -> None:
    model = Computes(lambda m, x: m.l.requires_grad_(True)(x))
    model.l.requires_grad_(False)
    with pytest.raises(UnsupportedOperator, match=r"unfreezes parameter '.*l__weight', which was frozen"):
        compile_model(model, (samba.randn(4, 6, name="x", batch_dim=0),), None, tmp_path)

"""Shapes that depend on data: refused with what to write instead, and that works."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rdukit.errors import TraceError
from sambaflow import samba
from support import shows
from support.programs import compare_step, compile_model

pytestmark = shows("pytorch")


class Program(nn.Module):
    """``function(module, layer(x), x)``."""

    def __init__(self, function: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.layer, self.expert = nn.Linear(6, 6), nn.Linear(6, 6)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, self.layer(x), x)


def routed(net: Any, y: Any, x: Any) -> Any:
    """A mixture of experts by hand: each takes the rows that chose it."""
    made = torch.zeros_like(y)
    for number in range(2):
        (rows,) = torch.where(x[:, :2].argmax(1) == number)
        made.index_add_(0, rows, net.expert(y[rows]))
    return made


def written(net: Any, y: Any, x: Any) -> Any:
    y[x > 0] = y[x > 0] * 2
    return y


#: What cannot be compiled → what the error says to write, the same written so.
CASES: dict[str, tuple[Callable[[Any, Any, Any], Any], str, Callable[[Any, Any, Any], Any]]] = {
    "chosen": (
        lambda net, y, x: y[x > 0].mean(), r"torch\.where\(mask, x, 0\)",
        lambda net, y, x: torch.where(x > 0, y, 0).sum() / (x > 0).sum(),
    ),
    "selected": (
        lambda net, y, x: torch.masked_select(y, x > 0).sum(), r"torch\.where",
        lambda net, y, x: torch.where(x > 0, y, 0).sum(),
    ),
    "written": (written, r"torch\.where\(mask, f\(x\), x\)", lambda net, y, x: torch.where(x > 0, y * 2, y)),
    "positions": (
        lambda net, y, x: y[(x[:, 0] > 0).nonzero().squeeze(1)].sum(), r"nonzero_static",
        lambda net, y, x: (y * (x[:, :1] > 0)).sum(),
    ),
    "labels": (
        lambda net, y, x: F.cross_entropy(y[x[:, 0] > 0], torch.arange(4)[x[:, 0] > 0]), "ignore_index",
        lambda net, y, x: F.cross_entropy(y, torch.where(x[:, 0] > 0, torch.arange(4), -100)),
    ),
    "experts": (
        routed, "weight them by the mask",
        lambda net, y, x: sum(net.expert(y) * (x[:, :2].argmax(1) == n)[:, None] for n in range(2)),
    ),
    "different": (
        lambda net, y, x: torch.unique(x[:, :2].argmax(1)).sum() + y.sum(), "unique",
        lambda net, y, x: (F.one_hot(x[:, :2].argmax(1), 2).amax(0) * torch.arange(2)).sum() + y.sum(),
    ),
    "counted": (
        lambda net, y, x: torch.bincount(x.argmax(1), minlength=6) * y, r"F\.one_hot\(x, num_classes\)\.sum\(0\)",
        lambda net, y, x: F.one_hot(x.argmax(1), 6).sum(0) * y,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("host_fallback", [False, True])
def test_the_error_says_what_to_write(case: str, host_fallback: bool, tmp_path: Path) -> None:
    function, words, _ = CASES[case]
    with pytest.raises(TraceError, match=f"depends on data.*even with --host-fallback.*{words}"):
        compile_model(Program(function), samba.randn(4, 6, name="x"), None, tmp_path, host_fallback=host_fallback)


@pytest.mark.parametrize("case", CASES)
def test_what_the_error_says_is_the_same(case: str, tmp_path: Path) -> None:
    function, _, instead = CASES[case]
    model, x = Program(instead), samba.randn(4, 6, name="x")
    reference = Program(function)
    reference.load_state_dict({name: p.detach().clone() for name, p in model.state_dict().items()})
    compare_step(model, x, tmp_path, reference=reference)

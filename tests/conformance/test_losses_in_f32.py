"""Every loss of ``torch.nn.functional``, in each reduction, and losses by hand: f32 losses of bf16 logits."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sambaflow import samba
from support import shows
from support.programs import load_model

pytestmark = shows("precision", "o0", "o1", "o3")

ROWS, CLASSES = 6, 8
#: f32 sums of a few dozen numbers, in another order than torch's
F32 = 2e-5
LABELS = torch.arange(ROWS) % CLASSES
SIGNS = torch.tensor([1.0, -1, 1, 1, -1, -1])
SEVERAL = torch.tensor([[3, 0, -1, 1, 1, 1, 1, 1]] * ROWS)

Loss = Callable[[Any, Any, str], Any]


def kl_div(x: Any, b: Any, r: str) -> Any:
    return F.kl_div(x.log_softmax(1), b.softmax(1), reduction=r)


#: Function → calls of (logits [ROWS, CLASSES], targets as large, that bf16 does not have, reduction).
LOSSES: dict[str, list[Loss]] = {
    "binary_cross_entropy": [lambda x, b, r: F.binary_cross_entropy(x.sigmoid(), b.sigmoid(), reduction=r)],
    "binary_cross_entropy_with_logits": [
        lambda x, b, r: F.binary_cross_entropy_with_logits(x, b.sigmoid(), reduction=r),
        lambda x, b, r: F.binary_cross_entropy_with_logits(
            x / 3, b.sigmoid(), b.exp(), reduction=r, pos_weight=b[0].exp()
        ),
    ],
    "cosine_embedding_loss": [lambda x, b, r: F.cosine_embedding_loss(x, b, SIGNS, 0.3, reduction=r)],
    "cross_entropy": [
        lambda x, b, r: F.cross_entropy(x, LABELS, reduction=r),
        lambda x, b, r: F.cross_entropy(x * 1.7 + b, LABELS, b[0].exp(), label_smoothing=0.1, reduction=r),
        lambda x, b, r: F.cross_entropy(x, b.softmax(1), reduction=r),
    ],
    "ctc_loss": [
        lambda x, b, r: F.ctc_loss(x.log_softmax(1)[:, None], torch.tensor([[1, 2]]), (6,), (2,), reduction=r)
    ],
    "gaussian_nll_loss": [
        lambda x, b, r: F.gaussian_nll_loss(x, b, F.softplus(x) + 0.1, reduction=r),
        lambda x, b, r: F.gaussian_nll_loss(x, b, 0.7, full=True, reduction=r),
        lambda x, b, r: F.gaussian_nll_loss(b, x, b.exp(), reduction=r),
    ],
    "hinge_embedding_loss": [lambda x, b, r: F.hinge_embedding_loss((x - b).abs(), SIGNS[:, None], reduction=r)],
    "huber_loss": [
        lambda x, b, r: F.huber_loss(x, b, reduction=r),
        lambda x, b, r: F.huber_loss(x, b, reduction=r, weight=b.exp()),
    ],
    "kl_div": [kl_div, lambda x, b, r: F.kl_div(x.log_softmax(1), b.log_softmax(1), reduction=r, log_target=True)],
    "l1_loss": [lambda x, b, r: F.l1_loss(x, b, reduction=r), lambda x, b, r: F.l1_loss(x.exp(), b, reduction=r)],
    "linear_cross_entropy": [lambda x, b, r: F.linear_cross_entropy(x, torch.eye(CLASSES), LABELS, reduction=r)],
    "margin_ranking_loss": [lambda x, b, r: F.margin_ranking_loss(x[:, 0], b[:, 0], SIGNS, 0.2, reduction=r)],
    "mse_loss": [
        lambda x, b, r: F.mse_loss(x, b, reduction=r),
        lambda x, b, r: F.mse_loss(x, b, reduction=r, weight=b.exp()),
        lambda x, b, r: F.mse_loss(x.sigmoid(), b.sigmoid(), reduction=r),
    ],
    "multi_margin_loss": [lambda x, b, r: F.multi_margin_loss(x, LABELS, p=2, weight=b[0].exp(), reduction=r)],
    "multilabel_margin_loss": [lambda x, b, r: F.multilabel_margin_loss(x, SEVERAL, reduction=r)],
    "multilabel_soft_margin_loss": [
        lambda x, b, r: F.multilabel_soft_margin_loss(x, (b > 0).float(), reduction=r),
        lambda x, b, r: F.multilabel_soft_margin_loss(x, b.sigmoid(), b[0].exp(), reduction=r),
    ],
    "nll_loss": [lambda x, b, r: F.nll_loss(x.log_softmax(1), LABELS, b[0].exp(), reduction=r)],
    "poisson_nll_loss": [
        lambda x, b, r: F.poisson_nll_loss(x, b.exp(), full=True, reduction=r),
        lambda x, b, r: F.poisson_nll_loss(x.exp(), b.exp(), log_input=False, reduction=r),
    ],
    "smooth_l1_loss": [
        lambda x, b, r: F.smooth_l1_loss(x, b, reduction=r, beta=0.3),
        lambda x, b, r: F.smooth_l1_loss(x, b, reduction=r, beta=0.0),
    ],
    "soft_margin_loss": [lambda x, b, r: F.soft_margin_loss(x, b.sign(), reduction=r)],
    "triplet_margin_loss": [
        lambda x, b, r: F.triplet_margin_loss(x, b, b.flip(0), swap=True, reduction=r),
        lambda x, b, r: F.triplet_margin_loss(F.normalize(x), F.normalize(b), F.normalize(b.flip(0)), reduction=r),
    ],
    "triplet_margin_with_distance_loss": [
        lambda x, b, r: F.triplet_margin_with_distance_loss(x, b, b.flip(0), swap=True, reduction=r),
        lambda x, b, r: F.triplet_margin_with_distance_loss(
            x, b, b.flip(0), distance_function=lambda u, v: 1 - F.cosine_similarity(u, v), reduction=r
        ),
        lambda x, b, r: F.triplet_margin_with_distance_loss(
            x, b, b.flip(0), distance_function=lambda u, v: (u - v).square().sum(-1), reduction=r
        ),
    ],
}

BY_HAND: dict[str, Callable[[Any, Any], Any]] = {
    "squared-distance": lambda x, b: (x - b).pow(2).sum(1),
    "root-of-mean-squares": lambda x, b: ((x - b) ** 2).mean().sqrt(),
    "distances": F.pairwise_distance,
    "cosines": lambda x, b: 1 - F.cosine_similarity(x, b),
    "cosines-of-unit-rows": lambda x, b: (F.normalize(x) * F.normalize(b)).sum(1),
    "divergence-from-normal": lambda x, b: -0.5 * torch.sum(1 + x - b**2 - x.exp(), 1),
    "entropy": lambda x, b: -(x.softmax(1) * x.softmax(1).log()).sum(1),
    "entropy-of-log-chances": lambda x, b: -(x.log_softmax(1) * x.log_softmax(1).exp()).sum(-1).mean(),
    "divergence": lambda x, b: (b.softmax(1) * (b.log_softmax(1) - x.log_softmax(1))).sum(1),
    "focal": lambda x, b: ((1 - x.softmax(1).gather(1, LABELS[:, None])) ** 2
                           * -x.log_softmax(1).gather(1, LABELS[:, None])).mean(),
    "dice": lambda x, b: 1 - (2 * (x.sigmoid() * (b > 0)).sum(1) + 1) / (x.sigmoid().sum(1) + (b > 0).sum(1) + 1),
    "charbonnier": lambda x, b: torch.sqrt((x - b) ** 2 + 1e-6).mean(1),
    "log-cosh": lambda x, b: ((x - b) + F.softplus(-2.0 * (x - b)) - 0.6931472).mean(1),
    "quantile": lambda x, b: torch.maximum(0.9 * (b - x), -0.1 * (b - x)).mean(1),
    "normal": lambda x, b: (0.5 * ((b - x) / 0.7) ** 2 + 0.35667).sum(1),
    "masked-mean": lambda x, b: ((x - b).square() * (b > 0)).sum(1) / (b > 0).sum(1).clamp(min=1),
    "chosen-rows": lambda x, b: torch.where(SIGNS > 0, (x - b).square().sum(1), (x + b).abs().sum(1)),
    "infonce-of-cosines": lambda x, b: F.cross_entropy(
        F.cosine_similarity(x[:, None], b[None], dim=-1) / 0.07, torch.arange(ROWS), reduction="none"
    ),
    "scaled-logits": lambda x, b: F.cross_entropy(torch.tanh(x / 3) * 3, LABELS, reduction="none"),
    "policy": lambda x, b: -torch.min(
        (x.log_softmax(1) - b.log_softmax(1)).exp().gather(1, LABELS[:, None])[:, 0] * SIGNS,
        (x.log_softmax(1) - b.log_softmax(1)).exp().gather(1, LABELS[:, None])[:, 0].clamp(0.8, 1.2) * SIGNS,
    ).mean(),
    "weighted": lambda x, b: F.cross_entropy(x, LABELS) + 0.1 * x.square().mean() + 0.01 * (x - b).abs().sum(),
    "log-sums": lambda x, b: torch.logsumexp(x / 0.7, 1) - (x / 0.7).gather(1, LABELS[:, None])[:, 0],
}  # fmt: skip


class Losses(nn.Module):
    """``function(logits, targets)`` → (loss, …, logits) of logits that a layer makes in bf16."""

    def __init__(self, function: Callable[[Any, Any], list[Any]]) -> None:
        super().__init__()
        self.layer = nn.Linear(CLASSES, CLASSES)
        self.function = function

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> Any:
        logits = self.layer(x)
        return (*self.function(logits, targets), logits)


def check(function: Callable[[Any, Any], list[Any]], folder: Path, mode: str) -> None:
    torch.manual_seed(3)
    model, x, targets = Losses(function), torch.randn(ROWS, CLASSES), torch.randn(ROWS, CLASSES)
    sent = samba.from_torch_tensor(x, name="x"), samba.from_torch_tensor(targets, name="targets")
    loaded = load_model(model, sent, folder, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode)
    *losses, logits = (samba.to_torch(made) for made in loaded.run())
    for number, (ours, theirs) in enumerate(zip(losses, function(logits, targets), strict=True)):
        torch.testing.assert_close(
            ours, theirs, rtol=F32, atol=F32, msg=lambda text, number=number: f"loss {number}: {text}"
        )


def test_each_loss_of_torch_has_a_case() -> None:
    functions = {name for name, f in vars(F).items() if callable(f) and not name.startswith("_")}
    named = {name for name in functions if name.endswith(("_loss", "_entropy", "_with_logits", "_div"))}
    with_reduction = {
        name for name in functions
        if inspect.isfunction(vars(F)[name]) and "reduction" in inspect.signature(vars(F)[name]).parameters
    }  # fmt: skip
    assert named | with_reduction == set(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
def test_losses_of_torch_are_those_of_f32(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    ways = ["none", "mean", "sum", *(["batchmean"] if name == "kl_div" else [])]
    check(lambda x, b: [loss(x, b, way) for loss in LOSSES[name] for way in ways], tmp_path, "o3")


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_losses_by_hand_are_those_of_f32(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    check(lambda x, b: [loss(x, b) for loss in BY_HAND.values()], tmp_path, mode)


class RecurrentOnLoss(nn.Module):
    """A recurrent ``layer`` that reads the loss of each element, which is f32 although the parameters are bf16."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(CLASSES, CLASSES), layer

    def forward(self, x: torch.Tensor) -> Any:
        losses = F.smooth_l1_loss(self.first(x), x, reduction="none")
        made = self.layer(losses)
        while isinstance(made, tuple):
            made = made[0]
        return made


RECURRENT = {
    "RNN": lambda: nn.RNN(CLASSES, 3), "ReLU": lambda: nn.RNN(CLASSES, 3, nonlinearity="relu"),
    "GRU": lambda: nn.GRU(CLASSES, 3), "LSTM": lambda: nn.LSTM(CLASSES, 3), "RNNCell": lambda: nn.RNNCell(CLASSES, 3),
    "GRUCell": lambda: nn.GRUCell(CLASSES, 3), "LSTMCell": lambda: nn.LSTMCell(CLASSES, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_read_losses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    torch.manual_seed(4)
    model, x = RecurrentOnLoss(RECURRENT[name]()), torch.randn(ROWS, CLASSES)
    expected = model(x)
    loaded = load_model(model, (samba.from_torch_tensor(x, name="x"),), tmp_path, lambda p: samba.optim.SGD(p, lr=0.1))
    (made,) = (samba.to_torch(value) for value in loaded.run())
    torch.testing.assert_close(made.float(), expected.detach(), rtol=0.02, atol=0.02)

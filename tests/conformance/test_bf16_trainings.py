"""Random small trainings in bf16: ours are no farther from f32 than torch's own bf16 is.

Each seed is a model of one to five layers with one of a dozen losses. Compared are loss, output and every gradient,
with f32 and with torch's eager bf16, all on numbers that bf16 has. Left out are layers that choose, such as sorting
and max pooling: a rounding may choose another number. ``RDUKIT_TEST_TRAININGS`` is how many seeds, 140 for long.
"""

import copy
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sambaflow import samba
from support import first_short, shows
from support.programs import load_model

pytestmark = shows("precision", "o0", "o1", "o3")

BATCH, STEPS, WIDTH, WORDS = 4, 12, 16, 20
SEEDS = range(int(os.environ.get("RDUKIT_TEST_TRAININGS", "6")))
#: A rounding more than torch has, as where an intermediate value is handed from section to section, is 2^-9.
ROUNDING = 2e-3


class Apply(nn.Module):
    """A function as a layer: [B, T, D] → [B, T, D]."""

    def __init__(self, function: Callable[..., torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.parts)


class Attention(nn.Module):
    """Four heads, perhaps causal, perhaps with rotary positions."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.is_causal, self.turns = draw.random() < 0.5, draw.random() < 0.5
        self.register_buffer("inv_freq", torch.tensor([1.0, 0.125]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(BATCH, STEPS, 4, 4).transpose(1, 2) for part in self.all(x).chunk(3, -1))
        if self.turns:
            angles = torch.outer(torch.arange(STEPS).float(), self.inv_freq.float()).repeat(1, 2)
            cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
            q, k = (y * cosine + torch.cat([-y[..., 2:], y[..., :2]], -1) * sine for y in (q, k))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        mixed: torch.Tensor = self.out(made.transpose(1, 2).reshape(BATCH, STEPS, WIDTH))
        return mixed


class Gate(nn.Module):
    """Parameters with and without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.weight = nn.Parameter(torch.tensor(0.75)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype) * self.scale.exp()


def across(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    made: torch.Tensor = layer(x.transpose(1, 2))
    return made.transpose(1, 2)


def in_image(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    made: torch.Tensor = layer(x.view(BATCH, 4, STEPS, 4))
    return made.reshape(x.shape)


def running_mean(x: torch.Tensor) -> torch.Tensor:
    return (x.cumsum(1) / torch.arange(1, STEPS + 1)[:, None]).to(x.dtype)


LAYERS: list[Callable[[random.Random], nn.Module]] = [
    lambda draw: nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.7),
    lambda draw: nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)),
    lambda draw: nn.LayerNorm(WIDTH),
    lambda draw: nn.RMSNorm(WIDTH),
    lambda draw: Gate(),
    Attention,
    lambda draw: nn.PReLU(),
    lambda draw: Apply(across, nn.BatchNorm1d(WIDTH)),
    lambda draw: Apply(across, nn.GroupNorm(draw.choice([1, 4]), WIDTH)),
    lambda draw: Apply(across, nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=draw.choice([1, 2]))),
    lambda draw: Apply(in_image, nn.Conv2d(4, 4, 3, padding=1)),
    lambda draw: Apply(lambda x, rnn: rnn(x)[0], draw.choice([nn.GRU, nn.LSTM])(WIDTH, WIDTH, batch_first=True)),
    lambda draw: Apply(lambda x, gate: x * torch.sigmoid(gate(x.mean(1)))[:, None], nn.Linear(WIDTH, WIDTH)),
    lambda draw: Apply(lambda x, wide: F.glu(wide(x), -1), nn.Linear(WIDTH, 2 * WIDTH)),
    lambda draw: Apply(running_mean),
    lambda draw: Apply(lambda x: torch.softmax(x, -1) * 4),
    lambda draw: Apply(lambda x: torch.einsum("btd,bsd->bts", x, x).softmax(-1) @ x),
    lambda draw: Apply(lambda x: F.normalize(x, dim=-1) * 4),
    lambda draw: Apply(lambda x: x - x.mean(1, keepdim=True)),
    lambda draw: Apply(lambda x: x + x.std(-1, keepdim=True)),
    lambda draw: Apply(lambda x: F.avg_pool1d(x.transpose(1, 2), 3, 1, 1).transpose(1, 2)),
    lambda draw: Apply(lambda x: torch.logsumexp(torch.stack([x, x * 0.5]), 0)),
    lambda draw: Apply(draw.choice([torch.tanh, F.silu, F.softplus, F.gelu])),
]  # fmt: skip

LOSSES: list[Callable[..., torch.Tensor]] = [
    lambda x, labels, target: F.cross_entropy(x.flatten(0, 1), labels.flatten()),
    lambda x, labels, target: F.cross_entropy(x.flatten(0, 1), labels.flatten(), label_smoothing=0.1),
    lambda x, labels, target: F.cross_entropy(x.flatten(0, 1), labels.flatten(), reduction="none").mean(),
    lambda x, labels, target: -F.log_softmax(x, -1).gather(-1, labels[..., None]).mean(),
    lambda x, labels, target: F.mse_loss(x, target) + 0.1 * F.cross_entropy(x.flatten(0, 1), labels.flatten()),
    lambda x, labels, target: ((x - target) ** 2).mean(),
    lambda x, labels, target: F.smooth_l1_loss(x, target),
    lambda x, labels, target: F.binary_cross_entropy_with_logits(x, (target > 0).to(x.dtype)),
    lambda x, labels, target: F.kl_div(F.log_softmax(x, -1), F.softmax(target, -1), reduction="batchmean"),
    lambda x, labels, target: 1 - F.cosine_similarity(x, target, dim=-1).mean(),
    lambda x, labels, target: (x * target).sum(-1).abs().mean(),
]


class Model(nn.Module):
    """(x [B, T, D], words [B, T], labels [B, T], target [B, T, D]) → loss [], output [B, T, D]."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(draw.choice(LAYERS)(draw) for _ in range(draw.randint(1, 5)))
        self.is_residual = [draw.random() < 0.4 for _ in self.layers]
        self.loss = draw.choice(LOSSES)

    def forward(self, x: torch.Tensor, words: torch.Tensor, labels: torch.Tensor, target: torch.Tensor) -> Any:
        h = self.first(x) + self.words(words)
        for layer, is_residual in zip(self.layers, self.is_residual, strict=True):
            h = h + layer(h) if is_residual else layer(h)
        out = self.last(h)
        return self.loss(out, labels, target), out


def in_torch(model: Model, inputs: list[torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor | None]:
    """Loss, output and gradients, by name."""
    model = copy.deepcopy(model).to(dtype)
    loss, out = model(*(x.to(dtype) if x.is_floating_point() else x for x in inputs))
    loss.backward()
    return {"loss": loss.detach(), "out": out.detach(), **{name: p.grad for name, p in model.named_parameters()}}


def error(made: torch.Tensor, gold: torch.Tensor) -> float:
    """Root mean square of the difference, over that of ``gold``."""
    return ((made.double() - gold.double()).square().mean() / gold.double().square().mean()).sqrt().item()


@pytest.mark.parametrize("seed", first_short(sorted(SEEDS, reverse=True), 2))
def test_bf16_trainings_are_as_near_to_f32_as_torchs_own(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    model = Model(random.Random(seed))
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    x, target = (torch.randn(BATCH, STEPS, WIDTH).bfloat16().float() for _ in range(2))
    inputs = [x, torch.randint(WORDS, (BATCH, STEPS)), torch.randint(WIDTH, (BATCH, STEPS)), target]
    truth, theirs = in_torch(model, inputs, torch.float32), in_torch(model, inputs, torch.bfloat16)
    named = tuple(samba.from_torch_tensor(t, name=name) for t, name in zip(inputs, "xwlt", strict=True))
    mode = ("o3", "o0", "o1")[seed % 3]
    loaded = load_model(model, named, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode)
    loaded.outputs[1].sn_grad = torch.zeros(BATCH, STEPS, WIDTH)
    loss, out = (samba.to_torch(made) for made in loaded.run())
    ours = {"loss": loss, "out": out, **{name: p.sn_grad for name, p in model.named_parameters()}}
    errors = {}
    for name, gold in truth.items():
        made, other = ours[name], theirs[name]
        if gold is not None and gold.square().mean() > 1e-12:
            assert made is not None and other is not None
            errors[name] = error(made, gold), error(other, gold)
    usual = sorted(their for _, their in errors.values())[len(errors) // 2]
    # A figure of a few numbers scatters: torch's error in it may be small by chance, so that the usual one counts too.
    wrong = {name: (our, their) for name, (our, their) in errors.items() if our > 1.5 * max(their, usual) + ROUNDING}
    assert not wrong, str(model)

"""Under the f32 switch, 20 training steps give torch's losses and parameters, for the families of models.

All models are plain torch, with their loss inside; each step has a batch of its own. Differences are absolute, in
float32: 1e-5 is what the order of additions in another kernel may change over 20 steps at these sizes.
"""

import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sambaflow import samba
from support import shows
from support.programs import load_model
from support.tiers import first_short

pytestmark = shows("pytorch", "precision", "o0", "o1", "o3")

STEPS = 20
TOLERANCE = 1e-5


class Classifier(nn.Module):
    """``body`` [B, …] → [B, C], with cross entropy: (x, y [B]) → (loss [], logits [B, C])."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.body(x)
        return self.criterion(logits, y), logits


class Recurrent(nn.Module):
    """Two LSTMs, the first with an initial state that is trained: x [B, T, F], y [B, 1] → (loss, prediction)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(3, 6, batch_first=True)
        self.second = nn.LSTM(6, 5, batch_first=True)
        self.hidden, self.cell = nn.Parameter(torch.zeros(1, 1, 6)), nn.Parameter(torch.zeros(1, 1, 6))
        self.head = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch = x.shape[0]
        states = self.hidden.expand(1, batch, 6).contiguous(), self.cell.expand(1, batch, 6).contiguous()
        made, _ = self.first(x, states)
        _, (last, _) = self.second(made)
        prediction = self.head(last[0])
        return F.mse_loss(prediction, y), prediction


class CausalAttention(nn.Module):
    """GPT-2's: one projection for queries, keys and values; the mask is a buffer; attention written out."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("bias", torch.ones(length, length).tril().bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, L, D = x.shape
        parts = self.c_attn(x).split(D, dim=2)
        q, k, v = (part.view(B, L, self.heads, D // self.heads).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-1, -2) / (D // self.heads) ** 0.5
        scores = torch.where(self.bias, scores, torch.finfo(scores.dtype).min)
        made: torch.Tensor = self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, L, D))
        return made


class Gpt2Block(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalAttention(width, heads, length)
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Two blocks between a token embedding and a head that share one weight: ids [B, L], labels [B, L]."""

    def __init__(self, width: int = 16, heads: int = 4, length: int = 8, vocabulary: int = 24) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Gpt2Block(width, heads, length) for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class GroupedAttention(nn.Module):
    """Llama's: rotary positions, fewer heads of keys and values than of queries, fused attention."""

    def __init__(self, width: int, heads: int, groups: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        speeds = 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(length), speeds).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        return x * self.cos + torch.cat([-high, low], -1) * self.sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, L, D = x.shape
        q = self.rotate(self.q_proj(x).view(B, L, self.heads, self.size).transpose(1, 2))
        k, v = (p(x).view(B, L, self.groups, self.size).transpose(1, 2) for p in (self.k_proj, self.v_proj))
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (self.rotate(k), v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        made: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(B, L, D))
        return made


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, length: int) -> None:
        super().__init__()
        self.attn = GroupedAttention(width, heads, groups, length)
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Two blocks and an untied head: ids [B, L], labels [B, L]."""

    def __init__(self, width: int = 16, heads: int = 4, groups: int = 2, length: int = 8, vocabulary: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, groups, length) for _ in range(2))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def mlp() -> nn.Module:
    return Classifier(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))


def conv2d() -> nn.Module:
    return Classifier(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.LeakyReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip


def conv1d() -> nn.Module:
    return Classifier(
        nn.Conv1d(2, 4, 3, stride=2), nn.BatchNorm1d(4), nn.Tanh(), nn.Conv1d(4, 4, 2, dilation=2), nn.MaxPool1d(2),
        nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def conv3d() -> nn.Module:
    return Classifier(
        nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3), nn.ReLU(), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(3 * 8, 4)
    )


@dataclass(frozen=True)
class Case:
    """A model, its optimizer, and how to draw the two inputs of a step."""

    make: Callable[[], nn.Module]
    draw: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]
    optimizer: str
    modes: tuple[str, ...] = ("o0", "o1", "o3")


def images(*shape: int) -> Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]:
    return lambda g: (torch.randn(*shape, generator=g), torch.randint(4, shape[:1], generator=g))


def sequences(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4, 6, 3, generator=g)
    return x, x.sum((1, 2), keepdim=True)[:, 0] / 4


def tokens(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(24, (2, 9), generator=g)
    return ids[:, :-1], ids[:, 1:]


CASES = {
    "mlp": Case(mlp, images(8, 12), "sgd"),
    "conv2d": Case(conv2d, images(4, 1, 8, 8), "sgd"),
    "conv1d": Case(conv1d, images(4, 2, 15), "adamw", ("o0", "o3")),
    "conv3d": Case(conv3d, images(4, 1, 5, 5, 5), "sgd", ("o3",)),
    "lstm": Case(Recurrent, sequences, "adamw", ("o0", "o3")),
    "gpt2": Case(Gpt2, tokens, "adamw"),
    "llama": Case(Llama, tokens, "adamw"),
}


def our_optimizer(kind: str, parameters: Any) -> Any:
    if kind == "sgd":
        return samba.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)
    return samba.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1, betas=(0.9, 0.95))


def torch_optimizer(kind: str, parameters: Any) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)
    return torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1, betas=(0.9, 0.95))


def train_both(case: Case, folder: Path, **config: Any) -> tuple[list[float], list[float], nn.Module, nn.Module]:
    """Losses on the device and of torch over ``STEPS`` steps, and the two models afterwards."""
    net = case.make()
    reference = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(3)
    batches = [case.draw(generator) for _ in range(STEPS)]
    theirs = torch_optimizer(case.optimizer, reference.parameters())
    gold = []
    for x, y in batches:
        theirs.zero_grad()
        loss = reference(x, y)[0]
        loss.backward()
        theirs.step()
        gold.append(loss.item())
    named = [[samba.from_torch_tensor(t, name=n) for t, n in zip(b, "xy", strict=True)] for b in batches]
    loaded = load_model(net, tuple(named[0]), folder, lambda p: our_optimizer(case.optimizer, p), **config)
    losses = [samba.to_torch(loaded.run(input_tensors=inputs)[0]).item() for inputs in named]
    samba.session.to_cpu(net)
    return losses, gold, net, reference


def worst_difference(net: nn.Module, reference: nn.Module) -> tuple[float, str]:
    """Over all parameters and buffers: the largest difference and where it is."""
    ours, theirs = net.state_dict(), reference.state_dict()
    return max(
        ((samba.to_torch(ours[name]).double() - gold.double()).abs().max().item(), name)
        for name, gold in theirs.items()
    )


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, case in CASES.items() for mode in case.modes])
def test_twenty_training_steps_in_f32_equal_plain_torch(name: str, mode: str, tmp_path: Path) -> None:
    losses, gold, net, reference = train_both(CASES[name], tmp_path, optim_level=mode, precision="f32")
    assert losses == pytest.approx(gold, abs=TOLERANCE)
    difference, where = worst_difference(net, reference)
    assert difference < TOLERANCE, where
    assert max(losses) != min(losses)


class Strided(nn.Module):
    """Parameters whose gradients autograd gives as views: expanded, transposed, narrowed."""

    def __init__(self) -> None:
        super().__init__()
        self.summed, self.turned = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 3))
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.lin(x * self.turned.t())
        return self.summed.sum() + made.mul(y).sum(), made


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("mode", ["o0", "o3"])
def test_gradients_that_are_views_update_every_element(mode: str, optimizer: str, tmp_path: Path) -> None:
    def draw(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(3, 4, generator=g), torch.randn(3, 4, generator=g)

    case = Case(Strided, draw, optimizer)
    losses, gold, net, reference = train_both(case, tmp_path, optim_level=mode, precision="f32")
    assert losses == pytest.approx(gold, abs=TOLERANCE)
    assert worst_difference(net, reference)[0] < TOLERANCE


class Turned(nn.Module):
    """A transposed value crosses from one section into another that views it."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned = self.lin(x).transpose(1, 2)
        made = turned.contiguous().view(2, -1).tanh() + (turned @ turned.transpose(1, 2)).flatten(1)[:, :30] / 9
        return F.mse_loss(made, y), turned


@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_a_transposed_value_may_pass_from_one_section_to_another(mode: str, tmp_path: Path) -> None:
    def draw(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(2, 5, 6, generator=g), torch.randn(2, 30, generator=g)

    losses, gold, net, reference = train_both(Case(Turned, draw, "sgd"), tmp_path, optim_level=mode, precision="f32")
    assert losses == pytest.approx(gold, abs=TOLERANCE)
    assert worst_difference(net, reference)[0] < TOLERANCE


# -- bf16 --------------------------------------------------------------------------------------------------------------


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().float() if tensor.is_floating_point() else tensor


def gradient_errors(model: nn.Module, gold: dict[str, torch.Tensor]) -> list[float]:
    """Per parameter: the largest difference over the gold gradient's largest value."""
    found = {n: getattr(p, "sn_grad" if hasattr(p, "sn_grad") else "grad") for n, p in model.named_parameters()}
    return [float((found[n].float() - g).abs().max() / g.abs().max()) for n, g in gold.items()]


def logistic_regression() -> nn.Module:
    return Classifier(nn.Linear(196, 10))


BF16_CASES = {**CASES, "logreg": Case(logistic_regression, images(32, 196), "sgd")}


@pytest.mark.parametrize("name", first_short(["logreg", "mlp", "conv2d", "gpt2", "llama"], 2))
def test_bf16_gradients_are_as_near_to_f32_as_those_of_torchs_own_bf16(name: str, tmp_path: Path) -> None:
    case = BF16_CASES[name]
    net = case.make()
    for parameter in net.parameters():
        parameter.data.copy_(rounded(parameter.data))
    batch = tuple(rounded(t) for t in case.draw(torch.Generator().manual_seed(3)))
    exact, half = copy.deepcopy(net), copy.deepcopy(net).bfloat16()
    gold_loss = exact(*batch)[0]
    gold_loss.backward()
    half(*(t.bfloat16() if t.is_floating_point() else t for t in batch))[0].backward()
    # Gradients that are zero but for rounding, as of a bias before batch norm, have no relative error.
    gold = {n: p.grad for n, p in exact.named_parameters() if p.grad is not None and p.grad.abs().max() > 1e-5}
    inputs = tuple(samba.from_torch_tensor(t, name=n) for t, n in zip(batch, "xy", strict=True))
    loaded = load_model(net, inputs, tmp_path, lambda p: our_optimizer(case.optimizer, p))
    loss = samba.to_torch(loaded.run(section_types=["fwd", "bckwd"])[0])
    ours, theirs = gradient_errors(net, gold), gradient_errors(half, gold)
    # bf16 rounds at 2^-9 per operator; how that adds up over a model is torch's figure, and chance: a factor of 1.5.
    assert statistics.median(ours) < 1.5 * statistics.median(theirs)
    assert loss == pytest.approx(gold_loss.item(), rel=5e-3)  # logits and the loss: 2^-9 each, and a mean
    if name == "logreg":
        assert max(ours) < 3 * 2**-9  # logits, their gradient, and the weight's gradient are rounded: 2^-9 each


@pytest.mark.parametrize("name", CASES)
def test_losses_of_twenty_training_steps_in_bf16_stay_near_those_of_torch_in_f32(name: str, tmp_path: Path) -> None:
    losses, gold, _, _ = train_both(CASES[name], tmp_path, optim_level="o3")
    # bf16: logits and loss are rounded by 2^-9 each, and parameters drift apart; programs allow 3e-3 to 8.5e-2.
    assert max(abs(ours - theirs) for ours, theirs in zip(losses, gold, strict=True)) < 1.5e-2 * max(gold)


def test_a_bf16_loss_over_many_tokens_is_added_up_in_f32(tmp_path: Path) -> None:
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(x, y)

    x, y = rounded(torch.randn(512, 1000) * 2), torch.randint(1000, (512,))
    named = samba.from_torch_tensor(x, name="x"), samba.from_torch_tensor(y, name="y")
    (loss,) = load_model(Head(), named, tmp_path).run()
    assert samba.to_torch(loss).item() == pytest.approx(F.cross_entropy(x, y).item(), rel=1e-6)  # f32, not rounded

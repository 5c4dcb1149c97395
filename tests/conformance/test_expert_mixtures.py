"""Mixtures of experts: products of groups of rows whose sizes depend on data, by torch's operator."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sambaflow import samba
from support import first_short, shows
from support.programs import load_model

pytestmark = shows("operators", "o0", "o1", "o3", "native", "portable")

TOKENS, WIDTH, INNER, EXPERTS, CHOSEN = 10, 8, 6, 5, 2
#: f32: sums of 8 products, in another order.
TOLERANCE = 1e-5


class Mixture(nn.Module):
    """Tokens sorted by their expert, one grouped product for each of two layers: x [S, D] → [S, D].

    As libraries write it: ``histc`` counts each expert's tokens, the last of which nobody may have chosen.
    """

    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        shapes = ((EXPERTS, INNER, WIDTH), (EXPERTS, WIDTH, INNER)) if is_transposed else (
            (EXPERTS, WIDTH, INNER), (EXPERTS, INNER, WIDTH))  # fmt: skip
        self.up, self.down = (nn.Parameter(torch.randn(shape) / 3) for shape in shapes)
        self.is_transposed = is_transposed
        self.register_buffer("unwanted", torch.tensor([0.0, 0.0, 0.0, 0.0, -100.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, experts = (self.gate(x) + self.unwanted).softmax(-1).topk(CHOSEN)
        sorted_experts, order = experts.reshape(-1).sort()
        counts = torch.histc(sorted_experts.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        made = self.product(self.product(x[order // CHOSEN], self.up, ends).relu(), self.down, ends)
        made = made * weights.reshape(-1)[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0])
        return made[back].view(TOKENS, CHOSEN, WIDTH).sum(1)

    def product(self, x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        weights = weights.transpose(-2, -1) if self.is_transposed else weights
        made: torch.Tensor = F.grouped_mm(x, weights, offs=ends)
        return made


def reference(model: Mixture, x: torch.Tensor) -> torch.Tensor:
    """Each token by itself."""
    weights, experts = (model.gate(x) + model.unwanted).softmax(-1).topk(CHOSEN)
    up, down = (w.transpose(-2, -1) if model.is_transposed else w for w in (model.up, model.down))
    rows = [
        sum(weights[t, c] * ((x[t] @ up[experts[t, c]]).relu() @ down[experts[t, c]]) for c in range(CHOSEN))
        for t in range(TOKENS)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("mode", "kernels", "is_transposed"),
    [
        *((mode, "portable", is_transposed) for mode in ("o0", "o1", "o3") for is_transposed in (False, True)),
        *first_short([("o3", "native", False), ("o3", "native", True)]),
    ],
)
def test_a_mixture_of_experts_trains_as_one_token_at_a_time_would(
    mode: str, kernels: str, is_transposed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", kernels)
    net = Mixture(is_transposed)
    gold = copy.deepcopy(net)
    x = samba.randn(TOKENS, WIDTH, name="x")
    loaded = load_model(net, x, tmp_path, lambda p: samba.optim.SGD(p, lr=0.0), optim_level=mode, precision="f32")
    (out,) = loaded.run()
    expected = reference(gold, x.data)
    expected.backward(torch.ones_like(expected))
    assert torch.allclose(out.data, expected, atol=TOLERANCE)
    for ours, theirs in zip(net.parameters(), gold.parameters(), strict=True):
        assert theirs.grad is not None
        assert torch.allclose(ours.sn_grad, theirs.grad, atol=TOLERANCE)
    assert not net.up.sn_grad[EXPERTS - 1].any()  # the expert that nobody chose


def test_counts_into_fixed_bins_leave_out_what_lies_outside(tmp_path: Path) -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.histc(x, bins=4, min=-1, max=1)

    x = samba.from_torch_tensor(torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.49, 0.5, 1.0, 1.01]), name="x")
    (out,) = load_model(Counts(), x, tmp_path, precision="f32").run()
    assert out.data.tolist() == [1.0, 1.0, 2.0, 2.0]

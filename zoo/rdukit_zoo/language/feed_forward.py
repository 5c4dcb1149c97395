"""Feed-forward parts of the families of decoders: gated or not, and experts of which each token chooses some.

A static graph computes all experts for all tokens; the shares of those that a token did not choose are 0.

Axes: B batch, T tokens of a call, C width of the model, E experts, K experts of a token, J groups of experts.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from rdukit_zoo.language.family_sizes import ACTIVATIONS, FamilySizes


def build_feed_forward(sizes: FamilySizes, number: int) -> nn.Module:
    """Return the feed-forward part of a layer, [B, T, C] → [B, T, C]."""
    if not sizes.experts or not sizes.has(sizes.expert_layers, number):
        return ConfiguredFeedForward(sizes, sizes.feed_forward)
    if sizes.of.router == "sinks":
        return JoinedExperts(sizes)
    return ExpertFeedForward(sizes) if sizes.of.router == "shares" else GroupedExperts(sizes)


class ConfiguredFeedForward(nn.Module):
    """A gated feed-forward part, or one of two layers."""

    def __init__(self, sizes: FamilySizes, inner: int) -> None:
        super().__init__()
        self.is_gated, self.is_fused = sizes.of.is_gated, sizes.of.is_fused
        self.function, self.approximate = ACTIVATIONS[sizes.activation]
        has_bias = "feed_forward" in sizes.biased
        if self.is_fused:
            self.gate_up_proj = nn.Linear(sizes.width, 2 * inner, bias=has_bias)
        else:
            if self.is_gated:
                self.gate_proj = nn.Linear(sizes.width, inner, bias=has_bias)
            self.up_proj = nn.Linear(sizes.width, inner, bias=has_bias)
        self.down_proj = nn.Linear(inner, sizes.width, bias=has_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_fused:
            gate, up = self.gate_up_proj(x).chunk(2, -1)
            inner = self._activated(gate) * up
        elif self.is_gated:
            inner = self._activated(self.gate_proj(x)) * self.up_proj(x)
        else:
            inner = self._activated(self.up_proj(x))
        made: torch.Tensor = self.down_proj(inner)
        return made

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        if self.function == "gelu":
            return F.gelu(x, approximate=self.approximate)
        return F.silu(x) if self.function == "silu" else F.relu(x)


class ExpertFeedForward(nn.Module):
    """Feed-forward parts of which each token chooses K by a softmax, added up by their shares.

    A static graph computes all experts for all tokens; the shares of those that a token did not choose are 0.
    """

    def __init__(self, sizes: FamilySizes) -> None:
        super().__init__()
        self.chosen, self.normalizes = sizes.experts_per_token, sizes.normalizes_experts
        self.gate = nn.Linear(sizes.width, sizes.experts, bias=False)
        self.experts = nn.ModuleList(
            ConfiguredFeedForward(sizes, sizes.expert_feed_forward) for _ in range(sizes.experts)
        )

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        shares_BTK, chosen_BTK = F.softmax(self.gate(x_BTC), -1, dtype=torch.float32).topk(self.chosen, -1)
        if self.normalizes:
            shares_BTK = shares_BTK / shares_BTK.sum(-1, keepdim=True)
        shares_BTK = shares_BTK.to(x_BTC.dtype)
        made_BTC = torch.zeros_like(x_BTC)
        for number, expert in enumerate(self.experts):
            share_BT1 = (shares_BTK * (chosen_BTK == number)).sum(-1, keepdim=True)
            made_BTC = made_BTC + share_BT1 * expert(x_BTC)
        return made_BTC


class JoinedExperts(nn.Module):
    """Experts with biases, the weights of all in one tensor; the chosen ones share by a softmax over their scores.

    The gate is limited above and the layer that it multiplies to both sides. Source: gpt-oss' published model.
    """

    def __init__(self, sizes: FamilySizes) -> None:
        super().__init__()
        self.chosen, self.limit, self.gain = sizes.experts_per_token, sizes.gate_limit, sizes.gate_gain
        self.router = nn.Linear(sizes.width, sizes.experts)
        self.experts = JoinedWeights(sizes.experts, sizes.width, sizes.expert_feed_forward)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        scores_BTK, chosen_BTK = self.router(x_BTC).topk(self.chosen, -1)
        shares_BTK = F.softmax(scores_BTK, -1)
        experts, made_BTC = self.experts, torch.zeros_like(x_BTC)
        for number in range(len(experts.down_proj)):
            inner = x_BTC @ experts.gate_up_proj[number] + experts.gate_up_proj_bias[number]
            gate = inner[..., ::2].clamp(max=self.limit)
            up = inner[..., 1::2].clamp(-self.limit, self.limit)
            inner = (up + 1) * (gate * torch.sigmoid(gate * self.gain))
            share_BT1 = (shares_BTK * (chosen_BTK == number)).sum(-1, keepdim=True)
            made_BTC = made_BTC + share_BT1 * (inner @ experts.down_proj[number] + experts.down_proj_bias[number])
        return made_BTC


class JoinedWeights(nn.Module):
    """Weights of all experts as [E, inputs, outputs], gates and the layers that they multiply in turns."""

    def __init__(self, experts: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, width, 2 * inner))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(experts, 2 * inner))
        self.down_proj = nn.Parameter(torch.empty(experts, inner, width))
        self.down_proj_bias = nn.Parameter(torch.zeros(experts, width))
        for weight in (self.gate_up_proj, self.down_proj):
            nn.init.normal_(weight, std=0.02)


class GroupedRouter(nn.Module):
    """The share [B, T, E] that each token has of each expert: those of the best groups, of which it chooses K.

    By ``softmax`` a group is as good as its best expert. By ``sigmoid`` it is as good as its two best ones, and a bias
    counts for the choice, but not for the shares. Sources: DeepSeek-V2 (2024) and DeepSeek-V3 (2024).
    """

    def __init__(self, sizes: FamilySizes) -> None:
        super().__init__()
        self.chosen, self.scale = sizes.experts_per_token, sizes.expert_scale
        self.groups, self.chosen_groups = sizes.expert_groups, sizes.expert_groups_chosen
        self.normalizes, self.is_sigmoid = sizes.normalizes_experts, sizes.of.router == "sigmoid"
        self.weight = nn.Parameter(torch.empty(sizes.experts, sizes.width))
        nn.init.normal_(self.weight, std=0.02)
        if self.is_sigmoid:
            self.e_score_correction_bias: torch.Tensor
            self.register_buffer("e_score_correction_bias", torch.zeros(sizes.experts))

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        logits_BTE = F.linear(x_BTC.float(), self.weight.float())
        if self.is_sigmoid:
            scores_BTE = logits_BTE.sigmoid()
            rated_BTE = self._of_groups(scores_BTE + self.e_score_correction_bias, 2, -math.inf)
        else:
            scores_BTE = logits_BTE.softmax(-1)
            rated_BTE = self._of_groups(scores_BTE, 1, 0.0)
        shares_BTE = scores_BTE * _marked(rated_BTE.topk(self.chosen, -1).indices, scores_BTE.shape[-1])
        if self.normalizes:
            shares_BTE = shares_BTE / (shares_BTE.sum(-1, keepdim=True) + 1e-20)
        return (shares_BTE * self.scale).to(x_BTC.dtype)

    def _of_groups(self, rated_BTE: torch.Tensor, best: int, instead: float) -> torch.Tensor:
        """Return the ratings with ``instead`` for experts beyond the chosen groups."""
        if self.groups == self.chosen_groups:
            return rated_BTE
        each_BTJE = rated_BTE.view(*rated_BTE.shape[:-1], self.groups, -1)
        groups_BTJ = each_BTJE.topk(best, -1).values.sum(-1)
        is_chosen_BTJ = _marked(groups_BTJ.topk(self.chosen_groups, -1).indices, self.groups)
        kept = torch.where(is_chosen_BTJ.unsqueeze(-1), each_BTJE, torch.full_like(each_BTJE, instead))
        return kept.flatten(-2)


def _marked(chosen: torch.Tensor, count: int) -> torch.Tensor:
    """Return whether each of ``count`` numbers is among those of the last axis."""
    return (chosen.unsqueeze(-1) == torch.arange(count)).sum(-2) > 0


class GroupedExperts(nn.Module):
    """Experts that a grouped router chooses, and shared ones, which all tokens have."""

    def __init__(self, sizes: FamilySizes) -> None:
        super().__init__()
        inner = sizes.expert_feed_forward
        self.gate = GroupedRouter(sizes)
        self.experts = nn.ModuleList(ConfiguredFeedForward(sizes, inner) for _ in range(sizes.experts))
        self.shared_experts = ConfiguredFeedForward(sizes, inner * sizes.shared_experts)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        shares_BTE = self.gate(x_BTC)
        made_BTC: torch.Tensor = self.shared_experts(x_BTC)
        for number, expert in enumerate(self.experts):
            made_BTC = made_BTC + shares_BTE[..., number : number + 1] * expert(x_BTC)
        return made_BTC

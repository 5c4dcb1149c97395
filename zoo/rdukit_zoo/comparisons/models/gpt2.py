"""GPT-2 in plain torch, with the head tied to the word embedding. B batch, L length, D width.

Source: Radford and others, Language Models are Unsupervised Multitask Learners (2019); no dropout.
"""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """One layer: attention and a perceptron, each after a norm and added to what came in. [B, L, D] → same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        batch, length, width = x_BLD.shape
        parts = self.attention(self.norm_1(x_BLD)).split(width, dim=2)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed: torch.Tensor = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BLD = x_BLD + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        changed: torch.Tensor = self.down(functional.gelu(self.up(self.norm_2(x_BLD)), approximate="tanh"))
        return x_BLD + changed


class Gpt2(nn.Module):
    """(tokens [B, L], targets [B, L]) → mean cross entropy []; without targets logits [B, L, words].

    By default GPT-2 small, 124 million parameters.
    """

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50257, length: int = 1024
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(self, tokens_BL: torch.Tensor, targets_BL: torch.Tensor | None = None) -> torch.Tensor:
        x_BLD = self.words(tokens_BL) + self.places(torch.arange(tokens_BL.shape[1]))
        for layer in self.layers:
            x_BLD = layer(x_BLD)
        logits: torch.Tensor = self.head(self.norm(x_BLD))
        if targets_BL is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets_BL.flatten())

"""Attention of causal language models: a static cache of keys and values, rotary positions, masks with biases.

Axes: B batch, T tokens of a call, S positions of the cache, H heads, G heads of keys and values, D width of a head,
R width that is rotated.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn

from rdukit.errors import InvalidArgument

#: How the frequencies of rotary positions are stretched for texts longer than the first training's.
ROTARY_KINDS: Final = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RotaryScaling:
    """Stretching of rotary positions.

    ``linear`` divides each frequency by ``factor``. ``llama3`` divides those whose wavelength exceeds
    ``original_length / low_factor``, keeps those below ``original_length / high_factor`` and blends between.
    Source: Llama 3.1's published configuration.

    Raises:
        InvalidArgument: the kind does not exist, or a factor is not positive.
    """

    kind: str = "default"
    factor: float = 1.0
    low_factor: float = 1.0
    high_factor: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        if self.kind not in ROTARY_KINDS:
            raise InvalidArgument(f"rotary scaling {self.kind!r} is not legal; legal: {', '.join(ROTARY_KINDS)}")
        if self.factor <= 0 or not 0 < self.low_factor < self.high_factor:
            raise InvalidArgument("rotary factors must be positive, and low_factor below high_factor")

    def stretch(self, frequencies_R: torch.Tensor) -> torch.Tensor:
        """Return the frequencies [R/2], in radians per position, after stretching."""
        if self.kind == "default":
            return frequencies_R
        if self.kind == "linear":
            return frequencies_R / self.factor
        turns_R = self.original_length * frequencies_R / (2 * math.pi)
        kept_R = ((turns_R - self.low_factor) / (self.high_factor - self.low_factor)).clamp(0, 1)
        return frequencies_R * (kept_R + (1 - kept_R) / self.factor)


def rotary_tables(
    positions: int, width: int, base: float, scaling: RotaryScaling | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [S, R] of the rotary angles, over halves: element i and i + R/2 share an angle."""
    frequencies_R = 1.0 / base ** (torch.arange(0, width, 2).float() / width)
    frequencies_R = (scaling or RotaryScaling()).stretch(frequencies_R)
    angles_SR = torch.outer(torch.arange(positions).float(), frequencies_R).repeat(1, 2)
    return angles_SR.cos(), angles_SR.sin()


@dataclass(frozen=True, slots=True)
class Places:
    """Places of the tokens [B, T] of a call, each B a part of a text of its own, in caches of R texts.

    ``positions`` [B, T] are those in their texts, ``rows`` [B] the texts' rows of the caches [R + 1, G, S, D].
    ``slots`` [B * G * T] are the places that get the keys and values, of the caches taken as [(R + 1) * G * S, D].
    """

    positions: torch.Tensor
    rows: torch.Tensor
    slots: torch.Tensor

    @classmethod
    def find(
        cls, positions_BT: torch.Tensor, rows_B: torch.Tensor, targets_BT: torch.Tensor, groups: int, context: int
    ) -> "Places":
        """Find the slots of tokens that are written to the rows ``targets``; those that only fill the call go to R."""
        groups_G1 = torch.arange(groups).view(-1, 1)
        slots_BGT = (targets_BT[:, None] * groups + groups_G1) * context + positions_BT[:, None]
        return cls(positions_BT, rows_B, slots_BGT.flatten())


class RotaryPositions(nn.Module):
    """The rotary angles of a call's tokens; no parameters. Checkpoints hold the tables, a PEF has no data."""

    def __init__(self, positions: int, width: int, base: float, scaling: RotaryScaling | None = None) -> None:
        super().__init__()
        cosine_SR, sine_SR = rotary_tables(positions, width, base, scaling)
        self.cosine_SR: torch.Tensor
        self.sine_SR: torch.Tensor
        self.register_buffer("cosine_SR", cosine_SR)
        self.register_buffer("sine_SR", sine_SR)

    def forward(self, count: int, places: Places | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of the first ``count`` positions [T, R], or of those of ``places`` [B, 1, T, R]."""
        if places is None:
            return self.cosine_SR[:count], self.sine_SR[:count]
        return self._of(self.cosine_SR, places.positions), self._of(self.sine_SR, places.positions)

    def _of(self, table_SR: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        batch, count = positions_BT.shape
        return table_SR.index_select(0, positions_BT.flatten()).view(batch, 1, count, -1)


def rotate(x_BHTD: torch.Tensor, cosine_TR: torch.Tensor, sine_TR: torch.Tensor) -> torch.Tensor:
    """Apply the rotary embedding to the first R elements of each head; the others pass."""
    width = cosine_TR.shape[-1]
    turned, passed = x_BHTD[..., :width], x_BHTD[..., width:]
    first, second = turned.chunk(2, -1)
    turned = turned * cosine_TR + torch.cat([-second, first], -1) * sine_TR
    return turned if width == x_BHTD.shape[-1] else torch.cat([turned, passed], -1)


def alibi_slopes(heads: int) -> torch.Tensor:
    """Return the slope [H] of each head's linear bias: powers of 2^(-8/n) for n heads, odd ones beyond a power of 2.

    Source: Press et al., Train Short, Test Long (2022).
    """
    whole = 2 ** math.floor(math.log2(heads))
    exponents = [8 / whole * (i + 1) for i in range(whole)]
    exponents += [4 / whole * (2 * i + 1) for i in range(heads - whole)]
    return torch.tensor([2.0**-exponent for exponent in exponents])


def attention_mask(
    count: int, places: Places | None, positions: int, window: int = 0, slopes_H: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Return what a call's queries may see, or None where plain causal attention says it.

    Without ``places`` the call has the first ``count`` tokens of a text and sees those: [T, T]. With ``places`` each
    token sees the cache of its text up to itself: [B, 1, T, S]. ``window`` limits how many tokens back one sees,
    itself included; 0 for all. With ``slopes_H`` the mask is a bias [..., H, T, S] that grows with the key's position.
    """
    if places is None and not window and slopes_H is None:
        return None
    keys = torch.arange(count if places is None else positions)
    queries = torch.arange(count).view(-1, 1) if places is None else places.positions[:, None, :, None]
    seen = keys <= queries
    if window:
        seen = seen & (keys > queries - window)
    if slopes_H is None:
        return seen
    bias_HTS = slopes_H.view(-1, 1, 1) * keys.float()
    return torch.where(seen, bias_HTS, torch.full_like(bias_HTS, -math.inf))


class CachedAttention(nn.Module):
    """Scaled dot-product attention that keeps keys and values of as many ``texts`` in caches, if there are any.

    Query [B, H, T, D], keys and values [B, G, T, D] → [B, T, H * D]. H is a multiple of G. A call with ``Places``
    writes its own keys and values to the caches, in place, and attends to what they have of its texts then.
    """

    def __init__(self, heads: int, groups: int, head_width: int, positions: int, texts: int) -> None:
        super().__init__()
        self.heads, self.groups, self.positions, self.texts = heads, groups, positions, texts
        self.keys: torch.Tensor
        self.values: torch.Tensor
        if texts:
            shape = ((texts + 1) * groups * positions, head_width)
            self.register_buffer("keys", torch.zeros(shape), persistent=False)
            self.register_buffer("values", torch.zeros(shape), persistent=False)

    def forward(
        self, query_BHTD: torch.Tensor, key_BGTD: torch.Tensor, value_BGTD: torch.Tensor,
        places: Places | None, mask: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        batch, _, count, _ = query_BHTD.shape
        if places is not None:
            key_BGTD = self._kept(self.keys, key_BGTD, places)
            value_BGTD = self._kept(self.values, value_BGTD, places)
        attended = F.scaled_dot_product_attention(
            query_BHTD, self._shared(key_BGTD), self._shared(value_BGTD), attn_mask=mask, is_causal=mask is None
        )
        return attended.transpose(1, 2).reshape(batch, count, -1)

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy the texts of the rows ``source`` [1] to the rows ``target`` [1]."""
        span = self.groups * self.positions
        places = torch.arange(span)
        for cache in (self.keys, self.values):
            cache.index_copy_(0, target * span + places, cache.index_select(0, source * span + places))

    def _kept(self, cache: torch.Tensor, x_BGTD: torch.Tensor, places: Places) -> torch.Tensor:
        """Write ``x_BGTD`` into the cache, and return the cache's rows of the texts of the call: [B, G, S, D]."""
        cache.index_copy_(0, places.slots, x_BGTD.reshape(-1, cache.shape[1]))
        return cache.view(self.texts + 1, self.groups, self.positions, -1).index_select(0, places.rows)

    def _shared(self, x_BGSD: torch.Tensor) -> torch.Tensor:
        """Repeat each head of keys or values as often as query heads read it: [B, H, S, D]."""
        if self.groups == self.heads:
            return x_BGSD
        batch, groups, count, width = x_BGSD.shape
        repeated = x_BGSD[:, :, None].expand(batch, groups, self.heads // groups, count, width)
        return repeated.reshape(batch, self.heads, count, width)


class LayerList(nn.Module):
    """Holds layers under the name ``layer``, as Hugging Face's encoders do."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layer = nn.ModuleList(layers)


def split_heads(x_BTC: torch.Tensor, heads: int) -> torch.Tensor:
    """Return [B, heads, T, C / heads]."""
    batch, count, _ = x_BTC.shape
    return x_BTC.view(batch, count, heads, -1).transpose(1, 2)

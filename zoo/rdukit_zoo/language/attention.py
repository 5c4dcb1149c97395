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
ROTARY_KINDS: Final = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class RotaryScaling:
    """Stretching of rotary positions.

    - ``linear`` divides each frequency by ``factor``.
    - ``dynamic`` keeps all frequencies up to ``original_length`` tokens; longer contexts are refused, because their
      frequencies would change with each token.
    - ``llama3`` divides those whose wavelength exceeds ``original_length / low_factor``, keeps those below
      ``original_length / high_factor`` and blends between.
    - ``yarn`` does the same with a ramp over the elements; ``truncates`` rounds its ends to whole elements.
    - ``longrope`` divides each frequency by a number of its own: by those of ``short`` in contexts of up to
      ``original_length`` tokens, by those of ``long`` in longer ones. Both are numbers separated by commas.

    The last two multiply cosines and sines by ``attention_factor``; 0 derives it from ``factor``.
    Sources: Llama 3.1's published configuration; Peng et al., YaRN (2023); Ding et al., LongRoPE (2024).

    Raises:
        InvalidArgument: the kind does not exist, or a factor is not positive.
    """

    kind: str = "default"
    factor: float = 1.0
    low_factor: float = 1.0
    high_factor: float = 4.0
    original_length: int = 8192
    attention_factor: float = 0.0
    truncates: bool = True
    short: str = ""
    long: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ROTARY_KINDS:
            raise InvalidArgument(
                f"rotary scaling {self.kind!r} is not valid; expected one of {', '.join(ROTARY_KINDS)}"
            )
        if self.factor <= 0 or not 0 < self.low_factor < self.high_factor or self.original_length < 1:
            raise InvalidArgument(
                "rotary factors and the original length must be positive, and low_factor below high_factor"
            )

    def check_context(self, positions: int) -> None:
        """Refuse a context whose frequencies depend on the length of each text.

        Raises:
            InvalidArgument: the kind is ``dynamic`` and the context is longer than ``original_length``.
        """
        if self.kind == "dynamic" and positions > self.original_length:
            raise InvalidArgument(
                f"a context of {positions} tokens is too long for rotary scaling 'dynamic', which then depends on the "
                f"length of each text; expected at most {self.original_length} (rotary_original_length)"
            )

    def stretch(self, frequencies_R: torch.Tensor, base: float, positions: int) -> torch.Tensor:
        """Return the frequencies [R/2], in radians per position, after stretching for a context of ``positions``."""
        self.check_context(positions)
        if self.kind in {"default", "dynamic"}:
            return frequencies_R
        if self.kind == "linear":
            return frequencies_R / self.factor
        if self.kind == "longrope":
            return frequencies_R / self._divisors(len(frequencies_R), positions)
        kept_R = self._kept_of_turns(frequencies_R) if self.kind == "llama3" else self._kept_of_elements(
            len(frequencies_R), base
        )  # fmt: skip
        return frequencies_R * (kept_R + (1 - kept_R) / self.factor)

    def amplitude(self) -> float:
        """Return the factor of cosines and sines."""
        if self.attention_factor:
            return self.attention_factor
        if self.factor <= 1 or self.kind not in {"yarn", "longrope"}:
            return 1.0
        if self.kind == "yarn":
            return 0.1 * math.log(self.factor) + 1
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))

    def _kept_of_turns(self, frequencies_R: torch.Tensor) -> torch.Tensor:
        """Return the share of each frequency that stays, by its turns within the original length."""
        turns_R = self.original_length * frequencies_R / (2 * math.pi)
        return ((turns_R - self.low_factor) / (self.high_factor - self.low_factor)).clamp(0, 1)

    def _kept_of_elements(self, count: int, base: float) -> torch.Tensor:
        """Return the share of each frequency that stays, on a ramp between the elements with few and many turns."""
        first, last = (
            count * math.log(self.original_length / (turns * 2 * math.pi)) / math.log(base)
            for turns in (self.high_factor, self.low_factor)
        )
        if self.truncates:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * count - 1)
        last += 0.001 if first == last else 0
        return 1 - ((torch.arange(count).float() - first) / (last - first)).clamp(0, 1)

    def _divisors(self, count: int, positions: int) -> torch.Tensor:
        listed = self.short if positions <= self.original_length else self.long
        try:
            divisors = [float(number) for number in listed.split(",")]
        except ValueError:
            divisors = []
        if len(divisors) != count or min(divisors) <= 0:
            raise InvalidArgument(
                f"rotary scaling 'longrope' has the divisors {listed[:80]!r}; expected {count} positive numbers, "
                "separated by commas"
            )
        return torch.tensor(divisors)


def rotary_tables(
    positions: int, width: int, base: float, scaling: RotaryScaling | None = None, is_interleaved: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [S, R] of the rotary angles.

    Elements i and i + R/2 share an angle, or with ``is_interleaved`` the elements 2i and 2i + 1.
    """
    scaling = scaling or RotaryScaling()
    frequencies_R = 1.0 / base ** (torch.arange(0, width, 2).float() / width)
    frequencies_R = scaling.stretch(frequencies_R, base, positions)
    angles_SR = torch.outer(torch.arange(positions).float(), frequencies_R)
    angles_SR = angles_SR.repeat_interleave(2, 1) if is_interleaved else angles_SR.repeat(1, 2)
    cosine_SR, sine_SR, amplitude = angles_SR.cos(), angles_SR.sin(), scaling.amplitude()
    return (cosine_SR, sine_SR) if amplitude == 1 else (cosine_SR * amplitude, sine_SR * amplitude)


@dataclass(frozen=True, slots=True)
class Places:
    """Places of a call's tokens [B, T] in the caches of R texts; each row of B is a part of a different text.

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

    def __init__(
        self, positions: int, width: int, base: float, scaling: RotaryScaling | None = None,
        is_interleaved: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        cosine_SR, sine_SR = rotary_tables(positions, width, base, scaling, is_interleaved)
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


def rotate(
    x_BHTD: torch.Tensor, cosine_TR: torch.Tensor, sine_TR: torch.Tensor, is_interleaved: bool = False
) -> torch.Tensor:
    """Apply the rotary embedding to the first R elements of each head, laid out as the tables; the others pass."""
    width = cosine_TR.shape[-1]
    turned, passed = x_BHTD[..., :width], x_BHTD[..., width:]
    if is_interleaved:
        first, second = turned.reshape(*turned.shape[:-1], -1, 2).unbind(-1)
        crossed = torch.stack([-second, first], -1).flatten(-2)
    else:
        first, second = turned.chunk(2, -1)
        crossed = torch.cat([-second, first], -1)
    turned = turned * cosine_TR + crossed * sine_TR
    return turned if width == x_BHTD.shape[-1] else torch.cat([turned, passed], -1)


def alibi_slopes(heads: int) -> torch.Tensor:
    """Return the slope [H] of each head's linear bias: powers of 2^(-8/n) for n heads; heads beyond a power of 2 get
    odd powers.

    Source: Press et al., Train Short, Test Long (2022).
    """
    whole = 2 ** math.floor(math.log2(heads))
    exponents = [8 / whole * (i + 1) for i in range(whole)]
    exponents += [4 / whole * (2 * i + 1) for i in range(heads - whole)]
    return torch.tensor([2.0**-exponent for exponent in exponents])


def attention_mask(
    count: int, places: Places | None, positions: int, window: int = 0, slopes_H: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Return the mask of a call's queries, or None for plain causal attention.

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


@dataclass(frozen=True, slots=True)
class CallContext:
    """Rotary tables of a call, None where positions do not rotate, its places and the mask."""

    rotary: tuple[torch.Tensor, torch.Tensor] | None
    places: Places | None
    mask: torch.Tensor | None


class CachedAttention(nn.Module):
    """Scaled dot-product attention that keeps keys and values of as many ``texts`` in caches, if there are any.

    Query [B, H, T, D], keys and values [B, G, T, D] → [B, T, H * D]. H is a multiple of G. A call with ``Places``
    writes its keys and values to the caches in place, and then attends to its texts' cached positions.

    Products of queries and keys are multiplied by ``scale``, None for 1 / √D. With a ``cap`` they stay within ± cap:
    each is ``cap * tanh(product / cap)``. Sinks [H] take a share of each softmax as a key with a value of 0 would.
    """

    def __init__(
        self, heads: int, groups: int, head_width: int, positions: int, texts: int, scale: float | None = None,
        cap: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.groups, self.positions, self.texts = heads, groups, positions, texts
        self.scale, self.cap = scale, cap
        self.keys: torch.Tensor
        self.values: torch.Tensor
        if texts:
            shape = ((texts + 1) * groups * positions, head_width)
            self.register_buffer("keys", torch.zeros(shape), persistent=False)
            self.register_buffer("values", torch.zeros(shape), persistent=False)

    def forward(
        self, query_BHTD: torch.Tensor, key_BGTD: torch.Tensor, value_BGTD: torch.Tensor,
        places: Places | None, mask: torch.Tensor | None, sinks_H: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        if places is not None:
            key_BGTD = self._kept(self.keys, key_BGTD, places)
            value_BGTD = self._kept(self.values, value_BGTD, places)
        return self._attend(query_BHTD, key_BGTD, value_BGTD, mask, sinks_H)

    def write(self, key_BGTD: torch.Tensor, value_BGTD: torch.Tensor, places: Places) -> None:
        """Write keys and values to the caches."""
        self._write(self.keys, key_BGTD, places)
        self._write(self.values, value_BGTD, places)

    def attend_kept(self, query_BHTD: torch.Tensor, rows_B: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Attend to the cached positions of the rows' texts."""
        key_BGSD, value_BGSD = self._rows_of(self.keys, rows_B), self._rows_of(self.values, rows_B)
        return self._attend(query_BHTD, key_BGSD, value_BGSD, mask, None)

    def shares_kept(self, query_BHTD: torch.Tensor, rows_B: torch.Tensor, head: int) -> torch.Tensor:
        """Return the shares [B, 1, T, S] with which a head attends to what the caches have of the texts of the rows."""
        key_B1SD = self._shared(self._rows_of(self.keys, rows_B))[:, head : head + 1]
        scale = query_BHTD.shape[3] ** -0.5 if self.scale is None else self.scale
        shares_B1TS: torch.Tensor = (query_BHTD[:, head : head + 1] * scale @ key_B1SD.transpose(-1, -2)).softmax(-1)
        return shares_B1TS

    def _attend(
        self, query_BHTD: torch.Tensor, key_BGTD: torch.Tensor, value_BGTD: torch.Tensor, mask: torch.Tensor | None,
        sinks_H: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        batch, _, count, _ = query_BHTD.shape
        key_BHSD, value_BHSD = self._shared(key_BGTD), self._shared(value_BGTD)
        if self.cap or sinks_H is not None:
            attended = self._written_out(query_BHTD, key_BHSD, value_BHSD, mask, sinks_H)
        elif self.scale is None:
            attended = F.scaled_dot_product_attention(
                query_BHTD, key_BHSD, value_BHSD, attn_mask=mask, is_causal=mask is None
            )
        else:
            attended = F.scaled_dot_product_attention(
                query_BHTD, key_BHSD, value_BHSD, attn_mask=mask, is_causal=mask is None, scale=self.scale
            )
        return attended.transpose(1, 2).reshape(batch, count, -1)

    def _written_out(
        self, query_BHTD: torch.Tensor, key_BHSD: torch.Tensor, value_BHSD: torch.Tensor, mask: torch.Tensor | None,
        sinks_H: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        count, width = query_BHTD.shape[2:]
        scores_BHTS = query_BHTD @ key_BHSD.transpose(-1, -2) * (width**-0.5 if self.scale is None else self.scale)
        if self.cap:
            scores_BHTS = torch.tanh(scores_BHTS / self.cap) * self.cap
        if mask is None:
            mask = torch.arange(count) <= torch.arange(count).view(-1, 1)
        scores_BHTS = scores_BHTS.masked_fill(~mask, -math.inf)
        if sinks_H is None:
            attended: torch.Tensor = scores_BHTS.softmax(-1) @ value_BHSD
            return attended
        sinks_BHT1 = sinks_H.view(1, -1, 1, 1).expand(*scores_BHTS.shape[:-1], 1)
        shares_BHTS = torch.cat([scores_BHTS, sinks_BHT1], -1).softmax(-1)[..., :-1]
        return shares_BHTS @ value_BHSD

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy the texts of the rows ``source`` [1] to the rows ``target`` [1]."""
        span = self.groups * self.positions
        places = torch.arange(span)
        for cache in (self.keys, self.values):
            cache.index_copy_(0, target * span + places, cache.index_select(0, source * span + places))

    def _kept(self, cache: torch.Tensor, x_BGTD: torch.Tensor, places: Places) -> torch.Tensor:
        """Write ``x_BGTD`` into the cache, and return the cache's rows of the texts of the call: [B, G, S, D]."""
        self._write(cache, x_BGTD, places)
        return self._rows_of(cache, places.rows)

    def _write(self, cache: torch.Tensor, x_BGTD: torch.Tensor, places: Places) -> None:
        cache.index_copy_(0, places.slots, x_BGTD.reshape(-1, cache.shape[1]))

    def _rows_of(self, cache: torch.Tensor, rows_B: torch.Tensor) -> torch.Tensor:
        return cache.view(self.texts + 1, self.groups, self.positions, -1).index_select(0, rows_B)

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

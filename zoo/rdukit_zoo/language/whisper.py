"""Whisper: an encoder of log-mel spectrograms with two convolutions, and a decoder that attends to it.

Axes: B batch, M bands of a spectrogram, N its frames, S states of the encoder (N / 2), T tokens, H heads, D width of a
head, C width of the model, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

import sambaflow.samba as samba
from rdukit_zoo.language.attention import CachedAttention, Places, attention_mask, split_heads
from rdukit_zoo.language.decoder import init_normal
from rdukit_zoo.language.whisper_sizes import HUB_FORMAT, VARIANTS, WhisperSizes
from rdukit_zoo.registry import IGNORED, AudioSizes, SizeValue, TextServing, model

#: Ratio of the longest period of the encoder's positions to the shortest.
_LONGEST_PERIOD = 10_000


class WhisperAttention(nn.Module):
    """Attention of states [B, T, C] to themselves, or to the states of the encoder.

    Only keys have no bias. The caches hold ``kept`` tokens or states of each of ``texts`` texts.
    """

    def __init__(self, width: int, heads: int, kept: int, texts: int) -> None:
        super().__init__()
        self.heads = heads
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj, self.q_proj, self.out_proj = (nn.Linear(width, width) for _ in range(3))
        self.attention = CachedAttention(heads, heads, width // heads, kept, texts)

    def forward(
        self, x_BTC: torch.Tensor, source_BSC: torch.Tensor, mask: torch.Tensor | None, places: Places | None = None
    ) -> torch.Tensor:
        """Attend to ``source_BSC``; with ``places`` also to the texts' cached positions."""
        attended = self.attention(self._query(x_BTC), *self._keys_and_values(source_BSC), places, mask)
        mixed_BTC: torch.Tensor = self.out_proj(attended)
        return mixed_BTC

    def keep(self, source_BSC: torch.Tensor, places: Places) -> None:
        """Keep keys and values of the encoder's states."""
        self.attention.write(*self._keys_and_values(source_BSC), places)

    def attend_kept(self, x_BTC: torch.Tensor, rows_B: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Attend to the kept states of the rows."""
        mixed_BTC: torch.Tensor = self.out_proj(self.attention.attend_kept(self._query(x_BTC), rows_B, mask))
        return mixed_BTC

    def shares_kept(self, x_BTC: torch.Tensor, rows_B: torch.Tensor, heads: Sequence[int]) -> list[torch.Tensor]:
        """Return the shares [B, 1, T, S] with which each of ``heads`` attends to the kept states of the rows."""
        query_BHTD = self._query(x_BTC)
        return [self.attention.shares_kept(query_BHTD, rows_B, head) for head in heads]

    def _query(self, x_BTC: torch.Tensor) -> torch.Tensor:
        return split_heads(self.q_proj(x_BTC), self.heads)

    def _keys_and_values(self, source_BSC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return split_heads(self.k_proj(source_BSC), self.heads), split_heads(self.v_proj(source_BSC), self.heads)


class WhisperLayer(nn.Module):
    """Self-attention, in the decoder attention to the encoder's states, and feed-forward; a norm before each."""

    def __init__(self, sizes: WhisperSizes, is_decoder: bool, texts: int) -> None:
        super().__init__()
        heads, inner = (
            (sizes.decoder_heads, sizes.decoder_feed_forward) if is_decoder else (sizes.heads, sizes.feed_forward)
        )
        self.self_attn = WhisperAttention(sizes.width, heads, sizes.context_length, texts if is_decoder else 0)
        self.self_attn_layer_norm = nn.LayerNorm(sizes.width)
        if is_decoder:
            self.encoder_attn = WhisperAttention(sizes.width, heads, sizes.states, texts)
            self.encoder_attn_layer_norm = nn.LayerNorm(sizes.width)
        self.fc1, self.fc2 = nn.Linear(sizes.width, inner), nn.Linear(inner, sizes.width)
        self.final_layer_norm = nn.LayerNorm(sizes.width)

    def forward(
        self, x_BTC: torch.Tensor, mask: torch.Tensor | None, everything: torch.Tensor,
        states_BSC: torch.Tensor | None = None, places: Places | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return the layer's output states; a decoder's layer attends to ``states_BSC``, or to the rows' caches."""
        x_BTC = self._attend_self(x_BTC, mask, places)
        if states_BSC is not None:
            x_BTC = x_BTC + self.encoder_attn(self.encoder_attn_layer_norm(x_BTC), states_BSC, everything)
        elif places is not None:
            x_BTC = self._attend_kept(x_BTC, everything, places)
        return self._feed(x_BTC)

    def align(
        self, x_BTC: torch.Tensor, mask: torch.Tensor | None, everything: torch.Tensor, places: Places,
        heads: Sequence[int],
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:  # fmt: skip
        """Return the states behind a decoder's layer, and the shares [B, 1, T, S] of each of ``heads``."""
        x_BTC = self._attend_self(x_BTC, mask, places)
        shares = self.encoder_attn.shares_kept(self.encoder_attn_layer_norm(x_BTC), places.rows, heads)
        return self._feed(self._attend_kept(x_BTC, everything, places)), shares

    def _attend_self(self, x_BTC: torch.Tensor, mask: torch.Tensor | None, places: Places | None) -> torch.Tensor:
        read_BTC = self.self_attn_layer_norm(x_BTC)
        attended_BTC: torch.Tensor = x_BTC + self.self_attn(read_BTC, read_BTC, mask, places)
        return attended_BTC

    def _attend_kept(self, x_BTC: torch.Tensor, everything: torch.Tensor, places: Places) -> torch.Tensor:
        read_BTC = self.encoder_attn_layer_norm(x_BTC)
        return x_BTC + self.encoder_attn.attend_kept(read_BTC, places.rows, everything)

    def _feed(self, x_BTC: torch.Tensor) -> torch.Tensor:
        made_BTC: torch.Tensor = x_BTC + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x_BTC))))
        return made_BTC


class PositionTable(nn.Module):
    """Table [S, C] of sines and cosines, which files hold, too; it is not trained.

    Source: Vaswani et al., Attention Is All You Need (2017), with all sines first.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        steps = torch.arange(width // 2) * (math.log(_LONGEST_PERIOD) / max(width // 2 - 1, 1))
        angles_SF = torch.arange(count).view(-1, 1) * torch.exp(-steps)
        self.weight: torch.Tensor
        self.register_buffer("weight", torch.cat([angles_SF.sin(), angles_SF.cos()], 1))


class WhisperEncoder(nn.Module):
    """Spectrograms [B, M, N] → states [B, S, C]."""

    def __init__(self, sizes: WhisperSizes) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(sizes.mels, sizes.width, 3, padding=1)
        self.conv2 = nn.Conv1d(sizes.width, sizes.width, 3, stride=2, padding=1)
        self.embed_positions = PositionTable(sizes.states, sizes.width)
        self.layers = nn.ModuleList(WhisperLayer(sizes, False, 0) for _ in range(sizes.layers))
        self.layer_norm = nn.LayerNorm(sizes.width)

    def forward(self, features_BMN: torch.Tensor, everything: torch.Tensor) -> torch.Tensor:
        """Return the states; ``everything`` lets each of them see all."""
        x_BCS = F.gelu(self.conv2(F.gelu(self.conv1(features_BMN))))
        x_BSC = x_BCS.transpose(1, 2) + self.embed_positions.weight
        for layer in self.layers:
            x_BSC = layer(x_BSC, everything, everything)
        states_BSC: torch.Tensor = self.layer_norm(x_BSC)
        return states_BSC


class WhisperDecoder(nn.Module):
    """Tokens [B, T] → states [B, T, C]."""

    def __init__(self, sizes: WhisperSizes, texts: int) -> None:
        super().__init__()
        self.longest = sizes.context_length
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.embed_positions = nn.Embedding(sizes.positions, sizes.width)
        self.layers = nn.ModuleList(WhisperLayer(sizes, True, texts) for _ in range(sizes.decoder_layers))
        self.layer_norm = nn.LayerNorm(sizes.width)

    def forward(
        self, tokens: torch.Tensor, everything: torch.Tensor, states_BSC: torch.Tensor | None,
        places: Places | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return the states of tokens that attend to ``states_BSC``, or to their rows' caches."""
        x_BTC, mask = self._read(tokens, places)
        for layer in self.layers:
            x_BTC = layer(x_BTC, mask, everything, states_BSC, places)
        states_BTC: torch.Tensor = self.layer_norm(x_BTC)
        return states_BTC

    def align(
        self, tokens: torch.Tensor, everything: torch.Tensor, places: Places, heads: Sequence[tuple[int, int]]
    ) -> torch.Tensor:
        """Return the shares [A, T, S] with which heads (layer, head) attend to the states of the audio of one row."""
        x_BTC, mask = self._read(tokens, places)
        found: list[torch.Tensor] = []
        for number, layer in enumerate(self.layers):
            chosen = [head for other, head in heads if other == number]
            x_BTC, shares = cast(WhisperLayer, layer).align(x_BTC, mask, everything, places, chosen)
            found += shares
            if len(found) == len(heads):
                break
        return torch.cat(found, 1)[0]

    def _read(self, tokens: torch.Tensor, places: Places | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the states before the first layer, and what each token may see."""
        count = tokens.shape[1]
        positions = torch.arange(count).view(1, -1) if places is None else places.positions
        x_BTC: torch.Tensor = self.embed_tokens(tokens) + self.embed_positions(positions)
        return x_BTC, attention_mask(count, places, self.longest)


class WhisperBody(nn.Module):
    """The encoder and the decoder."""

    def __init__(self, sizes: WhisperSizes, texts: int) -> None:
        super().__init__()
        self.encoder, self.decoder = WhisperEncoder(sizes), WhisperDecoder(sizes, texts)


class Whisper(nn.Module):
    """Whisper with its head, whose weight is the embedding of tokens.

    To train, forward takes (features [B, M, N], labels [B, T]) and returns the mean loss; labels of -100 do not count.
    To serve, with caches for ``texts`` texts and a spare row, it takes one of:

    - (features [1, M, N], row [1]): stores the encoded spectrogram in the row, and returns the row;
    - (tokens [B, T], positions [B, T], rows [B], targets [B, T], last [1]): as ``Decoder``, in the texts of the rows;
    - (tokens [1, T], positions [1, T], row [1], targets [1, T]), T > 1: returns what the heads of ``sizes.aligned``
      attend to [A, T, S] in the row's audio.
    """

    def __init__(self, sizes: WhisperSizes, texts: int = 0) -> None:
        super().__init__()
        self.sizes = sizes
        self.model = WhisperBody(sizes, texts)
        self.proj_out = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.proj_out.weight = self.model.decoder.embed_tokens.weight
        init_normal(self)

    def forward(
        self, given: torch.Tensor, at: torch.Tensor, rows: torch.Tensor | None = None,
        targets: torch.Tensor | None = None, last: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        if rows is not None and targets is not None:
            return self._continue(given, at, rows, targets, last)
        if at.dim() == 1:
            return self._listen(given, at)
        logits_BTV = self.logits(given, self.shifted(at))
        return F.cross_entropy(logits_BTV.flatten(0, 1), at.flatten(), ignore_index=IGNORED)

    def encode(self, features_BMN: torch.Tensor) -> torch.Tensor:
        """Return the encoder's states [B, S, C]."""
        states_BSC: torch.Tensor = self.model.encoder(features_BMN, self._everything())
        return states_BSC

    def logits(self, features_BMN: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, T, V] after each token; no cache is read."""
        logits_BTV: torch.Tensor = self.proj_out(
            self.model.decoder(tokens, self._everything(), self.encode(features_BMN))
        )
        return logits_BTV

    def shifted(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input [B, T] that predicts labels [B, T]."""
        known = labels.masked_fill(labels == IGNORED, self.sizes.padding)
        return torch.cat([torch.full_like(known[:, :1], self.sizes.start), known[:, :-1]], 1)

    def _everything(self) -> torch.Tensor:
        """Return the mask with which each query sees all states: without one, attention is causal."""
        return torch.arange(self.sizes.states).view(1, 1, 1, -1) >= 0

    def _listen(self, features_1MN: torch.Tensor, row_1: torch.Tensor) -> torch.Tensor:
        states_1SC = self.encode(features_1MN)
        row = row_1 + 0  # a graph keeps what is written with what its output is made of
        positions = torch.arange(self.sizes.states).view(1, -1)
        targets = row.view(-1, 1) + torch.zeros_like(positions)
        places = Places.find(positions, row, targets, self.sizes.decoder_heads, self.sizes.states)
        for layer in self.model.decoder.layers:
            cast(WhisperLayer, layer).encoder_attn.keep(states_1SC, places)
        return row

    def _continue(
        self, tokens: torch.Tensor, at: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor,
        last: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        places = Places.find(at, rows, targets, self.sizes.decoder_heads, self.sizes.context_length)
        if last is None and tokens.shape[1] > 1:
            return self.model.decoder.align(tokens, self._everything(), places, self.sizes.aligned)
        states_BTC = self.model.decoder(tokens, self._everything(), None, places)
        states_BC = states_BTC[:, 0] if last is None else states_BTC.index_select(1, last)[:, 0]
        logits_BV: torch.Tensor = self.proj_out(states_BC)
        return logits_BV


def build_serving(texts: int, **sizes: SizeValue) -> nn.Module:
    """Build the model with caches for as many ``texts`` at once."""
    return Whisper(WhisperSizes(**sizes), texts)  # type: ignore[arg-type]


def build(**sizes: SizeValue) -> nn.Module:
    """Build the model that trains."""
    return Whisper(WhisperSizes(**sizes))  # type: ignore[arg-type]


def make_inputs(batch_size: int, **sizes: SizeValue) -> tuple[samba.SambaTensor, ...]:
    """Return dummy inputs ``features`` [batch, mels, 2 * states] and ``labels`` [batch, context_length]."""
    shape = (batch_size, int(sizes["mels"]), 2 * int(sizes["states"]))
    labels = (batch_size, int(sizes["context_length"]))
    return (
        samba.randn(*shape, name="features", batch_dim=0),
        samba.randint(int(sizes["vocabulary"]), labels, name="labels", batch_dim=0),
    )


#: Arrays of texts choose from the vocabulary.
_LIMITS: Mapping[str, str | int] = {"labels": "vocabulary"}

model(
    name="whisper",
    title="Whisper: speech to text",
    task="speech-to-text",
    licence="MIT",
    source="Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision (2022)",
    sizes=asdict(WhisperSizes()),
    make_inputs=make_inputs,
    text_serving=TextServing(
        build_serving,
        context="context_length",
        prompt="prompt_length",
        vocabulary="vocabulary",
        audio=AudioSizes(mels="mels", states="states", alignment="alignment"),
    ),
    free_sizes=frozenset({"alignment"}),
    variants=VARIANTS,
    hub=HUB_FORMAT,
    limits=_LIMITS,
)(build)

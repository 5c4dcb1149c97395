"""Families of encoder-decoders and their sizes: T5, mT5, BART and mBART. Deciding only: no torch.

Sources: Raffel et al., T5 (2020); Lewis et al., BART (2020); Liu et al., mBART (2020), and their published
configurations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_zoo.language.decoder import check_divides
from rdukit_zoo.language.family_sizes import ACTIVATIONS
from rdukit_zoo.registry import SizeValue, Variant


@dataclass(frozen=True, slots=True)
class Seq2SeqFamily:
    """A family's differences from BART.

    ``spelled`` holds our parts of names ↔ those on disk, applied in this order when a file is read.
    """

    title: str
    #: Name in ``architectures`` of ``config.json``.
    architecture: str
    model_type: str
    #: Whether queries and keys have a learned bias by their distance, instead of learned positions; norms divide by the
    #: root of the mean square, linear layers have no biases, and products of queries and keys are not scaled.
    has_distances: bool = False
    #: Whether norms come before each part, with one more after the last layer; else after each sum.
    norms_first: bool = False
    #: Whether states may be divided by √width before the head.
    may_scale_head: bool = False
    #: Whether a target's own last token comes first when it is shifted to train; else ``start`` does.
    wraps_target: bool = False
    spelled: tuple[tuple[str, str], ...] = ()


_ATTENTIONS: Final = (("self_attn", "layer.0.SelfAttention"), ("encoder_attn", "layer.1.EncDecAttention"))
_T5_NAMES: Final = (
    *(
        (f"{side}.relative_attention_bias", f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias")
        for side in ("encoder", "decoder")
    ),
    ("encoder.layer_norm", "encoder.final_layer_norm"), ("decoder.layer_norm", "decoder.final_layer_norm"),
    ("layers", "block"),
    *(
        (f"{ours}.{projection}", f"{theirs}.{letter}")
        for ours, theirs in _ATTENTIONS
        for projection, letter in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "o"))
    ),
    ("self_attn_layer_norm", "layer.0.layer_norm"), ("encoder_attn_layer_norm", "layer.1.layer_norm"),
    ("final_layer_norm", "layer.2.layer_norm"), ("gate", "layer.2.DenseReluDense.wi_0"),
    ("up", "layer.2.DenseReluDense.wi_1"), ("fc1", "layer.2.DenseReluDense.wi"),
    ("fc2", "layer.2.DenseReluDense.wo"),
)  # fmt: skip

#: Families by the name that the size ``family`` has.
SEQ2SEQ: Final[Mapping[str, Seq2SeqFamily]] = {
    "t5": Seq2SeqFamily(
        "T5, T5 1.1, Flan-T5", "T5ForConditionalGeneration", "t5", has_distances=True, norms_first=True,
        may_scale_head=True, spelled=_T5_NAMES,
    ),
    "mt5": Seq2SeqFamily(
        "mT5", "MT5ForConditionalGeneration", "mt5", has_distances=True, norms_first=True, spelled=_T5_NAMES
    ),
    "bart": Seq2SeqFamily("BART", "BartForConditionalGeneration", "bart"),
    "mbart": Seq2SeqFamily(
        "mBART", "MBartForConditionalGeneration", "mbart", norms_first=True, wraps_target=True
    ),
}  # fmt: skip


#: Largest values, far above those of published models: a folder that asks for more is refused before it takes memory.
_MOST: Final[Mapping[str, int]] = {
    "width": 1 << 16, "layers": 512, "decoder_layers": 512, "heads": 1 << 12, "decoder_heads": 1 << 12,
    "head_width": 1 << 12, "feed_forward": 1 << 20, "decoder_feed_forward": 1 << 20, "vocabulary": 1 << 24,
    "context_length": 1 << 15, "prompt_length": 1 << 15, "buckets": 1 << 12,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seq2SeqSizes:
    """Sizes of an encoder-decoder; the defaults are small.

    Raises:
        InvalidArgument: they do not fit together, or the family does not exist.
    """

    #: Name in ``SEQ2SEQ``.
    family: str = "t5"
    width: int = 64
    #: Layers of the encoder and of the decoder.
    layers: int = 2
    decoder_layers: int = 2
    heads: int = 4
    decoder_heads: int = 4
    #: Width of a head.
    head_width: int = 16
    feed_forward: int = 128
    decoder_feed_forward: int = 128
    vocabulary: int = 512
    #: Tokens that the decoder makes, and tokens that the encoder reads, at most.
    context_length: int = 64
    prompt_length: int = 64
    #: Positions that are learned; 0 with ``has_distances``.
    positions: int = 0
    #: Name in ``ACTIVATIONS``, and whether it multiplies another layer as a gate.
    activation: str = "relu"
    is_gated: bool = False
    #: Buckets of distances, and the distance from which on all share the last.
    buckets: int = 32
    farthest: int = 128
    epsilon: float = 1e-6
    #: Whether the head is the embedding's weight.
    is_tied: bool = True
    #: Whether states are divided by √width before the head, and embeddings multiplied by it.
    scales_head: bool = True
    scales_embedding: bool = False
    #: Token that each target begins after, and token that fills a batch's shorter texts.
    start: int = 0
    padding: int = 0

    def __post_init__(self) -> None:
        for name, legal in (("family", tuple(SEQ2SEQ)), ("activation", tuple(ACTIVATIONS))):
            if getattr(self, name) not in legal:
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(legal)}")
        for name, most in _MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise InvalidArgument(f"{name} is {getattr(self, name)}; expected 1 to {most}")
        if not 0 < self.epsilon < 1:
            raise InvalidArgument(f"epsilon is {self.epsilon}; expected a number between 0 and 1")
        if not self.of.has_distances:
            for heads in ("heads", "decoder_heads"):
                check_divides(self.width, getattr(self, heads), heads_name=heads)
            most = max(self.context_length, self.prompt_length)
            if most > self.positions:
                raise InvalidArgument(
                    f"context_length or prompt_length is {most}; expected up to {self.positions} (positions)"
                )
        elif self.heads != self.decoder_heads or self.buckets < 4 or self.farthest <= self.buckets // 2:
            raise InvalidArgument(
                f"decoder_heads {self.decoder_heads}, buckets {self.buckets}, farthest {self.farthest}; expected "
                f"{self.heads} (heads), 4 or more, and more than half of the buckets"
            )
        if self.scales_head and not self.of.may_scale_head:
            raise InvalidArgument(f"scales_head is true; expected false, as states of {self.of.title} are not scaled")
        for name in ("start", "padding"):
            if not 0 <= getattr(self, name) < self.vocabulary:
                raise InvalidArgument(
                    f"{name} is {getattr(self, name)}; expected a token, 0 <= x < {self.vocabulary} (vocabulary)"
                )
        if min(self.context_length, self.prompt_length) < 2:
            raise InvalidArgument("context_length or prompt_length is below 2; expected 2 or more tokens")

    @property
    def of(self) -> Seq2SeqFamily:
        """The family's differences."""
        return SEQ2SEQ[self.family]

    def heads_of(self, is_decoder: bool) -> tuple[int, int]:
        """Return the heads of one side's layers and their width."""
        heads = self.decoder_heads if is_decoder else self.heads
        return heads, self.head_width if self.of.has_distances else self.width // heads


def _t5(width: int, layers: int, heads: int, feed_forward: int, **others: SizeValue) -> dict[str, SizeValue]:
    return {
        "width": width, "layers": layers, "decoder_layers": layers, "heads": heads, "decoder_heads": heads,
        "head_width": 64, "feed_forward": feed_forward, "decoder_feed_forward": feed_forward, "vocabulary": 32128,
        "context_length": 512, "prompt_length": 512, **others,
    }  # fmt: skip


def _bart(width: int, layers: int, heads: int, feed_forward: int, vocabulary: int) -> dict[str, SizeValue]:
    known = _t5(width, layers, heads, feed_forward, family="bart", vocabulary=vocabulary, positions=1024)
    return known | {
        "head_width": width // heads, "context_length": 1024, "prompt_length": 1024, "activation": "gelu",
        "epsilon": 1e-5, "scales_head": False, "start": 2, "padding": 1,
    }  # fmt: skip


_GATED: Final[dict[str, SizeValue]] = {
    "activation": "gelu_new", "is_gated": True, "is_tied": False, "scales_head": False,
}  # fmt: skip

#: Published sizes.
VARIANTS: Final[Mapping[str, Variant]] = {
    "t5-small": Variant(_t5(512, 6, 8, 2048), 60_506_624),
    "t5-base": Variant(_t5(768, 12, 12, 3072), 222_903_552),
    "flan-t5-small": Variant(_t5(512, 8, 6, 1024, **_GATED), 76_961_152),
    "flan-t5-base": Variant(_t5(768, 12, 12, 2048, **_GATED), 247_577_856),
    "bart-base": Variant(_bart(768, 6, 12, 3072, 50265), 139_420_416),
    "bart-large": Variant(_bart(1024, 12, 16, 4096, 50265), 406_291_456),
}

"""Families of encoders and their sizes: BERT, RoBERTa, XLM-RoBERTa, MPNet and ModernBERT. Deciding only: no torch.

Sources: Devlin et al., BERT (2019); Liu et al., RoBERTa (2019); Conneau et al., XLM-R (2020); Song et al., MPNet
(2020); Warner et al., ModernBERT (2024), and their published configurations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_zoo.language.decoder import check_divides

#: How an embedder makes one vector of a text's last states: their mean; the first or the last one; the largest of each
#: element; their sum over √count; the mean in which the n-th state counts n times.
POOLINGS: Final = ("mean", "first", "last", "max", "mean_sqrt", "weighted_mean")


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """A family's differences from BERT.

    ``spelled`` holds our parts of names ↔ those on disk, applied in this order when a file is read.
    """

    title: str
    #: Class names in ``architectures`` begin with this.
    stem: str
    model_type: str
    spelled: tuple[tuple[str, str], ...] = ()
    #: Whether positions are counted from behind the padding token's number, and padding is not counted.
    counts_padding: bool = False
    has_types: bool = True
    #: Whether queries and keys have a learned bias by their distance.
    has_distances: bool = False
    #: Whether norms come first, positions rotate, feed-forward has a gate, and some layers see a window only.
    is_modern: bool = False


#: Families by the name that the size ``family`` has.
ENCODERS: Final[Mapping[str, EncoderFamily]] = {
    "bert": EncoderFamily("BERT", "Bert", "bert"),
    "roberta": EncoderFamily("RoBERTa", "Roberta", "roberta", (("bert", "roberta"),), counts_padding=True),
    "xlm-roberta": EncoderFamily(
        "XLM-RoBERTa", "XLMRoberta", "xlm-roberta", (("bert", "roberta"),), counts_padding=True
    ),
    "mpnet": EncoderFamily(
        "MPNet", "MPNet", "mpnet",
        (
            ("bert", "mpnet"), ("attention.output.dense", "attention.attn.o"),
            ("attention.output.LayerNorm", "attention.LayerNorm"), ("attention.self.query", "attention.attn.q"),
            ("attention.self.key", "attention.attn.k"), ("attention.self.value", "attention.attn.v"),
        ),
        counts_padding=True, has_types=False, has_distances=True,
    ),
    "modernbert": EncoderFamily(
        "ModernBERT", "ModernBert", "modernbert", (("bert", "model"),), has_types=False, is_modern=True
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BertSizes:
    """Sizes of an encoder; the defaults train within a minute on a processor.

    Raises:
        InvalidArgument: they do not fit together, or the family does not exist.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    feed_forward: int = 256
    vocabulary: int = 512
    #: Tokens of a text that a program takes.
    context_length: int = 128
    #: Positions of tokens that are learned, or that the model was trained for; 0 for as many as a text has tokens.
    positions: int = 0
    #: Kinds of tokens, such as first and second sentence; 1 where the family has none.
    token_types: int = 2
    epsilon: float = 1e-12
    dropout: float = 0.0
    #: Classes of a text, of the classifier.
    num_classes: int = 2
    #: Name in ``ENCODERS``.
    family: str = "bert"
    #: Number of the padding token, behind which RoBERTa and MPNet count positions.
    padding: int = 0
    #: Name in ``POOLINGS``, of the embedder.
    pooling: str = "mean"
    #: Whether vectors are divided by their length.
    normalizes: bool = False
    #: Tokens to each side that ModernBERT's window layers see; 0 for all.
    window: int = 0
    #: A digit for each layer: 1 for those with the window; "" for none.
    window_layers: str = ""
    rotary_base: float = 160000.0
    #: Base in layers with the window.
    local_rotary_base: float = 10000.0
    #: ``first`` or ``mean``: the states that ModernBERT's classifier reads.
    classifier_pooling: str = "first"
    #: Whether the layer before ModernBERT's classes has a bias.
    has_classifier_bias: bool = False

    def __post_init__(self) -> None:
        check_divides(self.width, self.heads)
        for name, legal in (
            ("family", tuple(ENCODERS)), ("pooling", POOLINGS), ("classifier_pooling", ("first", "mean")),
        ):  # fmt: skip
            if getattr(self, name) not in legal:
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(legal)}")
        if self.positions and self.positions < self.context_length:
            raise InvalidArgument(
                f"context_length is {self.context_length}; expected up to {self.positions}, the number of learned "
                "positions"
            )
        if self.window_layers and (len(self.window_layers) != self.layers or set(self.window_layers) - {"0", "1"}):
            raise InvalidArgument(
                f"window_layers is {self.window_layers!r}; expected '' or {self.layers} digits of 0 and 1, one a layer"
            )
        if self.of.counts_padding and not 0 <= self.padding < self.vocabulary:
            raise InvalidArgument(
                f"padding is {self.padding}; expected a token's number, 0 <= x < {self.vocabulary} (vocabulary)"
            )

    @property
    def of(self) -> EncoderFamily:
        """The family's differences."""
        return ENCODERS[self.family]

    @property
    def first_position(self) -> int:
        """Row of the table of positions that a text's first token has."""
        return self.padding + 1 if self.of.counts_padding else 0

    @property
    def position_rows(self) -> int:
        """Rows of the table of positions."""
        return self.first_position + (self.positions or self.context_length)

    def has_window(self, layer: int) -> bool:
        """Return whether a layer sees only a window of the text."""
        return bool(self.window) and self.window_layers[layer : layer + 1] == "1"

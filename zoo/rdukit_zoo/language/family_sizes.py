"""Sizes of a decoder of one of the families: what its configurations vary, and how the family's defaults fill it in."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_zoo.language.attention import RotaryScaling
from rdukit_zoo.language.decoder import check_divides, check_lengths
from rdukit_zoo.language.families import BIASED, FAMILIES, HEAD_NORMS, OF_FAMILY, PLACEMENTS, Family
from rdukit_zoo.registry import SizeValue

#: Name of an activation in ``config.json`` → torch's function and its ``approximate``.
ACTIVATIONS: Final[Mapping[str, tuple[str, str]]] = {
    "silu": ("silu", ""), "swish": ("silu", ""), "relu": ("relu", ""), "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"), "gelu_fast": ("gelu", "tanh"), "gelu_pytorch_tanh": ("gelu", "tanh"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FamilySizes:
    """Sizes of a decoder; the defaults train within a minute on a processor.

    Sizes such as ``window_layers`` mark layers by one digit each: 1 for those that have it, 0 for others; "" for all.

    Raises:
        InvalidArgument: they do not fit together, or the family does not exist.
    """

    #: Name in ``FAMILIES``.
    family: str = "qwen3"
    width: int = 64
    layers: int = 2
    heads: int = 4
    #: Heads of keys and values, each read by as many query heads; 0 for as many as there are query heads.
    key_value_heads: int = 2
    #: Width of a head; 0 for width / heads.
    head_width: int = 0
    feed_forward: int = 192
    vocabulary: int = 512
    #: Tokens of a text, and of the cache.
    context_length: int = 128
    #: Tokens of the prompt that is read at once.
    prompt_length: int = 64
    #: Learned positions, of a family that has them; 0 for the context's length.
    positions: int = 0
    #: Width of the embedding, of which a linear layer makes the model's; 0 for the same.
    embedding_width: int = 0
    #: Tokens that one sees, itself included; 0 for all before it.
    window: int = 0
    #: Layers with the window.
    window_layers: str = ""
    #: 0 for the family's.
    epsilon: float = 0.0
    #: Whether the head is the embedding's weight.
    is_tied: bool = True
    #: "" for the family's.
    activation: str = ""
    #: Places of ``BIASED`` with a comma between; "family" for the family's.
    biases: str = OF_FAMILY
    head_norms: str = OF_FAMILY
    placement: str = OF_FAMILY
    #: Layers with positions.
    rotary_layers: str = ""
    #: 0 for the family's.
    rotary_base: float = 0.0
    #: Share of a head that is rotated; 0 for the family's.
    rotary_share: float = 0.0
    rotary_kind: str = "default"
    rotary_factor: float = 1.0
    rotary_low_factor: float = 1.0
    rotary_high_factor: float = 4.0
    rotary_original_length: int = 8192
    rotary_attention_factor: float = 0.0
    rotary_truncates: bool = True
    rotary_short: str = ""
    rotary_long: str = ""
    #: Base in layers with the window; 0 for the same as in others, scaling included.
    local_rotary_base: float = 0.0
    #: Factor of products of queries and keys; 0 for 1 / √head_width.
    attention_scale: float = 0.0
    #: Limit of these products; 0 for none.
    attention_cap: float = 0.0
    #: Limit of logits; 0 for none.
    logit_cap: float = 0.0
    logit_scale: float = 1.0
    #: Factor of embeddings; 0 for the family's.
    embedding_scale: float = 0.0
    #: Factor of each layer's residual update.
    residual_scale: float = 1.0
    #: Experts of a layer; 0 for none.
    experts: int = 0
    experts_per_token: int = 2
    #: Width of an expert; 0 for that of feed-forward layers.
    expert_feed_forward: int = 0
    #: Layers with experts.
    expert_layers: str = ""
    #: Whether the shares of the chosen experts sum to 1.
    normalizes_experts: bool = True
    #: Experts that all tokens have, as one of so many times the width.
    shared_experts: int = 0
    #: Groups of experts, and how many of them a token chooses experts from.
    expert_groups: int = 1
    expert_groups_chosen: int = 1
    #: Factor of the shares of experts.
    expert_scale: float = 1.0
    #: Limit of an expert's gate, and the factor within its sigmoid; 0 for the family's.
    gate_limit: float = 0.0
    gate_gain: float = 0.0
    #: Width of the latent vector of keys and values, of a family that has one; 0 for half the model's.
    latent: int = 0
    #: Width of the latent vector of queries; 0 for none.
    query_latent: int = 0
    #: Rotated width of a head, in addition to ``head_width``; 0 for half of that.
    rotated_width: int = 0
    #: Width of a head's value; 0 for ``head_width``.
    value_width: int = 0
    #: YaRN's factor ``mscale_all_dim``, by which latent attention also scales products; 0 for none.
    rotary_all_scale: float = 0.0

    def __post_init__(self) -> None:
        require_family(self.family)
        check_lengths(self.context_length, self.prompt_length)
        if not self.head_width:
            check_divides(self.width, self.heads)
        check_divides(self.heads, self.groups, "heads", "key_value_heads")
        if self.learned_positions and self.context_length > self.learned_positions:
            raise InvalidArgument(
                f"context_length is {self.context_length}; expected at most {self.learned_positions} (positions)"
            )
        most = self.rotated if self.of.is_latent else self.width_of_head
        if self.rotated % 2 or not 0 <= self.rotated <= most or (self.is_rotary and not self.rotated):
            raise InvalidArgument(
                f"{self.rotated} of a head's {self.width_of_head} elements are rotated (rotary_share "
                f"{self.share}); expected an even number, from 2 to the head's width"
            )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise InvalidArgument(
                f"experts_per_token is {self.experts_per_token}; expected 1 <= x <= {self.experts} (experts)"
            )
        if bool(self.experts) != self.of.has_experts:
            raise InvalidArgument(
                f"experts is {self.experts} with family {self.family!r}; expected "
                + ("1 or more" if self.of.has_experts else "0: this family has none")
            )
        self._check_groups()
        for name, legal in (("head_norms", HEAD_NORMS), ("placement", tuple(PLACEMENTS))):
            _require_one_of(name, getattr(self, name), (OF_FAMILY, *legal))
        _require_one_of("activation", self.activation, ("", *ACTIVATIONS))
        if self.biases != OF_FAMILY and not self.biased <= set(BIASED):
            raise InvalidArgument(f"biases is {self.biases!r}; expected {OF_FAMILY!r}, or some of {','.join(BIASED)}")
        for name in ("window_layers", "rotary_layers", "expert_layers"):
            marks = getattr(self, name)
            if marks and (len(marks) != self.layers or set(marks) - {"0", "1"}):
                raise InvalidArgument(
                    f"{name} is {marks!r}; expected '' or {self.layers} digits of 0 and 1, one a layer"
                )
        self.rotary_scaling().check_context(self.context_length)

    def _check_groups(self) -> None:
        """Refuse groups that do not divide the experts, or have too few of them.

        Raises:
            InvalidArgument: they do not, or have not.
        """
        groups, chosen = self.expert_groups, self.expert_groups_chosen
        if not self.experts or not self.of.is_latent:
            return
        if not 1 <= chosen <= groups or self.experts % groups:
            raise InvalidArgument(
                f"expert_groups_chosen is {chosen} of {groups} expert_groups and {self.experts} experts; expected "
                "1 <= expert_groups_chosen <= expert_groups, which divides the experts"
            )
        each = self.experts // groups
        if self.experts_per_token > each * chosen or (each < 2 and chosen < groups and self.of.router == "sigmoid"):
            raise InvalidArgument(
                f"{self.experts_per_token} experts_per_token of {chosen} groups with {each} experts each; expected "
                "groups of two or more, with at least as many experts together"
            )

    @classmethod
    def from_values(cls, sizes: Mapping[str, SizeValue]) -> "FamilySizes":
        """Return the sizes of a table of them, as checkpoints and boxes have it. Raises as the class."""
        return cls(**sizes)  # type: ignore[arg-type]

    @property
    def of(self) -> Family:
        """The family's differences."""
        return FAMILIES[self.family]

    @property
    def width_of_head(self) -> int:
        """Width of a head, in elements."""
        return self.head_width or self.width // self.heads

    @property
    def width_of_key(self) -> int:
        """Width of a head's query and key, in elements."""
        return self.width_of_head + (self.rotated if self.of.is_latent else 0)

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.key_value_heads or self.heads

    @property
    def is_rotary(self) -> bool:
        """Return whether positions rotate queries and keys; else learned ones are added to embeddings."""
        return self.of.learned_from < 0

    @property
    def learned_positions(self) -> int:
        """Rows of the table of learned positions that texts use; 0 without one."""
        return 0 if self.is_rotary else self.positions or self.context_length

    @property
    def share(self) -> float:
        """Share of a head that is rotated."""
        return float(self.rotary_share or self.of.absent.get("partial_rotary_factor", 1.0))

    @property
    def rotated(self) -> int:
        """Elements of a head that are rotated."""
        if self.of.is_latent:
            return self.rotated_width or self.width_of_head // 2
        return int(self.width_of_head * self.share) if self.is_rotary else 0

    @property
    def biased(self) -> frozenset[str]:
        """Places of ``BIASED`` that have a bias."""
        if self.biases != OF_FAMILY:
            return frozenset(part for part in self.biases.split(",") if part)
        named = self.of.biases.items()
        return frozenset(place for place, by in named if (self.of.absent.get(by) if isinstance(by, str) else by))

    def has(self, marks: str, layer: int) -> bool:
        """Return whether a layer is marked."""
        return not marks or marks[layer] == "1"

    def rotary_scaling(self) -> RotaryScaling:
        """Return how rotary positions are stretched."""
        return RotaryScaling(
            self.rotary_kind, self.rotary_factor, self.rotary_low_factor, self.rotary_high_factor,
            self.rotary_original_length, self.rotary_attention_factor, self.rotary_truncates, self.rotary_short,
            self.rotary_long,
        )  # fmt: skip

    def filled(self) -> "FamilySizes":
        """Return the sizes with the family's values where they stand for these."""
        of = self.of
        norms = "none" if of.head_norms_key and not of.absent.get(of.head_norms_key) else of.head_norms
        return replace(
            self, key_value_heads=self.groups, head_width=self.width_of_head, positions=self.learned_positions,
            embedding_width=self.embedding_width or self.width,
            epsilon=self.epsilon or float(of.absent.get(of.key_of("epsilon"), 1e-5)),
            activation=self.activation or str(of.absent[of.key_of("activation")]),
            biases=",".join(place for place in BIASED if place in self.biased),
            head_norms=norms if self.head_norms == OF_FAMILY else self.head_norms,
            placement=of.placement if self.placement == OF_FAMILY else self.placement,
            window_layers=self.window_layers if self.window and "0" in self.window_layers else "",
            rotary_layers=self.rotary_layers if "0" in self.rotary_layers else "",
            expert_layers=self.expert_layers if "0" in self.expert_layers else "",
            rotary_base=self.rotary_base or float(of.absent.get("rope_theta", 10000.0)), rotary_share=self.share,
            local_rotary_base=self.local_rotary_base if self.window else 0.0,
            attention_scale=self.attention_scale or 1 / math.sqrt(self.width_of_key),
            embedding_scale=self.embedding_scale or (math.sqrt(self.width) if of.scales_embedding else 1.0),
            expert_feed_forward=(self.expert_feed_forward or self.feed_forward) if self.experts else 0,
            experts_per_token=self.experts_per_token if self.experts else 0,
            gate_limit=self.gate_limit or float(of.absent.get("swiglu_limit", 0.0)),
            gate_gain=self.gate_gain or float(of.absent.get("swiglu_alpha", 0.0)),
            shared_experts=self.shared_experts or int(of.is_latent),
            latent=(self.latent or self.width // 2) if of.is_latent else 0,
            rotated_width=self.rotated if of.is_latent else 0,
            value_width=(self.value_width or self.width_of_head) if of.is_latent else 0,
        )  # fmt: skip


#: Sizes of rotary positions that count only with some kinds of scaling.
_ROTARY_SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "rotary_factor": ("linear", "llama3", "yarn", "longrope"),
    "rotary_low_factor": ("llama3", "yarn"),
    "rotary_high_factor": ("llama3", "yarn"),
    "rotary_original_length": ("dynamic", "llama3", "yarn", "longrope"),
    "rotary_attention_factor": ("yarn", "longrope"),
    "rotary_truncates": ("yarn",),
    "rotary_all_scale": ("yarn",),
    "rotary_short": ("longrope",),
    "rotary_long": ("longrope",),
}

#: Sizes of families with a latent vector of keys and values, and with groups of experts.
_LATENT_SIZES: Final = (
    "latent", "query_latent", "rotated_width", "value_width", "rotary_all_scale", "shared_experts", "expert_groups",
    "expert_groups_chosen", "expert_scale",
)  # fmt: skip


def written_out(sizes: Mapping[str, SizeValue]) -> dict[str, SizeValue]:
    """Return sizes of which none stands for another; those that have no effect have their defaults."""
    given = FamilySizes.from_values(sizes)
    found: dict[str, SizeValue] = asdict(given.filled())
    defaults = asdict(FamilySizes())
    unused = [name for name, kinds in _ROTARY_SIZES.items() if given.rotary_kind not in kinds]
    if not given.is_rotary:
        unused += ["rotary_base", "rotary_share", "local_rotary_base", "rotary_layers", "rotary_kind"]
    if not given.of.is_latent:
        unused += _LATENT_SIZES
    if given.of.router != "sinks":
        unused += ["gate_limit", "gate_gain"]
    return {**found, **{name: defaults[name] for name in unused}}


def require_family(name: str) -> None:
    """Refuse a name that is not in ``FAMILIES``.

    Raises:
        InvalidArgument: there is no such family.
    """
    _require_one_of("family", name, tuple(FAMILIES))


def _require_one_of(name: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise InvalidArgument(f"{name} is {value!r}; expected one of {', '.join(repr(each) for each in legal)}")

"""Sizes of Whisper, and the ``config.json`` of its folders. Deciding only: no torch.

Source: Radford et al. (2022), its published configurations, and transformers' WhisperConfig for absent keys.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.hub_format import HubFormat, require_value
from rdukit_zoo.language.decoder import check_divides
from rdukit_zoo.registry import SizeValue, Variant

#: Tokens of a prompt that one run reads at most: most prompts are four tokens.
_PROMPT: Final = 32
_GENERATION: Final = "generation_config.json"
_HEADS: Final = re.compile(r"(\d{1,3}\.\d{1,3}(,\d{1,3}\.\d{1,3}){0,63})?")


@dataclass(frozen=True, slots=True)
class WhisperSizes:
    """Sizes of Whisper; the defaults are small.

    Raises:
        InvalidArgument: they do not fit together.
    """

    width: int = 64
    #: Layers and heads of the encoder and of the decoder.
    layers: int = 2
    decoder_layers: int = 2
    heads: int = 4
    decoder_heads: int = 4
    feed_forward: int = 128
    decoder_feed_forward: int = 128
    vocabulary: int = 512
    #: Bands of a spectrogram, and states that the encoder makes of it: one of two frames each.
    mels: int = 80
    states: int = 50
    #: Tokens of a text at most, and learned positions of the decoder.
    context_length: int = 64
    positions: int = 64
    #: Tokens that a run reads at most.
    prompt_length: int = _PROMPT
    #: Token that each text begins after, and token that fills a batch's shorter texts.
    start: int = 0
    padding: int = 0
    #: Heads of the decoder that follow the audio, as LAYER.HEAD separated by commas; their attention times words.
    alignment: str = ""

    def __post_init__(self) -> None:
        for heads in ("heads", "decoder_heads"):
            check_divides(self.width, getattr(self, heads), heads_name=heads)
        if self.width % 2 or self.states < 1 or self.mels < 1:
            raise InvalidArgument(
                f"width {self.width}, states {self.states}, mels {self.mels}; expected an even width, 1 or more states "
                "and 1 or more mels"
            )
        if not 8 <= self.context_length <= self.positions:
            raise InvalidArgument(
                f"context_length is {self.context_length}; expected 8 <= x <= {self.positions} (positions)"
            )
        if not 2 <= self.prompt_length <= self.context_length:
            raise InvalidArgument(
                f"prompt_length is {self.prompt_length}; expected 2 <= x <= {self.context_length} (context_length)"
            )
        for name in ("start", "padding"):
            if not 0 <= getattr(self, name) < self.vocabulary:
                raise InvalidArgument(
                    f"{name} is {getattr(self, name)}; expected a token, 0 <= x < {self.vocabulary} (vocabulary)"
                )
        if not _HEADS.fullmatch(self.alignment) or any(
            layer >= self.decoder_layers or head >= self.decoder_heads for layer, head in self.aligned
        ):
            raise InvalidArgument(
                f"alignment is {self.alignment!r:.200}; expected up to 64 heads such as '1.0,1.3', of "
                f"{self.decoder_layers} layers with {self.decoder_heads} heads each (decoder_layers, decoder_heads)"
            )

    @property
    def aligned(self) -> Sequence[tuple[int, int]]:
        """Return layer and head of each head that follows the audio, in their order."""
        named = self.alignment.split(",") if self.alignment else []
        return sorted((int(layer), int(head)) for layer, head in (name.split(".") for name in named))


#: Size → key of ``config.json``, and the value of an absent key.
_KEYS: Final[Mapping[str, tuple[str, Any]]] = {
    "width": ("d_model", 384), "layers": ("encoder_layers", 4), "decoder_layers": ("decoder_layers", 4),
    "heads": ("encoder_attention_heads", 6), "decoder_heads": ("decoder_attention_heads", 6),
    "feed_forward": ("encoder_ffn_dim", 1536), "decoder_feed_forward": ("decoder_ffn_dim", 1536),
    "vocabulary": ("vocab_size", 51865), "mels": ("num_mel_bins", 80), "states": ("max_source_positions", 1500),
    "positions": ("max_target_positions", 448),
    "start": ("decoder_start_token_id", 50257), "padding": ("pad_token_id", 50256),
}  # fmt: skip


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, SizeValue]:
    """Return the sizes that a Hugging Face ``config.json`` names.

    Raises:
        InvalidArgument: a value that is not computed.
    """
    require_value(config, "is_encoder_decoder", True)
    require_value(config, "activation_function", "gelu")
    if config.get("tie_word_embeddings") is False:
        raise InvalidArgument("config.json: tie_word_embeddings is false; Whisper's head is its embedding")
    known = {key: value for key, value in config.items() if value is not None}
    defaults = asdict(WhisperSizes())
    found = {size: type(defaults[size])(known.get(key, absent)) for size, (key, absent) in _KEYS.items()}
    context = int(found["positions"])
    return asdict(WhisperSizes(**found, context_length=context, prompt_length=min(_PROMPT, context)))


def config_of_sizes(sizes: Mapping[str, SizeValue]) -> dict[str, Any]:
    """Return the ``config.json`` of a model of these sizes."""
    return {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "is_encoder_decoder": True,
        "activation_function": "gelu", **{key: sizes[size] for size, (key, _) in _KEYS.items()},
        # transformers' own defaults may be beyond the vocabulary
        "bos_token_id": None, "eos_token_id": None, "begin_suppress_tokens": None, "dropout": 0.0,
    }  # fmt: skip


def alignment_of_folder(path: Path) -> dict[str, SizeValue]:
    """Return the heads that a folder's ``generation_config.json`` says follow the audio, as ``alignment``.

    Raises:
        InvalidArgument: the file is damaged, or its ``alignment_heads`` are no pairs of a layer and a head.
    """
    file = path / _GENERATION
    if not file.is_file():
        return {}
    try:
        heads = dict(json.loads(file.read_text())).get("alignment_heads")
    except (ValueError, TypeError) as cause:
        raise InvalidArgument(f"{file} is damaged: {cause!r}") from cause
    pairs = heads if isinstance(heads, list) else [] if heads is None else [heads]
    if not all(isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair) for pair in pairs):
        raise InvalidArgument(f"{file}: alignment_heads is {heads!r:.200}; expected pairs such as [[2, 2], [3, 0]]")
    named = dict.fromkeys(f"{layer}.{head}" for layer, head in pairs)
    return {"alignment": ",".join(named)} if named else {}


def _published(width: int, layers: int, heads: int, **others: SizeValue) -> dict[str, SizeValue]:
    return {
        "width": width, "layers": layers, "decoder_layers": layers, "heads": heads, "decoder_heads": heads,
        "feed_forward": 4 * width, "decoder_feed_forward": 4 * width, "vocabulary": 51865, "states": 1500,
        "context_length": 448, "positions": 448, "start": 50258, "padding": 50257, **others,
    }  # fmt: skip


_LARGE_V3: Final[dict[str, SizeValue]] = {"vocabulary": 51866, "mels": 128}

#: Published sizes; the table of the encoder's positions is not trained and does not count.
VARIANTS: Final[Mapping[str, Variant]] = {
    "tiny": Variant(_published(384, 4, 6), 37_184_640),
    "base": Variant(_published(512, 6, 8), 71_825_920),
    "small": Variant(_published(768, 12, 12), 240_582_912),
    "medium": Variant(_published(1024, 24, 16), 762_321_920),
    "large-v3": Variant(_published(1280, 32, 20, **_LARGE_V3), 1_541_570_560),
    "large-v3-turbo": Variant(_published(1280, 32, 20, **_LARGE_V3, decoder_layers=4), 806_958_080),
}

#: Names on disk are the model's; old files have the head in addition.
HUB_FORMAT: Final = HubFormat(
    architectures=("WhisperForConditionalGeneration",), sizes_of_config=sizes_of_config,
    config_of_sizes=config_of_sizes, sizes_of_folder=alignment_of_folder, prefix="model.",
    tied={"proj_out.weight": "model.decoder.embed_tokens.weight"},
)  # fmt: skip

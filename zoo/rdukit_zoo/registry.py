"""The list of models: each file of the zoo adds one entry with ``@model``. A box's own module also adds one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rdukit.errors import InvalidArgument, suggest
from rdukit.pef.identity import ModelIdentity
from rdukit.pef.identity import SizeValue as SizeValue

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from rdukit_zoo.checkpoints.hub_format import HubFormat
    from sambaflow.samba import SambaTensor

#: Model → the module of the zoo that registers it; one line per file.
MODULES: Final = {
    "autodicnn": "science.autodicnn",
    "autophasenn": "science.autophasenn",
    "bert": "language.bert",
    "bert_classifier": "language.bert",
    "bert_embedder": "language.bert",
    "bloom": "language.bloom",
    "braggnn": "science.braggnn",
    "dcrnn": "science.dcrnn",
    "cosmictagger2d": "vision.cosmictagger",
    "cosmictagger3d": "vision.cosmictagger",
    "decoder": "language.configured",
    "deepvit": "vision.deepvit",
    "falcon": "language.falcon",
    "ffn": "ffn",
    "gan": "vision.gan",
    "gpt2": "language.gpt2",
    "lenet": "vision.lenet",
    "llama": "language.llama",
    "logreg": "logreg",
    "mlp": "mlp",
    "neox": "language.neox",
    "polymers": "science.polymers",
    "rescalenet": "vision.rescalenet",
    "seq2seq": "language.seq2seq",
    "unet2d": "vision.unet2d",
    "unet3d": "vision.unet3d",
    "uno": "science.uno",
    "vit": "vision.vit",
    "whisper": "language.whisper",
}
#: Tasks of models. A task defines a model's inputs, outputs and metrics.
TASKS: Final = (
    "classification",
    "language-modelling",
    "text-to-text",
    "speech-to-text",
    "masked-language-modelling",
    "sequence-classification",
    "embedding",
    "regression",
    "forecasting",
    "segmentation",
    "image-classification",
    "self-supervised",
    "generative",
)
#: Task → the modality that its models read; models of other tasks name their own.
MODALITIES: Final[Mapping[str, str]] = {
    "classification": "tables",
    "language-modelling": "text",
    "text-to-text": "text",
    "speech-to-text": "audio",
    "masked-language-modelling": "text",
    "sequence-classification": "text",
    "embedding": "text",
    "segmentation": "images",
    "image-classification": "images",
    "generative": "images",
}
#: Tasks of encoder-decoders, and tasks whose models generate texts.
TEXT_TO_TEXT: Final = "text-to-text"
SPEECH_TO_TEXT: Final = "speech-to-text"
GENERATES_TEXT: Final = frozenset({"language-modelling", TEXT_TO_TEXT, SPEECH_TO_TEXT})
#: Tasks whose models take no target.
WITHOUT_TARGET: Final = frozenset({"self-supervised", "embedding"})

#: Sizes that may differ between a PEF and the training of its checkpoint: lengths of sequences, whose tables have
#: separate shapes, and sizes that only training uses.
FREE_SIZES: Final = frozenset({"context_length", "prompt_length", "positions", "dropout"})

#: Label that losses ignore: the default of torch's cross entropy.
IGNORED: Final = -100

Sizes = Mapping[str, SizeValue]


@dataclass(frozen=True, slots=True)
class Variant:
    """A named choice of a model's sizes: differences from its defaults, and the exact number of parameters."""

    sizes: Sizes
    #: Tied parameters count once.
    parameters: int


@dataclass(frozen=True, slots=True)
class AudioSizes:
    """Names of the sizes of an audio encoder's input: bands of a spectrogram, and states of two frames each.

    ``alignment`` names the size that lists heads which follow the audio, separated by commas.
    """

    mels: str
    states: str
    alignment: str


@dataclass(frozen=True, slots=True)
class TextServing:
    """Module for texts: it continues several at the same time, or computes a vector of one.

    ``build(**sizes)`` makes a module with the parameter names of the trained one. Its forward takes (text [1, prompt],
    shares [1, prompt] float) and returns a vector [1, width]. A language model's is built with ``texts`` as well, the
    rows of the static caches in its buffers, and its forward also continues texts, as ``Decoder`` says. ``context``,
    ``prompt`` and ``vocabulary`` name the sizes that hold them.
    """

    build: "Callable[..., nn.Module]"
    context: str
    prompt: str
    vocabulary: str
    #: Size that holds the token which texts begin after, of a model whose prompt is read by an encoder; else empty.
    start: str = ""
    #: Sizes of the spectrograms that an encoder hears; its texts begin after prompts as those of decoders do.
    audio: AudioSizes | None = None


@dataclass(frozen=True, slots=True)
class ServedModule:
    """Inputs and outputs of requests that differ from those of training: pre- and post-processing.

    ``build(**sizes)`` makes a module with the parameter names of the trained one, such as a subclass of it;
    ``make_inputs(batch_size, **sizes)`` makes its named inputs; ``outputs`` names the tensors that its forward returns.
    The batch is the first axis of all.
    """

    build: "Callable[..., nn.Module]"
    make_inputs: "Callable[..., tuple[SambaTensor, ...]]"
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of the zoo, or of a box's own module.

    ``build(**sizes)`` makes the module; ``make_inputs(batch_size, **sizes)`` makes the named dummy inputs to trace
    with, each with the batch first. ``sizes`` are the legal keyword arguments with their defaults. The task says what
    forward takes and returns:

    - classification: (rows [batch, features], classes [batch] int64) → (loss [], logits [batch, classes]); with the
      rows alone → logits. ``num_features`` and ``num_classes`` are among the sizes.
    - language-modelling: (tokens [batch, context] int64, labels [batch, context] int64) → loss [], the mean over the
      labels that are not -100. ``text_serving`` says how it generates.
    - text-to-text: (tokens [batch, prompt] int64, labels [batch, context] int64) → loss [], as above, of the text that
      answers the tokens.
    - speech-to-text: (features [batch, mels, frames], labels [batch, context] int64) → loss [], as above, of the text
      that is spoken in the audio.
    """

    name: str
    title: str
    task: str
    licence: str
    source: str
    sizes: Sizes
    build: "Callable[..., nn.Module]"
    make_inputs: "Callable[..., tuple[SambaTensor, ...]]"
    text_serving: TextServing | None = None
    serving: ServedModule | None = None
    #: Published sizes by name.
    variants: Mapping[str, Variant] = field(default_factory=dict)
    #: Format of its parameters in Hugging Face folders.
    hub: "HubFormat | None" = None
    #: ``generate(count, seed, **sizes)`` draws data from a model of the physics: an array for each of the inputs, the
    #: samples first.
    generate: "Callable[..., dict[str, NDArray[Any]]] | None" = None
    #: Whether ``generate`` selects from a built-in data set, so that two seeds may give the same sample.
    is_drawn_from_a_set: bool = False
    #: Unit of an output, and the name of the size of which the output is a share.
    output_unit: str = ""
    output_scale: str = ""
    #: Names of the output's channels, as pictures of results show them.
    output_channels: tuple[str, ...] = ()
    #: Models of one family share weights; by default a model is its own.
    family: str = ""
    #: Further sizes that may differ between a PEF and its checkpoint, such as image sizes of a fully convolutional
    #: network.
    free_sizes: frozenset[str] = frozenset()
    #: Replaces sizes that stand for others, such as 0 for the number of heads.
    written_out: "Callable[[Sizes], Sizes]" = dict
    #: Array of integers → exclusive upper limit of its values, a size or a number; the default of a target is
    #: ``num_classes``.
    limits: "Mapping[str, str | int]" = field(default_factory=dict)
    #: Modality that the model reads, such as text or images; by default the task's.
    modality: str = ""

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InvalidArgument(f"model {self.name!r} is for {self.task!r}; expected {', '.join(TASKS)}")

    @property
    def reads(self) -> str:
        """Return the modality that the model reads: its own, or its task's; empty: not known."""
        return self.modality or MODALITIES.get(self.task, "")

    def check_sizes(self, sizes: Sizes) -> dict[str, SizeValue]:
        """Return all sizes; missing ones have their defaults.

        Raises:
            InvalidArgument: the model lacks a size.
        """
        unknown = sorted(set(sizes) - set(self.sizes))
        if unknown:
            raise InvalidArgument(
                f"model {self.name!r} has no size {', '.join(unknown)}; expected {', '.join(self.sizes) or 'none'}"
            )
        return {**self.sizes, **sizes}

    def identity(self, sizes: Sizes) -> ModelIdentity:
        """Return the identity of a checkpoint or PEF of these sizes: each size that changes results.

        Raises:
            InvalidArgument: the model lacks a size.
        """
        free = FREE_SIZES | self.free_sizes
        known = self.written_out(self.check_sizes(sizes))
        return ModelIdentity(self.family or self.name, {n: value for n, value in known.items() if n not in free})

    def sizes_of(self, variant: str) -> dict[str, SizeValue]:
        """Return all sizes of a variant.

        Raises:
            InvalidArgument: the model has no variant of that name.
        """
        if variant not in self.variants:
            raise InvalidArgument(
                f"model {self.name!r} has no variant {variant!r}; expected {', '.join(self.variants) or 'none'}"
            )
        return self.check_sizes(self.variants[variant].sizes)


_ENTRIES: dict[str, ModelEntry] = {}


def model(**about: Any) -> "Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]":
    """Register the decorated module class or builder; ``about`` are the fields of ``ModelEntry`` except ``build``."""

    def register(build: "Callable[..., nn.Module]") -> "Callable[..., nn.Module]":
        _ENTRIES[about["name"]] = ModelEntry(build=build, **about)
        return build

    return register


def model_names() -> tuple[str, ...]:
    """Return the sorted names of all models, without importing them."""
    return tuple(sorted(MODULES))


def get_model(name: str) -> ModelEntry:
    """Return the entry called ``name``, importing only that model's file.

    Raises:
        InvalidArgument: no such model; the message lists the names.
    """
    if name not in MODULES:
        raise InvalidArgument(
            f"the zoo has no model {name!r}; expected {', '.join(model_names())}.{suggest(name, model_names())}"
        )
    import_module(f"rdukit_zoo.{MODULES[name]}")
    return _ENTRIES[name]

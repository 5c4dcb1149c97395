"""The shape of a compiled box, read from its PEF's metadata so that users never repeat it. Imports no torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef import Pef
from rdukit.pef.file import BOX_KEY
from rdukit.pef.identity import ModelIdentity, SizeValue, identity_from_json

TRAIN: Final = "train"
SERVE: Final = "serve"
#: A label that every loss ignores, as torch's cross entropy does by default.
IGNORED: Final = -100

#: Least number of tokens that get a graph of their own for reading.
_FEWEST_READ: Final = 16


@dataclass(frozen=True, slots=True)
class TextSizes:
    """Sizes of a text program: lengths in tokens, size of the vocabulary, and number of concurrent sequences
    (``texts``).

    A run has ``texts`` sequences, and ``guesses`` speculative tokens per sequence. Each sequence may use one of
    ``adapters`` adapters of the rank ``adapter_rank``. With an encoder, a prompt is its source of at most ``source``
    tokens, and the decoder's sequence begins with the token ``start``; 0: there is no encoder. An encoder that hears
    takes spectrograms of ``mels`` bands and ``frames`` frames, and prompts are the decoder's; 0: none hears.
    ``alignment`` heads say at which time of the audio each token is spoken; 0: no graph says it.
    """

    context: int
    prompt: int
    vocabulary: int
    texts: int = 1
    guesses: int = 0
    adapters: int = 0
    adapter_rank: int = 0
    source: int = 0
    start: int = 0
    mels: int = 0
    frames: int = 0
    alignment: int = 0

    @property
    def most_prompt(self) -> int:
        """Return the most tokens of a prompt."""
        return self.source or self.context - 1

    def begin_of(self, prompt: Sequence[int]) -> list[int]:
        """Return the tokens that the caches hold once a prompt is read, all of which precede the generated ones."""
        return [self.start] if self.source else list(prompt)

    def figures(self) -> dict[str, int]:
        """Return the sizes that a server reports."""
        found = {"context": self.context, "prompt": self.prompt, "vocabulary": self.vocabulary, "texts": self.texts}
        if self.frames:
            found |= {"mels": self.mels, "frames": self.frames, "alignment": self.alignment}
        return {**found, "source": self.source} if self.source else found

    @property
    def prompt_lengths(self) -> tuple[int, ...]:
        """Return the prompt lengths that a run can read, in tokens, ascending."""
        shares = (self.prompt // 4, self.prompt // 2)
        return (*(few for few in shares if few >= _FEWEST_READ), self.prompt)

    def check_tokens(self, tokens: Sequence[int], field: str) -> None:
        """Raise ``InvalidArgument``, naming ``field``, if a token is not in the vocabulary."""
        wrong = next((token for token in tokens if not 0 <= token < self.vocabulary), None)
        if wrong is not None:
            raise InvalidArgument(
                f"token {wrong} is not in the vocabulary; expected 0 to {self.vocabulary - 1}", field=field
            )

    def check_draft(self, draft: "TextSizes") -> None:
        """Refuse a draft whose vocabulary, context or rows do not suit these texts.

        Raises:
            InvalidArgument: names what differs.
        """
        if self.source or draft.source or self.frames or draft.frames:
            raise InvalidArgument("a model with an encoder can neither have nor be a draft; expected two decoders")
        if draft.vocabulary != self.vocabulary:
            raise InvalidArgument(
                f"the draft has {draft.vocabulary} tokens; expected {self.vocabulary}, because it needs the model's "
                "tokenizer"
            )
        for name, has, needs in (
            ("context_length", draft.context, self.context), ("batch_size", draft.texts, self.texts)
        ):  # fmt: skip
            if has < needs:
                raise InvalidArgument(
                    f"the draft was compiled with {name}={has}; expected {needs} or more, as for the model"
                )

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the numbers of tokens that a run can take, ascending: powers of two, and the largest."""
        most = max(self.texts, self.guesses + 1)
        return (*(1 << i for i in range((most - 1).bit_length())), most)


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names of a model's tensors about which the graphs of a PEF do not say everything."""

    #: Buffers that a checkpoint holds, such as tables of rotary angles and running statistics.
    buffers: tuple[str, ...] = ()
    #: Names of one tensor, such as a head and its tied embedding.
    tied: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and choices that fix a program's graphs."""

    model: str
    sizes: Mapping[str, SizeValue]
    batch_size: int
    precision: str
    task: str = "classification"
    #: ``train``: forward, backward and optimizer; ``serve``: only what answers a request.
    purpose: str = TRAIN
    optimizer: str = "sgd"
    clips_gradients: bool = False
    #: Batches whose gradients are added up before an update.
    accumulation_steps: int = 1
    #: Learning rate of a level of the model, over that of the next one.
    layer_decay: float = 1.0
    #: Sizes of a language model that is compiled to serve.
    text: TextSizes | None = None
    #: Kinds of the outputs of the PEF's graphs, in order: ``loss``, ``logits``.
    outputs: tuple[str, ...] = ("loss", "logits")
    #: Rows of a call → the graph for that number; empty: there is only one graph.
    graphs: Mapping[int, str] = field(default_factory=dict)
    #: Rank of the updates that train with frozen weights, and the factor of their sum over the rank; 0: all
    #: parameters train.
    lora_rank: int = 0
    lora_alpha: float = 16.0
    #: Layers with such updates, by full names or by their ends; empty: all linear layers but heads.
    lora_layers: tuple[str, ...] = ()
    #: Precision of the frozen weights of linear layers next to such updates: f32, bf16, int8 or int4.
    base_precision: str = "f32"
    #: The model that was compiled; None in a PEF of an earlier version.
    identity: ModelIdentity | None = None
    tensors: TensorNames = TensorNames()
    #: Input of integers → number of rows or classes that it indexes, if the graphs were read; no metadata.
    choices: Mapping[str, int] = field(default_factory=dict)

    @property
    def features(self) -> int:
        """Return the number of values in a row, of a model that takes rows."""
        return int(self.sizes["num_features"])

    @property
    def classes(self) -> int:
        """Return the number of values in an answer, of a classifier."""
        return int(self.sizes["num_classes"])

    def require(self, purpose: str, verb: str) -> None:
        """Refuse a PEF of another purpose.

        Raises:
            InvalidArgument: the PEF was compiled for the other purpose.
        """
        if self.purpose != purpose:
            raise InvalidArgument(
                f"the PEF was compiled with purpose={self.purpose}; {verb} needs one compiled with purpose={purpose}"
            )

    def to_metadata(self) -> dict[str, str]:
        """Return the shape as ``pef_metadata`` of a compile."""
        value: dict[str, Any] = {
            "model": self.model, "sizes": dict(self.sizes), "batch_size": self.batch_size,
            "precision": self.precision, "task": self.task, "purpose": self.purpose, "optimizer": self.optimizer,
            "clips_gradients": self.clips_gradients, "outputs": list(self.outputs),
        }  # fmt: skip
        if self.text is not None:
            sizes = self.text
            value["text"] = [sizes.context, sizes.prompt, sizes.vocabulary, sizes.texts]
            has_encoder = sizes.source or sizes.frames
            value["text"] += [sizes.guesses] if sizes.guesses or sizes.adapters or has_encoder else []
            value["text"] += [sizes.adapters, sizes.adapter_rank] if sizes.adapters or has_encoder else []
            value["text"] += [sizes.source, sizes.start] if has_encoder else []
            value["text"] += [sizes.mels, sizes.frames] if sizes.frames else []
            value["text"] += [sizes.alignment] if sizes.alignment else []
        if self.lora_rank:
            value["lora"] = [self.lora_rank, self.lora_alpha, *([list(self.lora_layers)] if self.lora_layers else [])]
        if self.accumulation_steps > 1:
            value["accumulation_steps"] = self.accumulation_steps
        if self.layer_decay != 1:
            value["layer_decay"] = self.layer_decay
        if self.base_precision != "f32":
            value["base_precision"] = self.base_precision
        if self.identity is not None:
            value["identity"] = self.identity.to_json()
            value["buffers"], value["tied"] = self.tensors.buffers, self.tensors.tied
        if self.graphs:
            value["graphs"] = {str(rows): name for rows, name in self.graphs.items()}
        return {BOX_KEY: json.dumps(value, sort_keys=True)}


def _checked(value: object) -> SizeValue:
    if not isinstance(value, int | float | str):
        raise TypeError(f"a size is {value!r}")
    return value


def shape_of(pef: Pef, name: str) -> Shape:
    """Return the shape in a loaded PEF's metadata; ``name`` is for messages.

    Raises:
        PefMismatch: no ModelBox compiled it.
    """
    try:
        value = json.loads(pef.metadata[BOX_KEY])
        text = value.get("text")
        lora_rank, lora_alpha, *lora_layers = value.get("lora", (0, 16.0))
        return Shape(
            model=str(value["model"]), sizes={str(k): _checked(v) for k, v in value["sizes"].items()},
            batch_size=int(value["batch_size"]), precision=str(value["precision"]),
            task=str(value.get("task", "classification")), purpose=str(value.get("purpose", TRAIN)),
            optimizer=str(value.get("optimizer", "sgd")), clips_gradients=bool(value.get("clips_gradients", False)),
            accumulation_steps=int(value.get("accumulation_steps", 1)), layer_decay=float(value.get("layer_decay", 1)),
            text=TextSizes(*map(int, text)) if text else None,
            outputs=tuple(value.get("outputs", ("loss", "logits"))),
            graphs={int(rows): str(graph) for rows, graph in value.get("graphs", {}).items()},
            lora_rank=int(lora_rank), lora_alpha=float(lora_alpha),
            lora_layers=tuple(map(str, lora_layers[0])) if lora_layers else (),
            base_precision=str(value.get("base_precision", "f32")),
            identity=identity_from_json(value["identity"]) if "identity" in value else None,
            tensors=TensorNames(tuple(value.get("buffers", ())), tuple(map(tuple, value.get("tied", ())))),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise PefMismatch(
            f"{name} was not compiled by a ModelBox, so nothing says which of its inputs a request has; compile the "
            "model by the verb compile of its box; for a model of your own: rdukit docs modelbox-own-model"
        ) from cause

"""The list of models: each file of the zoo adds one entry with ``@model``. A box's own module makes one too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from rdukit.errors import InvalidArgument, suggest

if TYPE_CHECKING:
    from torch import nn

    from sambaflow.samba import SambaTensor

#: Modules of the zoo that register a model; one line per file.
MODULES: Final = ("ffn", "llama", "logreg", "mlp")
#: What a model may be for: it decides which inputs, outputs and figures it has.
TASKS: Final = ("classification", "language-modelling")

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TextServing:
    """The prompt reading and generation of a language model.

    ``build(**sizes)`` makes a module with the parameter names of the trained one, and a static cache in its buffers.
    Its forward takes (tokens [1, prompt], index [1]) and (token [1, 1], position [1]); both return logits [1,
    vocabulary]. ``context``, ``prompt`` and ``vocabulary`` name the sizes that hold them.
    """

    build: "Callable[..., nn.Module]"
    context: str
    prompt: str
    vocabulary: str


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

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InvalidArgument(f"model {self.name!r} is for {self.task!r}; legal: {', '.join(TASKS)}")

    def check_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return all sizes; missing ones have their defaults.

        Raises:
            InvalidArgument: one that the model does not have.
        """
        unknown = sorted(set(sizes) - set(self.sizes))
        if unknown:
            raise InvalidArgument(
                f"model {self.name!r} has no size {', '.join(unknown)}; legal: {', '.join(self.sizes) or 'none'}"
            )
        return {**self.sizes, **sizes}


_ENTRIES: dict[str, ModelEntry] = {}


def model(
    *, name: str, title: str, task: str, licence: str, source: str, sizes: Sizes,
    make_inputs: "Callable[..., tuple[SambaTensor, ...]]", text_serving: TextServing | None = None,
) -> "Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]":  # fmt: skip
    """Register the decorated module class or builder as the model ``name``."""

    def register(build: "Callable[..., nn.Module]") -> "Callable[..., nn.Module]":
        _ENTRIES[name] = ModelEntry(name, title, task, licence, source, dict(sizes), build, make_inputs, text_serving)
        return build

    return register


def model_names() -> tuple[str, ...]:
    """Return the names of all models, sorted; imports no model."""
    return tuple(sorted(MODULES))


def get_model(name: str) -> ModelEntry:
    """Return the entry called ``name``; imports only that model's file.

    Raises:
        InvalidArgument: no such model; the message lists the names.
    """
    if name not in MODULES:
        raise InvalidArgument(
            f"the zoo has no model {name!r}; legal: {', '.join(model_names())}.{suggest(name, model_names())}"
        )
    import_module(f"rdukit_zoo.{name}")
    return _ENTRIES[name]

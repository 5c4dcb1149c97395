"""The list of models: each file of the zoo adds one entry with ``@model``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from rdukit.errors import InvalidArgument

if TYPE_CHECKING:
    from torch import nn

    from sambaflow.samba import SambaTensor

#: Modules of the zoo that register a model; one line per file.
MODULES: Final = ("ffn", "logreg")

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of the zoo.

    ``build(**sizes)`` makes the module; its forward takes (inputs [batch, features], targets [batch]) and returns
    (loss [], logits [batch, classes]). ``make_inputs(batch_size, **sizes)`` makes the named dummy inputs to trace
    with. ``sizes`` are the legal keyword arguments with their defaults.
    """

    name: str
    title: str
    task: str
    licence: str
    source: str
    sizes: Sizes
    build: "Callable[..., nn.Module]"
    make_inputs: "Callable[..., tuple[SambaTensor, ...]]"


_ENTRIES: dict[str, ModelEntry] = {}


def model(
    *, name: str, title: str, task: str, licence: str, source: str, sizes: Sizes,
    make_inputs: "Callable[..., tuple[SambaTensor, ...]]",
) -> "Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]":  # fmt: skip
    """Register the decorated module class or builder as the model ``name``."""

    def register(build: "Callable[..., nn.Module]") -> "Callable[..., nn.Module]":
        _ENTRIES[name] = ModelEntry(name, title, task, licence, source, dict(sizes), build, make_inputs)
        return build

    return register


def model_names() -> tuple[str, ...]:
    """Names of all models, sorted; imports no model."""
    return tuple(sorted(MODULES))


def get_model(name: str) -> ModelEntry:
    """The entry called ``name``; imports only that model's file.

    Raises:
        InvalidArgument: no such model; the message lists the names.
    """
    if name not in MODULES:
        raise InvalidArgument(f"the zoo has no model {name!r}; legal: {', '.join(model_names())}")
    import_module(f"rdukit_zoo.{name}")
    return _ENTRIES[name]

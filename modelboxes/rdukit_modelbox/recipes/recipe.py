"""Recipes as values: the checked content of the ``recipes.yaml`` next to a ``modelbox.yaml``.

A recipe of a kind has the parameters of each verb, the recipe that it starts from, and its figures; or the reason why
there is none.
"""

from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError, model_validator

from rdukit.errors import InvalidArgument, NotFound
from rdukit.strict_yaml import read_yaml
from rdukit_modelbox.contract.allowed_values import ParameterValue, Word
from rdukit_modelbox.contract.box import Verb, find_box_file
from rdukit_modelbox.contract.parts import Sentence
from rdukit_serving.strict_yaml.schema_errors import StrictModel, diagnostics_of

RECIPES_FILE: Final = "recipes.yaml"


class Kind(StrEnum):
    """Kind of a recipe. Each kind may start from a kind above it."""

    TRAIN = "train"
    FINE_TUNE = "fine-tune"
    LORA = "lora"
    EVALUATE = "evaluate"
    INFER = "infer"


#: A kind, or a kind of another box: ``bert/train``.
Reference = Annotated[str, StringConstraints(pattern=r"^([a-z][a-z0-9_-]{0,62}/)?[a-z-]{1,20}$")]
Parameters = Mapping[Word, ParameterValue]
Figures = Mapping[Word, float]


class Recipe(StrictModel):
    """A recipe of one kind. Each named verb is called, with these parameters and the box's defaults."""

    checkpoint: Reference | None = Field(default=None, description="Recipe that provides the starting checkpoint.")
    data: Reference | None = Field(
        default=None, description="Recipe that provides the data set, if this one preprocesses none."
    )
    preprocess: Parameters | None = None
    compile: Parameters | None = None
    train: Parameters | None = None
    infer: Parameters | None = None
    evaluate: Parameters | None = Field(
        default=None, description="Parameters of evaluate as the last verb, instead of infer."
    )
    before: Figures = Field(default={}, description="Figures of the starting checkpoint on its data.")
    reached: Figures = Field(default={}, description="Figures reached on held-out data.")
    trained_parameters: int | None = None
    seconds: float | None = Field(default=None, description="Seconds of the training on one core, or of infer.")
    measured: date | None = Field(default=None, description="Day of the figures.")
    unavailable: Sentence | None = Field(default=None, description="Why the box has no recipe of this kind.")

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        if self.unavailable is not None:
            if self.model_fields_set != {"unavailable"}:
                raise ValueError("unavailable gives the reason for a missing recipe; leave out all other keys")
            return self
        if self.checkpoint is None and (self.preprocess is None or self.compile is None or self.train is None):
            raise ValueError("a recipe without a starting checkpoint needs preprocess, compile and train")
        if self.infer is not None and self.evaluate is not None:
            raise ValueError("infer and evaluate are named; expected one of them, which ends the recipe")
        return self

    @property
    def last(self) -> Verb:
        """Return the verb that gives the recipe's figures."""
        return Verb.INFER if self.evaluate is None else Verb.EVALUATE

    def parameters_of(self, verb: Verb) -> Parameters | None:
        """Return the parameters of ``verb``; ``None``: the recipe does not call it."""
        named: Parameters | None = getattr(self, verb.value)
        return named


Recipes = Mapping[Kind, Recipe]
_RECIPES: Final[TypeAdapter[dict[Kind, Recipe]]] = TypeAdapter(dict[Kind, Recipe])


def split_reference(reference: str, box: str) -> tuple[str, Kind]:
    """Return box and kind of a reference in a recipe of ``box``.

    Raises:
        ValueError: there is no such kind.
    """
    other, _, kind = reference.rpartition("/")
    return other or box, Kind(kind)


def load_recipes(box: str) -> Recipes:
    """Return the recipes of ``box``, a name, a ``modelbox.yaml`` or its folder, in the order of their kinds.

    Raises:
        NotFound: no such box, or it has no recipes.
        InvalidArgument: the file is invalid; the message has line, key and legal values.
    """
    path = find_box_file(box).with_name(RECIPES_FILE)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as cause:
        raise NotFound(f"box {box} has no recipes: there is no {path}") from cause
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"{path} is not readable text: {cause}") from cause
    return parse_recipes(text, str(path))


def parse_recipes(text: str, where: str) -> Recipes:
    """Parse the text of a recipes file; ``where`` is its name (pure)."""
    marked = read_yaml(text)
    faults = list(marked.faults)
    found: dict[Kind, Recipe] = {}
    if not faults:
        try:
            found = _RECIPES.validate_python(marked.value)
        except ValidationError as cause:
            faults = diagnostics_of(cause, marked, _RECIPES.json_schema())
    if faults:
        lines = [f"{where}:{fault.mark.line}:{fault.mark.column}: {fault.key}: {fault.message}" for fault in faults]
        raise InvalidArgument("\n  ".join(lines))
    order = list(Kind)
    for kind, recipe in found.items():
        for reference in (recipe.checkpoint, recipe.data):
            _check_reference(where, kind, reference, order[: order.index(kind)], found)
    return dict(sorted(found.items(), key=lambda pair: order.index(pair[0])))


def _check_reference(
    where: str, kind: Kind, reference: str | None, earlier: list[Kind], found: Mapping[Kind, Recipe]
) -> None:
    if reference is None:
        return
    other, _, name = reference.rpartition("/")
    if name not in earlier or not (other or name in found):
        legal = ", ".join(one for one in earlier if one in found) or "none, it is the first"
        raise InvalidArgument(
            f"{where}: {kind}: {reference!r} is not a recipe to start from; expected {legal}, or BOX/KIND for another "
            "box"
        )

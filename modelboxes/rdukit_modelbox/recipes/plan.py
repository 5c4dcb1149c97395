"""Plan of recipes as steps: verbs of boxes with parameters and earlier outputs, as in a pipeline (pure).

A kind's step is called ``KIND-VERB``; steps that several kinds need occur once.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.box import Box, Verb
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.recipes.recipe import Kind, Recipe, Recipes, split_reference

#: Largest values of each verb's parameters in a quick run of a few small batches.
QUICK: Final[Mapping[Verb, Mapping[str, int]]] = {
    Verb.PREPROCESS: {"samples": 80, "limit": 160},
    Verb.COMPILE: {"batch_size": 16},
    Verb.TRAIN: {"epochs": 1, "max_steps": 4, "warmup_steps": 1},
    Verb.INFER: {"limit": 2, "max_tokens": 4},
    Verb.EVALUATE: {},
}


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """A step of a recipe. ``parameters``: those in the recipe; ``inputs``: ``@step.slot`` by slot."""

    name: str
    box: str
    verb: Verb
    parameters: Mapping[str, ParameterValue]
    inputs: Mapping[str, str]


def plan_recipes(box: str, kinds: Collection[Kind], find: Callable[[str], Recipes]) -> tuple[RecipeStep, ...]:
    """Return the steps that ``kinds`` of a box need, each after its sources.

    Args:
        find: the recipes of a box by name.
    Raises:
        InvalidArgument: a kind is unavailable (the message has the reason) or missing.
    """
    planner = _Planner(box, find)
    for kind in Kind:
        if kind in kinds:
            planner.judge(box, kind)
    return tuple(planner.steps.values())


def recipe_of(box: str, kind: Kind, recipes: Recipes) -> Recipe:
    """Return a box's recipe of a kind.

    Raises:
        InvalidArgument: there is none; the message has the reason, and the existing kinds.
    """
    recipe = recipes.get(kind)
    if recipe is None or recipe.unavailable is not None:
        why = "" if recipe is None else f" ({recipe.unavailable})"
        legal = ", ".join(kind for kind, one in recipes.items() if one.unavailable is None)
        raise InvalidArgument(f"box {box} has no recipe {kind}{why}; expected {legal}")
    return recipe


def shorten(steps: Collection[RecipeStep], boxes: Mapping[str, Box]) -> tuple[RecipeStep, ...]:
    """Return short versions of steps: fewer samples, smaller batches, a few training steps."""
    return tuple(replace(step, parameters=_shortened(step, boxes[step.box])) for step in steps)


def check_steps(steps: Collection[RecipeStep], boxes: Mapping[str, Box]) -> dict[str, dict[str, ParameterValue]]:
    """Return all parameters of each step, by its name.

    Raises:
        UnknownParameter, IllegalValue: a parameter is not one of its box; lists what is legal.
    """
    return {step.name: check_parameters(boxes[step.box], step.verb, step.parameters) for step in steps}


def pipeline_of(name: str, steps: Collection[RecipeStep]) -> dict[str, Any]:
    """Return the body of ``POST /v1/pipelines`` that runs ``steps`` on a platform, under ``name``."""
    return {
        "name": name,
        "steps": [
            {"name": step.name, "box": step.box, "verb": str(step.verb), "parameters": dict(step.parameters),
             "inputs": dict(step.inputs)}
            for step in steps
        ],
    }  # fmt: skip


class _Planner:
    """Planner: its steps by name; each method adds the steps that its answer needs."""

    def __init__(self, box: str, find: Callable[[str], Recipes]) -> None:
        self.steps: dict[str, RecipeStep] = {}
        self._box = box
        self._find = find

    def judge(self, box: str, kind: Kind) -> None:
        """Add a recipe's last step; for a tuning recipe, add it for the original checkpoint, too."""
        recipe = self._recipe(box, kind)
        verb, parameters = recipe.last, recipe.parameters_of(recipe.last) or {}
        if recipe.train is not None and recipe.checkpoint is not None:
            base = split_reference(recipe.checkpoint, box)
            given = {"checkpoint": self.checkpoint(*base), "pef": self.pef(*base), "dataset": self.dataset(box, kind)}
            self._add(box, kind, "before", verb, parameters, given)
        given = {
            "checkpoint": self.checkpoint(box, kind), "pef": self.pef(box, kind), "dataset": self.dataset(box, kind),
        }  # fmt: skip
        self._add(box, kind, verb.value, verb, parameters, given)

    def dataset(self, box: str, kind: Kind) -> str:
        """Return the reference to a recipe's data set."""
        recipe = self._recipe(box, kind)
        if recipe.preprocess is None:
            return self.dataset(*split_reference(recipe.data or str(recipe.checkpoint), box))
        return f"@{self._add(box, kind, 'preprocess', Verb.PREPROCESS, recipe.preprocess, {})}.dataset"

    def pef(self, box: str, kind: Kind) -> str:
        """Return the reference to the PEF that a recipe runs."""
        recipe = self._recipe(box, kind)
        if recipe.compile is None:
            return self.pef(*split_reference(str(recipe.checkpoint), box))
        return f"@{self._add(box, kind, 'compile', Verb.COMPILE, recipe.compile, {})}.pef"

    def checkpoint(self, box: str, kind: Kind) -> str:
        """Return the reference to the checkpoint that a recipe makes, or starts from if it does not train."""
        recipe = self._recipe(box, kind)
        base = None if recipe.checkpoint is None else split_reference(recipe.checkpoint, box)
        if recipe.train is None:
            assert base is not None
            return self.checkpoint(*base)
        given, parameters = {}, dict(recipe.train)
        if base is not None:
            given["checkpoint"] = self.checkpoint(*base)
            parameters = {"continue_as": "weights", **parameters}
        given |= {"dataset": self.dataset(box, kind), "pef": self.pef(box, kind)}
        return f"@{self._add(box, kind, 'train', Verb.TRAIN, parameters, given)}.checkpoint"

    def _recipe(self, box: str, kind: Kind) -> Recipe:
        return recipe_of(box, kind, self._find(box))

    def _add(
        self, box: str, kind: Kind, what: str, verb: Verb, parameters: Mapping[str, ParameterValue],
        inputs: Mapping[str, str],
    ) -> str:  # fmt: skip
        prefix = "" if box == self._box else f"{box}-"
        step = RecipeStep(f"{prefix}{kind}-{what}", box, verb, parameters, inputs)
        self.steps.setdefault(step.name, step)
        return step.name


def _shortened(step: RecipeStep, box: Box) -> dict[str, ParameterValue]:
    """Return the parameters of a quick run; missing ones are the box's defaults."""
    values = dict(step.parameters)
    for parameter in box.parameters_of(step.verb):
        most = QUICK[step.verb].get(parameter.name)
        if most is None:
            continue
        given = values.get(parameter.name, parameter.default)
        # 0 means all.
        values[parameter.name] = min(int(given), most) if given else most
    if step.verb is Verb.TRAIN and values.get("evaluate_every"):
        values["evaluate_every"] = 1
    return values

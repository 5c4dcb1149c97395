"""Recipes: every box's are whole and legal, what a plan is made of, and what is refused."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.cli.recipe import recipe as recipe_commands
from rdukit_modelbox.contract.box import Verb, box_names, find_box_file, load_box
from rdukit_modelbox.contract.describe import describe
from rdukit_modelbox.recipes.plan import RecipeStep, pipeline_of, plan_recipes, recipe_of
from rdukit_modelbox.recipes.recipe import Kind, load_recipes, parse_recipes
from rdukit_modelbox.recipes.run import StepResult, prepare, summarise
from rdukit_platform.catalog.model import Boxes, read_box
from rdukit_platform.console.run_form import view_recipes
from rdukit_platform.jobs.pipelines import check_steps
from rdukit_platform.jobs.schemas import PipelineRequest
from support import shows
from support.tiers import every_third_short

pytestmark = shows("recipes", "box", "every box")

WHOLE = """
train:
  preprocess: {samples: 100}
  compile: {batch_size: 16}
  train: {epochs: 2}
fine-tune:
  checkpoint: train
  preprocess: {drift: 0.5}
  train: {epochs: 1}
infer:
  checkpoint: fine-tune
  compile: {purpose: serve}
"""


def plan(text: str, *kinds: Kind) -> dict[str, RecipeStep]:
    recipes = parse_recipes(text, "recipes.yaml")
    return {step.name: step for step in plan_recipes("uno", kinds, lambda _: recipes)}


@pytest.mark.parametrize("name", every_third_short(box_names()))
def test_every_box_has_all_kinds_or_the_reason_and_each_parameter_is_legal(name: str) -> None:
    recipes = load_recipes(name)
    assert tuple(recipes) == tuple(Kind)
    has_ranks = any(p.name == "lora_rank" for p in load_box(find_box_file(name)).parameters)
    assert (recipes[Kind.LORA].unavailable is None) == has_ranks
    for is_quick in (False, True):
        planned = prepare(name, (), is_quick=is_quick)
        assert planned.parameters.keys() == {step.name for step in planned.steps}
    for one in recipes.values():
        assert not one.reached or one.seconds is not None


def test_steps_feed_each_other_and_a_tuned_checkpoint_is_judged_before_and_after() -> None:
    steps = plan(WHOLE, Kind.FINE_TUNE)
    assert list(steps) == [
        "train-preprocess", "train-compile", "train-train", "fine-tune-preprocess", "fine-tune-before",
        "fine-tune-train", "fine-tune-infer",
    ]  # fmt: skip
    assert steps["fine-tune-train"].parameters == {"continue_as": "weights", "epochs": 1}
    assert steps["fine-tune-train"].inputs == {
        "checkpoint": "@train-train.checkpoint", "dataset": "@fine-tune-preprocess.dataset", "pef": "@train-compile.pef"
    }  # fmt: skip
    assert steps["fine-tune-before"].inputs["checkpoint"] == "@train-train.checkpoint"
    assert steps["fine-tune-infer"].inputs["checkpoint"] == "@fine-tune-train.checkpoint"
    last = plan(WHOLE, Kind.INFER)["infer-infer"]
    assert last.inputs == {
        "checkpoint": "@fine-tune-train.checkpoint", "pef": "@infer-compile.pef",
        "dataset": "@fine-tune-preprocess.dataset",
    }  # fmt: skip


def test_kinds_share_the_steps_that_they_need() -> None:
    together = plan(WHOLE, Kind.TRAIN, Kind.FINE_TUNE, Kind.INFER)
    apart = [plan(WHOLE, kind) for kind in (Kind.TRAIN, Kind.FINE_TUNE, Kind.INFER)]
    assert together == {name: step for steps in apart for name, step in steps.items()}


def test_a_recipe_of_another_box_is_followed() -> None:
    steps = {step.name: step for step in plan_recipes("bert-embedder", [Kind.INFER], load_recipes)}
    assert steps["infer-infer"].inputs["checkpoint"] == "@bert-train-train.checkpoint"
    assert steps["bert-train-train"].box == "bert"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: {epochs: 2}", "expected "),
        ("tune: {preprocess: {}}", "tune"),
        ("train: {preprocess: {}, compile: {}}", "needs preprocess, compile and train"),
        ("train: {unavailable: No loss., train: {}}", "leave out all other keys"),
        (WHOLE.replace("checkpoint: train", "checkpoint: infer"), "expected train, or BOX/KIND"),
        (WHOLE.replace("checkpoint: train", "checkpoint: lora"), "expected train, or BOX/KIND"),
        ("train: [", "recipes.yaml:2:1: file: not valid YAML"),
    ],
)
def test_what_is_wrong_is_refused_with_what_is_legal(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=r"recipes\.yaml") as refused:
        parse_recipes(text, "recipes.yaml")
    assert words in refused.value.message


def test_a_kind_that_is_unavailable_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"no recipe lora \(This box has no lora_rank.*expected train, fine-tune"):
        recipe_of("uno", Kind.LORA, load_recipes("uno"))
    (tmp_path / "modelbox.yaml").write_bytes(find_box_file("uno").read_bytes())
    with pytest.raises(NotFound, match="has no recipes"):
        load_recipes(str(tmp_path))
    shown = CliRunner().invoke(recipe_commands, ["show", "uno", "lora"])
    assert isinstance(shown.exception, InvalidArgument)


@pytest.mark.parametrize("name", every_third_short(box_names()))
def test_the_platform_takes_recipes_as_a_pipeline(name: str) -> None:
    planned = prepare(name, ())
    request = PipelineRequest.model_validate(pipeline_of(f"{name} recipes", planned.steps))
    boxes = Boxes({one.name: read_box(describe(one)) for one in planned.boxes.values()})
    assert set(check_steps(boxes, request.steps, {})) == set(planned.parameters)


def test_a_summary_has_the_figures_that_judge_a_model() -> None:
    planned = prepare("uno", [Kind.FINE_TUNE])
    judged = {"loss": 0.5, "r2": 0.8, "samples": 10, "checkpoint_step": 3, "host_seconds": 2.0}
    results = {step.name: StepResult(judged, {"report": "r"}, 1.0) for step in planned.steps if step.verb is Verb.INFER}
    trained = {"train_seconds": 4.0, "trained_parameters": 7}
    results["fine-tune-train"] = StepResult(trained, {"checkpoint": "c"}, 5.0)
    assert summarise(planned, Kind.FINE_TUNE, results) == {
        "box": "uno", "kind": "fine-tune", "before": {"r2": 0.8}, "reached": {"r2": 0.8}, "seconds": 4.0,
        "trained_parameters": 7, "outputs": {"report": "r", "checkpoint": "c"},
    }  # fmt: skip


def test_the_console_shows_recipes_whatever_a_description_says() -> None:
    told = {"train": {"reached": {"r2": 0.9}, "seconds": 6}, "lora": {"unavailable": "None."}, "infer": 3}
    train, lora = view_recipes({"recipes": told})
    assert (train.kind, train.start, train.before, train.reached, train.took) == ("train", "–", "–", "r2 0.9", "6 s")
    assert (lora.kind, lora.reason) == ("lora", "None.")
    assert view_recipes({}) == view_recipes({"recipes": ["train"]}) == ()

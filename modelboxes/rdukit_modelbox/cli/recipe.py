"""``rdukit box recipe list|show|run``: training, tuning, evaluation and inference of a box's model, and figures."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rdukit.cli.commands import JSON_OPTION, Choice, ExtensibleGroup
from rdukit.cli.tables import Table, print_table, print_tables
from rdukit.files.atomic import write_json_atomic
from rdukit.settings import home_folder
from rdukit.units import plain
from rdukit_modelbox.contract.box import box_names, find_box_file, load_box
from rdukit_modelbox.recipes.plan import RecipeStep, pipeline_of
from rdukit_modelbox.recipes.recipe import RECIPES_FILE, Kind, Recipe, load_recipes

if TYPE_CHECKING:
    from rdukit_modelbox.cli.call import ProgressBars
    from rdukit_modelbox.operations.supervisor import Listener

BOX_ARGUMENT: Final = click.argument("box_name", metavar="BOX")
KINDS_ARGUMENT: Final = click.argument(
    "kinds", metavar="[KIND]...", nargs=-1, type=Choice([str(kind) for kind in Kind])
)
QUICK_OPTION: Final = click.option(
    "--quick", is_flag=True, help="Run only a few small batches as a smoke test; the figures are meaningless."
)


@click.group(cls=ExtensibleGroup)
def recipe() -> None:
    """Show and run recipes: train, fine-tune, lora, evaluate, infer.

    Example: rdukit box recipe run uno fine-tune

    Example: rdukit box recipe run logreg train --quick
    """


@recipe.command("list")
@click.argument("box_name", metavar="[BOX]", required=False)
@JSON_OPTION
def list_recipes(box_name: str | None, as_json: bool) -> None:
    """List recipes and the figures that they reached.

    BOX is a name, a modelbox.yaml, or its folder; without it, all boxes of rdukit are listed.

    Example: rdukit box recipe list uno

    Example: rdukit box recipe list --json
    """
    names = [box_name] if box_name else [n for n in box_names() if find_box_file(n).with_name(RECIPES_FILE).is_file()]
    found = {name: load_recipes(name) for name in names}
    if as_json:
        listed = [{"box": name, "kind": str(kind), **one.model_dump(mode="json", exclude_unset=True)}
                for name, recipes in found.items() for kind, one in recipes.items()]  # fmt: skip
        click.echo(json.dumps(listed, indent=2))
        return
    rows = [(name, kind, *_cells(one)) for name, recipes in found.items() for kind, one in recipes.items()]
    print_table(("BOX", "KIND", "FROM", "BEFORE", "REACHED", "SECONDS"), rows)


@recipe.command()
@BOX_ARGUMENT
@KINDS_ARGUMENT
@QUICK_OPTION
@click.option("--as-pipeline", is_flag=True, help="Print the recipe as YAML for: rdukit job submit --pipeline FILE")
@JSON_OPTION
def show(box_name: str, kinds: Sequence[str], quick: bool, as_pipeline: bool, as_json: bool) -> None:
    """Show the steps of recipes: verbs with parameters and inputs. The default is all kinds of a box.

    Example: rdukit box recipe show uno fine-tune --as-pipeline > uno.yaml

    Example: rdukit box recipe show uno
    """
    from rdukit_modelbox.recipes.run import prepare

    plan = prepare(box_name, [Kind(kind) for kind in kinds], is_quick=quick)
    request = pipeline_of(_title(box_name, kinds), plan.steps)
    if as_json:
        click.echo(json.dumps(request, indent=2))
    elif as_pipeline:
        import yaml

        click.echo(yaml.safe_dump(request, sort_keys=False, default_flow_style=None, width=120), nl=False)
    else:
        print_table(("STEP", "BOX", "VERB", "PARAMETERS", "INPUTS"), map(_row, plan.steps))


@recipe.command()
@BOX_ARGUMENT
@KINDS_ARGUMENT
@QUICK_OPTION
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Folder for outputs [default: recipes/BOX in the home folder]."
)
@JSON_OPTION
def run(box_name: str, kinds: Sequence[str], quick: bool, folder: Path | None, as_json: bool) -> None:
    """Run recipes on this machine, by default all available ones of a box. The same command continues after Ctrl-C.

    Finished steps are not run again. The results are also in FOLDER/KIND.json.

    Example: rdukit box recipe run uno fine-tune

    Example: rdukit box recipe run logreg train --quick
    """
    from rdukit_modelbox.cli.call import ProgressBars
    from rdukit_modelbox.recipes.run import prepare, run_plan, summarise

    plan = prepare(box_name, [Kind(kind) for kind in kinds], is_quick=quick)
    name = load_box(find_box_file(box_name)).name
    place = folder or home_folder() / "recipes" / f"{name}{'-quick' if quick else ''}"
    with ProgressBars(is_quiet=as_json) as bars:
        results = run_plan(plan, place, lambda step: _listen(bars, step))
    summaries = [summarise(plan, kind, results) | {"quick": quick} for kind in plan.kinds]
    for one in summaries:
        write_json_atomic(place / f"{one['kind']}.json", one)
    if as_json:
        click.echo(json.dumps(summaries, indent=2))
        return
    recipes = load_recipes(box_name)
    print_tables(_table(one, {} if quick else recipes[Kind(one["kind"])].reached) for one in summaries)


def _listen(bars: "ProgressBars", step: RecipeStep) -> "Listener":
    from rdukit_modelbox.operations.supervisor import Listener

    return Listener(
        lambda progress: bars.tell(progress.to_json(), f"{step.name} "), lambda line: bars.log(f"{step.name}: {line}")
    )


def _cells(one: Recipe) -> tuple[str, str, str, str]:
    if one.unavailable is not None:
        return "–", "–", one.unavailable, "–"
    seconds = "–" if one.seconds is None else plain(one.seconds)
    return one.checkpoint or "–", _figures(one.before), _figures(one.reached), seconds


def _row(step: RecipeStep) -> tuple[str, str, str, str, str]:
    given = " ".join(f"{name}={plain(value)}" for name, value in step.parameters.items())
    fed = " ".join(f"{slot}={source}" for slot, source in step.inputs.items())
    return step.name, step.box, str(step.verb), given or "–", fed or "–"


def _figures(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {plain(value)}" for name, value in figures.items()) or "–"


def _table(summary: Mapping[str, Any], stated: Mapping[str, float]) -> Table:
    before = summary.get("before", {})
    rows = [
        (name, plain(before[name]) if name in before else "–", plain(value),
         plain(stated[name]) if name in stated else "–")
        for name, value in summary["reached"].items()
    ]  # fmt: skip
    more = [("seconds", "–", f"{summary['seconds']:.1f}", "–")]
    if "trained_parameters" in summary:
        more.append(("trained parameters", "–", f"{summary['trained_parameters']:,}", "–"))
    more += [(slot, "–", path, "–") for slot, path in summary["outputs"].items()]
    title = f"{summary['box']} {summary['kind']}{' (quick: the figures mean nothing)' if summary['quick'] else ''}"
    return Table(title, ("WHAT", "BEFORE", "REACHED", "RECIPE SAYS"), tuple(rows + more))


def _title(box: str, kinds: Iterable[str]) -> str:
    return f"{load_box(find_box_file(box)).name} {' '.join(kinds) or 'recipes'}"

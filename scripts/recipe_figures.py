"""Write the figures that recipes reached into the boxes' ``recipes.yaml``.

``rdukit box recipe run BOX --folder FOLDER/BOX`` first, for each box, then ``python scripts/recipe_figures.py FOLDER``.
"""

import argparse
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

import yaml

from rdukit.files.atomic import write_atomic
from rdukit_modelbox.contract.box import BOXES_FOLDER
from rdukit_modelbox.recipes.recipe import RECIPES_FILE, Kind

#: Figures that tell little beside the others of their kind of box, and so are left out.
LEFT_OUT: Final = ("error_p50", "error_p75", "error_p95", "foreground_accuracy")
#: Boxes whose quantiles are what others publish.
WITH_QUANTILES: Final = ("braggnn",)


def with_figures(recipe: Mapping[str, Any], told: Mapping[str, Any], day: str) -> dict[str, Any]:
    """Return a recipe with the results of its run, and the shortest time of its runs (pure)."""
    kept = (told["box"] in WITH_QUANTILES and told["kind"] != Kind.INFER) or len(told["reached"]) == 1
    left_out = () if kept else LEFT_OUT
    figures = {
        key: {name: float(f"{value:.3g}") for name, value in told[key].items() if name not in left_out}
        for key in ("before", "reached")
        if key in told
    }
    more = {"trained_parameters": told["trained_parameters"]} if "trained_parameters" in told else {}
    stale = {"before", "reached", "trained_parameters", "seconds", "measured"}
    asked = {key: value for key, value in recipe.items() if key not in stale}
    seconds = min(float(f"{told['seconds']:.2g}"), recipe.get("seconds", float("inf")))
    return {**asked, **figures, **more, "seconds": seconds, "measured": day}


def format_recipes(recipes: Mapping[str, Any]) -> str:
    """Return recipes as the text of a file: a line for each key of a recipe (pure)."""
    lines = []
    for kind, recipe in recipes.items():
        lines.append(f"{kind}:")
        for key, value in recipe.items():
            text = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False)
            lines.append(f"  {key}: {text.splitlines()[0]}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Copy the figures of each ``BOX/KIND.json`` of the folder, except those of quick runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for file in sorted(parser.parse_args().folder.glob("*/*.json")):
        told = json.loads(file.read_text())
        if told["quick"]:
            continue
        path = BOXES_FOLDER / told["box"] / RECIPES_FILE
        recipes = yaml.safe_load(path.read_text())
        day = date.fromtimestamp(file.stat().st_mtime).isoformat()
        recipes[told["kind"]] = with_figures(recipes[told["kind"]], told, day)
        write_atomic(path, format_recipes(recipes).encode())


if __name__ == "__main__":
    main()

"""Write ``modelboxes/rdukit_modelbox/contract/cards.json``: what the catalog tells about the model of each box.

Numbers of parameters, the cost model's projections for each chip with the box's defaults, and what its recipe reached.
``python scripts/zoo_cards.py`` compiles every box for every chip, in some minutes; with names only those boxes.
"""

import argparse
import importlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from rich.progress import track

from docs import load_recipes
from rdukit.pef import read_pef
from rdukit_modelbox.contract.box import Verb, box_names, find_box_file, load_box
from rdukit_modelbox.contract.cards import FILE
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.contract.models import chosen_sizes, entry_of
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.verbs.compile import figures_of, shape_to_compile
from rdukit_zoo.registry import MODULES

CHIPS: Final = ("sn10", "sn30", "sn40l")


def card_of_box(name: str, recipes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the card of a box, as JSON."""
    box = load_box(find_box_file(name))
    entry = entry_of(box)
    parameters = check_parameters(box, Verb("compile"), {})
    sizes = chosen_sizes(box, entry, parameters)
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in entry.build(**sizes).parameters())
    module = importlib.import_module(f"rdukit_zoo.{MODULES[entry.name]}")
    card: dict[str, Any] = {
        "architecture": str(module.__doc__).partition("\n\n")[0].replace("\n", " "),
        "task": entry.task, "modality": entry.reads, "source": entry.source, "licence": entry.licence,
        "parameters": {"default": count} | {key: value.parameters for key, value in entry.variants.items()},
        "projected": {chip: project(name, chip) for chip in CHIPS},
    }  # fmt: skip
    if name in recipes:
        card["measured"] = {**recipes[name]["reached"], "train_seconds": recipes[name]["seconds"]}
        if entry.output_unit:
            card["unit"] = entry.output_unit
    return card


def project(name: str, chip: str) -> dict[str, Any]:
    """Compile a box's default for a chip, to train if it can; seconds of a step or of a run are the cost model's."""
    box = load_box(find_box_file(name))
    shape = shape_to_compile(box, entry_of(box), check_parameters(box, Verb("compile"), {}))
    with tempfile.TemporaryDirectory() as folder:
        path = ModelProgram(shape, entry=entry_of(box)).compile(name, Path(folder), box.mode, chip, 4)
        figures = figures_of(read_pef(path).pef, 0, shape)
    kept = ("purpose", "batch_size", "precision")
    seconds = float(f"{float(str(figures['projected_step_seconds'])):.3g}")
    return {**{key: figures[key] for key in kept}, "step_seconds": seconds}


def main() -> None:
    """Write the cards of the boxes that are named; others keep theirs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("boxes", nargs="*", help="all unless given")
    asked = parser.parse_args().boxes or box_names()
    known = json.loads(FILE.read_text())
    recipes = load_recipes()
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(RDUKIT_HOME=home, RDUKIT_KERNELS="portable", RDUKIT_NODE="private")
        made = {name: card_of_box(name, recipes) for name in track(asked, "boxes")}
    cards = {name: made.get(name) or known[name] for name in box_names()}
    FILE.write_text(json.dumps(cards, indent=1) + "\n")


if __name__ == "__main__":
    main()

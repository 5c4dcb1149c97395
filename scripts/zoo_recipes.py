"""Follow recipes of docs/zoo.md and train the same in eager torch, from the same start on the same batches.

Prints for each box what held-out data gave on the emulated device and in torch, and the seconds of both trainings:
``python scripts/zoo_recipes.py braggnn dcrnn``. Figures go into ``zoo/rdukit_zoo/recipes.yaml`` by hand.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from docs import load_recipes
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.models import entry_of, read_shape
from rdukit_modelbox.tasks import task_of
from rdukit_modelbox.tasks.program import ModelProgram
from sambaflow.samba import utils
from support.boxes import run_verb


def follow(name: str, recipe: Mapping[str, Any], seed: int, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a recipe and its twin in torch, and return the figures of both; ``seconds`` are those of the training."""
    dataset = run_verb(name, "preprocess", folder / "data", **recipe["preprocess"]).outputs["dataset"]
    pef = run_verb(name, "compile", folder / "pef", precision="f32", **recipe["compile"]).outputs["pef"]
    began = time.perf_counter()
    trained = run_verb(name, "train", folder / "run", {"pef": pef, "dataset": dataset}, seed=seed, **recipe["train"])
    seconds = time.perf_counter() - began
    inputs = {"pef": pef, "dataset": dataset, "checkpoint": trained.outputs["checkpoint"]}
    ours = dict(run_verb(name, "infer", folder / "results", inputs).figures) | {"seconds": seconds}
    lines = [json.loads(line) for line in trained.outputs["metrics"].read_text().splitlines()]
    rates = [line["lr"] for line in lines if "lr" in line]

    box = load_box(find_box_file(name))
    entry, shape = entry_of(box), read_shape(box, pef)
    task = task_of(shape.task)
    program = ModelProgram(shape, seed, entry)  # what the meter asks about the model
    utils.set_seed(seed)
    model = entry.build(**shape.sizes)
    data: Any = task.open_data(entry, shape, dataset)
    optimizer = torch.optim.AdamW(model.parameters(), 1.0, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    began, step, epoch = time.perf_counter(), 0, 0
    while step < len(rates):
        for batch in data.batches(shape.batch_size, seed, epoch, 0):
            optimizer.param_groups[0]["lr"] = rates[step]
            optimizer.zero_grad()
            loss = model(*map(torch.from_numpy, batch))[0]
            loss.backward()
            optimizer.step()
            step += 1
        epoch += 1
    theirs = {"seconds": time.perf_counter() - began}
    model.eval()
    program.load(pef)
    meter: Any = task.meter(program)  # type: ignore[attr-defined]
    program.close()
    losses = []
    with torch.no_grad():
        for count, given in data.held_out("test", shape.batch_size):
            loss, output = model(*(torch.from_numpy(given[key]) for key in program.array_names))
            meter.add(output[:count].numpy(), {key: values[:count] for key, values in given.items()})
            losses += [float(loss)] if count == shape.batch_size else []
    return ours, {"loss": sum(losses) / len(losses), **meter.figures(), **theirs}


def main() -> None:
    """Follow the recipes that are named; all of models with a loss and a figure unless given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("boxes", nargs="*")
    parser.add_argument("--seed", type=int, default=0, help="of the start and of the order of the batches")
    options = parser.parse_args()
    recipes = load_recipes()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("RDUKIT_HOME", f"{folder}/home")
        os.environ["RDUKIT_NODE"] = "private"
        for name in options.boxes or recipes:
            ours, theirs = follow(name, recipes[name], options.seed, Path(folder) / name)
            for key in theirs:
                apart = abs(ours[key] - theirs[key]) / max(abs(theirs[key]), 1e-12)
                print(
                    f"{name:16} {key:20} {ours[key]:10.4g} torch {theirs[key]:10.4g} apart {100 * apart:.2f} %",
                    flush=True,
                )


if __name__ == "__main__":
    main()

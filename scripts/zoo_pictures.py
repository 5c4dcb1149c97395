"""Draw the pictures of the model cards from runs of the boxes, with their captions: ``zoo/rdukit_zoo/pictures``.

``python scripts/zoo_pictures.py braggnn unet2d`` trains both by their recipes, with seed 0, and draws what they say of
held-out data; all boxes take about half an hour on one core. With ``--runs FOLDER`` runs are kept there, and those
that are there already are only drawn.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from pictures.runs import Run, read_run, run_box
from pictures.scenes import draw
from rdukit_modelbox.contract.box import box_names, find_box_file, load_box
from rdukit_modelbox.contract.models import entry_of
from rdukit_zoo.pictures import CAPTIONS, FOLDER


def write_picture(name: str, run: Run) -> None:
    """Draw a run and note its caption."""
    box = load_box(find_box_file(name))
    entry = entry_of(box)
    picture, alt, caption = draw(run, box.title, entry.task)
    (FOLDER / f"{name}.svg").write_text(picture)
    known = json.loads(CAPTIONS.read_text()) if CAPTIONS.exists() else {}
    known[name] = {
        "model": entry.name, "alt": alt, "caption": caption, "seconds": round(run.seconds, 1),
        "reached": {key: float(f"{value:.3g}") for key, value in run.figures.items()},
    }  # fmt: skip
    CAPTIONS.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n")
    print(f"{name:16} {len(picture) / 1024:.1f} KiB", flush=True)


def main() -> None:
    """Run and draw the boxes that are named; all unless given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("boxes", nargs="*")
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("RDUKIT_HOME", f"{folder}/home")
        os.environ["RDUKIT_NODE"] = "private"
        for name in options.boxes or box_names():
            kept = (options.runs or Path(folder, "runs")) / name
            if not (kept / "run.json").exists():
                began = time.perf_counter()
                run_box(name, Path(folder) / name).save(kept)
                print(f"{name:16} ran in {time.perf_counter() - began:.0f} s", flush=True)
            write_picture(name, read_run(kept))


if __name__ == "__main__":
    main()

"""Measure a model of the zoo and write all that the manual and the catalog tell of it, after it was made or changed.

``scripts/zoo_model.py NAME [NAME …]``: differences from eager torch, what its recipes reach, its card, its picture, the
generated pages. Each is a script of its own, which is named as it begins. A small model takes some minutes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rdukit_modelbox.contract.box import box_names, find_box_file, load_box

SCRIPTS: Final = Path(__file__).resolve().parent
RDUKIT: Final = Path(sys.executable).with_name("rdukit")


def commands(model: str, boxes: list[str], runs: Path) -> list[list[str]]:
    """Return what is to be run for a model and its boxes, in this order (pure)."""
    python = sys.executable
    return [
        [python, str(SCRIPTS / "zoo_parity.py"), model],
        *([str(RDUKIT), "box", "recipe", "run", box, "--folder", str(runs / box)] for box in boxes),
        [python, str(SCRIPTS / "recipe_figures.py"), str(runs)],
        [python, str(SCRIPTS / "zoo_cards.py"), *boxes],
        [python, str(SCRIPTS / "zoo_pictures.py"), *boxes],
        [python, str(SCRIPTS / "docs.py")],
    ]


def main() -> None:
    """Run each step of each model; end with the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME")
    for model in parser.parse_args().models:
        boxes = [name for name in box_names() if load_box(find_box_file(name)).model == model]
        if not boxes:
            sys.exit(f"no box has the model {model!r}; `rdukit zoo list` has the models, `rdukit zoo new` begins one")
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {"RDUKIT_HOME": f"{folder}/home", "RDUKIT_NODE": "private"}
            for command in commands(model, boxes, Path(folder) / "runs"):
                print("$", " ".join(command).replace(folder, "…"), flush=True)
                if subprocess.run(command, env=environment, check=False).returncode:
                    sys.exit("that failed; mend it and begin again")


if __name__ == "__main__":
    main()

"""Measure every model of the zoo against eager torch and write ``zoo/rdukit_zoo/parity.json``, which docs/zoo.md shows.

Two small sizes of each model, in O0, O1 and O3: inference, outputs, gradients and a hundred training steps in f32, ten
steps in bf16. All figures are the largest differences over the largest value in torch.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from sambaflow import samba
from support.zoo_parity import SMALL_SIZES, measure_inference, measure_training, trains
from support.zoo_rules import LANGUAGE, unmatched_operators

MODES: Final = ("o0", "o1", "o3")
FILE: Final = Path(__file__).resolve().parents[1] / "zoo" / "rdukit_zoo" / "parity.json"


def measure(name: str) -> dict[str, Any]:
    """Run a model in all modes and precisions, and return the worst of each figure."""
    row: dict[str, Any] = {"infer": 0.0}

    def worst(key: str, value: float) -> None:
        row[key] = max(row.get(key, 0.0), float(f"{value:.1e}"))

    for sizes in SMALL_SIZES[name]:
        for mode in MODES:
            with tempfile.TemporaryDirectory() as folder:
                f32 = {"optim_level": mode, "precision": "f32"}
                forget()
                worst("infer", measure_inference(name, sizes, Path(folder) / "infer", **f32))
                if not trains(name):
                    continue
                forget()
                found = measure_training(name, sizes, Path(folder) / "f32", steps=100, **f32)
                worst(mode, found.losses)
                worst("outputs", found.outputs)
                worst("gradients", found.gradients)
                forget()
                half = measure_training(name, sizes, Path(folder) / "bf16", steps=10, optim_level=mode)
                worst("bf16", half.median_gradient)
                worst("eager_bf16", half.eager_bf16_gradient)
    return row


def rules_of(name: str) -> str:
    """Describe the operators with arithmetic that no fusion rule matches: their number and names."""
    left, carrying = unmatched_operators(name)
    return f"{left.total()} of {carrying}: {', '.join(f'{n} {op}' for op, n in left.most_common())}"


def forget() -> None:
    """Reset the session to that of a new program."""
    samba.session.reset()
    samba.session.options = {}


def main() -> None:
    """Measure and write. Models that are not named keep their figures, except those of fusion rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="*", help="all unless given; `rules` measures what the rules leave, and no model"
    )
    options = parser.parse_args()
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(RDUKIT_HOME=home, RDUKIT_KERNELS="portable", RDUKIT_NODE="private")
        for name in track([n for n in options.models or SMALL_SIZES if n != "rules"], "models"):
            known[name] = measure(name)
        for name in LANGUAGE:
            known[name]["unmatched"] = rules_of(name)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(known[name])}" for name in SMALL_SIZES if name in known)
    FILE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()

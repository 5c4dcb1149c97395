"""Does ``rdukit tune`` find a grid's best with a quarter of its measurements, on real models of the zoo? ::

    python benchmarks/programs/bench_tune.py [--models lenet,gpt2] [--rounds 5] [--studies 20] [--live] [--json FILE]

Each model has a grid of 48 points or more. All points are compiled and measured: medians of ``--rounds`` rounds in
which each PEF runs once, in a new order, timed by its thread as ``rdukit tune`` does. On the recorded grid the search
of ``rdukit tune`` runs ``--studies`` times. Its measurement of a point is one of the rounds, by chance; a study is near
if the median of the point that it chooses is at least 0.97 times the best one. Points whose PEFs run the same count
once, and a study gets a quarter of these. Random search with as many measurements is next to it.

``--live`` runs the command ``rdukit tune`` on the program, first with ``--fresh``, then again: the point that the first
run chooses, and the time of the second one as a share of the first.
"""

import argparse
import contextlib
import importlib
import json
import os
import random
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rdukit_bench.comparisons.machine import write_json

from rdukit.cli.tables import print_table
from rdukit.pef.file import read_pef
from rdukit_runtime.engine.machine_limits import load_limits
from rdukit_runtime.tune.measure import measure_step
from rdukit_runtime.tune.search import TuneCandidate, choose_next
from rdukit_runtime.tune.space import Point, Value, list_points, option_words, point_key
from rdukit_runtime.tune.store import digest_of
from rdukit_runtime.tune.study import predict_step

#: Compiles a model of the zoo, whose name and sizes are its options.
PROGRAM: Final = """
import json, sys
from rdukit_zoo.registry import get_model
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args

def options(parser):
    parser.add_argument("--model")
    parser.add_argument("--sizes", type=json.loads)

args = parse_app_args(argv=sys.argv[1:], common_parser_fn=options)
utils.set_seed(0)
entry = get_model(args.model)
sizes = entry.check_sizes(args.sizes)
model = entry.build(**sizes)
samba.from_torch_model_(model)
inputs = entry.make_inputs(args.batch_size, **sizes)
optim = None if args.inference else samba.optim.SGD(model.parameters(), lr=1e-3)
samba.session.compile(model, inputs, optim, name=args.model, inference=args.inference, config_dict=vars(args))
"""
#: The share of the grid's best speed that counts as found.
NEAR: Final = 0.97
_SAMPLE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class TunedModel:
    """A model of the zoo with sizes, the program's other options, and the space to search."""

    name: str
    sizes: Mapping[str, Any]
    options: tuple[str, ...]
    space: Mapping[str, tuple[Value, ...]]
    #: Form of the kernels; native ones take longer to compile.
    kernels: str = "native"

    def begin(self) -> Point:
        """Return the options that the program has as it is, as far as they are searched."""
        return {"batch-size": int(self.options[1]), "optim-level": "o3", "precision": "bf16"}

    def arguments(self) -> list[str]:
        """Return the arguments of the program."""
        return ["--model", self.name, "--sizes", json.dumps(self.sizes), *self.options]


_MODES: Final = ("o0", "o1", "o3")
_PRECISIONS: Final = ("bf16", "f32")
_TEXT: Final = {"width": 64, "layers": 1, "vocabulary": 512, "context_length": 32}
MODELS: Final = (
    TunedModel("lenet", {}, ("-b", "8", "--log-level", "error"), {
        "batch-size": (4, 8, 16, 32, 64, 96, 128, 256), "optim-level": _MODES, "precision": _PRECISIONS,
    }, "portable"),
    TunedModel("mlp", {"num_features": 64, "hidden_size": 512}, ("-b", "64", "--log-level", "error"), {
        "batch-size": (16, 32, 64, 128, 256, 512, 768, 1024), "optim-level": _MODES, "precision": _PRECISIONS,
    }),
    TunedModel("gpt2", {**_TEXT, "prompt_length": 8}, ("-b", "2", "--inference", "--log-level", "error"), {
        "batch-size": (1, 2, 4, 8), "optim-level": _MODES, "precision": _PRECISIONS, "weight-dtype": (None, "int8"),
    }, "portable"),
    TunedModel("bert_classifier", _TEXT, ("-b", "4", "--inference", "--log-level", "error"), {
        "batch-size": (1, 2, 3, 4, 6, 8, 12, 16), "optim-level": _MODES, "precision": _PRECISIONS,
    }, "portable"),
    TunedModel("unet2d", {"image_size": 16, "init_features": 4}, ("-b", "2", "--inference", "--log-level", "error"), {
        "batch-size": (2, 3, 4, 6, 8, 12, 16, 24), "optim-level": _MODES, "precision": _PRECISIONS,
    }, "portable"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GridPoint:
    """A point that compiles. ``rounds``: samples/s of each round; those of a digest are the same."""

    point: Point
    digest: str
    predicted: float
    rounds: tuple[float, ...]


def compile_grid(model: TunedModel, folder: Path) -> dict[int, Path]:
    """Compile all points, each in a fork that has imported everything; return the PEFs by the point's number."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    found = {}
    for number, point in enumerate(list_points(model.space)):
        own = ["--output-folder", str(folder), "--pef-name", f"p{number}"]
        words = [str(program), "compile", *model.arguments(), *option_words(point), *own]
        path = folder / f"p{number}" / f"p{number}.pef"
        if not path.exists() and _run_forked(program, words):
            print(f"{model.name} {option_words(point)}: does not compile", file=sys.stderr)
        else:
            found[number] = path
    return found


def _run_forked(program: Path, words: Sequence[str]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with open(os.devnull, "w") as silent:
                os.dup2(silent.fileno(), 1)
            sys.argv = list(words)
            runpy.run_path(str(program), run_name="__main__")
            program.with_name("modules.json").write_text(json.dumps(sorted(sys.modules)))
            status = 0
        except SystemExit as end:
            status = 0 if end.code in {None, 0} else 1
        except Exception as error:  # noqa: BLE001 - the fork ends here
            print(str(error)[:300], file=sys.stderr)
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if (loaded := program.with_name("modules.json")).exists():  # for the next forks
        for name in json.loads(loaded.read_text()):
            with contextlib.suppress(Exception):
                name in sys.modules or importlib.import_module(name)
        loaded.unlink()
    return status


def measure_grid(model: TunedModel, pefs: Mapping[int, Path], rounds: int) -> list[GridPoint]:
    """Measure every PEF once in each round; of PEFs that run the same, the first."""
    points, limits = list_points(model.space), load_limits()
    loaded = {number: read_pef(path) for number, path in pefs.items()}
    digests = {number: digest_of(each.pef) for number, each in loaded.items()}
    firsts = {digest: number for number, digest in reversed(digests.items())}
    speeds: dict[str, list[float]] = {digest: [] for digest in firsts}
    for turn in range(rounds):
        order = sorted(firsts)
        random.Random(turn).shuffle(order)
        for digest in order:
            number = firsts[digest]
            speeds[digest].append(_batch_of(points[number], model) / measure_step(pefs[number], _SAMPLE_S))
    found = []
    for number, digest in digests.items():
        predicted = _batch_of(points[number], model) / predict_step(loaded[number], limits, model.kernels)
        found.append(GridPoint(points[number], digest, predicted, tuple(speeds[digest])))
    return found


def _batch_of(point: Point, model: TunedModel) -> int:
    return int(point.get("batch-size") or model.options[1])


def replay(grid: Sequence[GridPoint], begin: Point, seed: int, most: int) -> tuple[float, float, int]:
    """Search on the recorded grid as the command does: the program as it is first, the best two points twice.

    Args:
        begin: the point that is the program as it is.
    Returns:
        The found share of the best, random search's, and the measurements.
    """
    draw = random.Random(seed)
    truth = {each.digest: median(each.rounds) for each in grid}
    taken = {each.digest: draw.sample(each.rounds, 2) for each in grid}
    candidates = [TuneCandidate(each.point, each.digest, each.predicted) for each in grid]
    first = next(each.digest for each in grid if all(each.point.get(name) == value for name, value in begin.items()))
    measured = {first: taken[first][0]}
    while len(measured) < most - 2 and (chosen := choose_next(candidates, measured)) is not None:
        measured[chosen.digest] = taken[chosen.digest][0]
    used = len(measured) + 2
    for digest in sorted(measured, key=lambda digest: -measured[digest])[:2]:
        measured[digest] = max(taken[digest])
    chance = {digest: taken[digest][0] for digest in draw.sample(sorted(truth), most)}
    best = max(truth.values())
    found, lucky = (max(each, key=lambda digest: each[digest]) for each in (measured, chance))
    return truth[found] / best, truth[lucky] / best, used


def live(model: TunedModel, grid: Sequence[GridPoint], folder: Path) -> dict[str, float]:
    """Run ``rdukit tune`` twice; return the share of the grid's best, and the times of both runs in seconds."""
    tries = [f"--try={name}={','.join(_word(v) for v in values)}" for name, values in model.space.items()]
    command = [str(Path(sys.executable).with_name("rdukit")), "tune", str(folder / "program.py"), *tries, "--json",
               "-o", str(folder / "tuned.yaml"), "--", *model.arguments()]  # fmt: skip
    truth = {point_key(each.point): median(each.rounds) for each in grid}
    speeds = {each.digest: median(each.rounds) for each in grid}
    taken = []
    for fresh in (["--fresh"], []):
        began = time.monotonic()
        done = subprocess.run([*command[:2], *fresh, *command[2:]], check=True, stdout=subprocess.PIPE, cwd=folder)
        taken.append(time.monotonic() - began)
    found = json.loads(done.stdout)
    best = found["best"]
    chosen = next(each for each in found["points"] if each["options"] == best)
    speed = truth.get(point_key(best)) or speeds[chosen["digest"]]
    return {"share": speed / max(truth.values()), "first_s": taken[0], "second_s": taken[1]}


def _word(value: Value) -> str:
    return "" if value is None else str(value)


def bench_model(model: TunedModel, rounds: int, studies: int, is_live: bool, kept: str | None) -> dict[str, Any]:
    """Return the record of a model."""
    os.environ["RDUKIT_KERNELS"] = "portable" if model.kernels == "portable" else "auto"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(kept or scratch) / model.name
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        pefs = compile_grid(model, folder)
        compiled_s = time.monotonic() - began
        grid = measure_grid(model, pefs, rounds)
        measured_s = time.monotonic() - began - compiled_s
        digests = {each.digest for each in grid}
        most = len(digests) // 4
        found = [replay(grid, model.begin(), seed, most) for seed in range(studies)]
        record = {
            "model": model.name, "points": len(list_points(model.space)), "different": len(digests), "most": most,
            "near": sum(share >= NEAR for share, _, _ in found) / studies, "worst": min(share for share, _, _ in found),
            "random_near": sum(share >= NEAR for _, share, _ in found) / studies,
            "used": median(used for _, _, used in found), "compiled_s": compiled_s, "measured_s": measured_s,
            "load": os.getloadavg()[0],
            "grid": [{"options": dict(e.point), "digest": e.digest, "predicted": e.predicted, "rounds": e.rounds}
                     for e in grid],
        }  # fmt: skip
        print({key: value for key, value in record.items() if key != "grid"}, file=sys.stderr, flush=True)
        if is_live:
            record["live"] = live(model, grid, folder)
    return record


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="names, separated by commas; default: all five")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--keep", metavar="FOLDER", help="keep PEFs, and use those of an earlier run")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error(f"--rounds {args.rounds}: expected 2 or more, since the best two points are measured twice")
    torch.set_num_threads(1)
    names = args.models.split(",") if args.models else [model.name for model in MODELS]
    records = [bench_model(m, args.rounds, args.studies, args.live, args.keep) for m in MODELS if m.name in names]
    rows = []
    for record in records:
        ran = record.get("live", {})
        second = f"{ran['second_s'] / ran['first_s']:.1%} of {ran['first_s']:.0f} s" if ran else ""
        rows.append((
            record["model"], f"{record['points']}, {record['different']} different", f"{record['most']}",
            f"{record['near']:.0%}", f"{record['worst']:.3f}", f"{record['random_near']:.0%}",
            f"{ran['share']:.3f}" if ran else "", second, f"{record['load']:.1f}",
        ))  # fmt: skip
    columns = ("model", "points", "measured", "near", "worst", "random near", "live", "second study", "load")
    print_table(columns, rows)
    if args.json:
        write_json(args.json, {"rounds": args.rounds, "studies": args.studies, "records": records})


if __name__ == "__main__":
    main()

"""Run the vendor's public programs unmodified, each command in a fresh process, and print what came of it.

    python scripts/programs/run.py --programs FOLDER [--path FOLDER] [--only TEXT] [--variants 6 --seed 1]
        [--write docs/programs.md]

FOLDER holds checkouts of the tutorials and the model zoo repositories, in folders ``tutorials`` and ``modelzoo``. What
the programs import beside this package is installed below ``build/programs`` first, and small inputs are made there.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from first_difference import Fork
from plan import MODELZOO, TUTORIALS, CheckFailed, Context, Step, steps
from rich.console import Console
from rich.table import Table
from variants import VARIANTS, sample

ROOT: Final = Path(__file__).resolve().parents[2]
MNIST: Final = ROOT / "zoo" / "rdukit_zoo" / "datasets" / "mnist10k"
STEP_TIMEOUT_S: Final = 600
REPOSITORIES: Final = (TUTORIALS, MODELZOO)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one step. ``exit_status`` is -1 after the time limit."""

    step: Step
    exit_status: int
    is_good: bool
    found: str
    seconds: float


def main() -> int:
    """Run the programs; return 0 if every command exits 0 and its check holds."""
    args = _arguments()
    work = ROOT / "build" / "programs"
    site = _install(work / "site")
    paths = [*(str(path.resolve()) for path in args.path), str(site)]
    materials = work / "materials"
    console = Console()
    environment = _environment(paths, work)
    _make_materials(materials, environment)
    out = Path(tempfile.mkdtemp(prefix="run-", dir=work))
    context = Context(args.programs.resolve(), materials, out, find_fork=_fork_finder(environment))
    asked = [*steps(), *sample(args.variants, args.seed)]
    chosen = [step for step in asked if args.only in step.name and (context.programs / step.repository).is_dir()]
    if not chosen:
        console.print(f"nothing to run: {context.programs} has no {' or '.join(REPOSITORIES)}, or --only fits no step")
        return 2
    outcomes: list[Outcome] = []
    try:
        for number, step in enumerate(chosen, 1):
            with console.status(f"{number} of {len(chosen)}: {step.name}"):
                outcomes.append(_run(step, context, environment))
            _report(console, outcomes[-1], context)
    finally:
        console.print(_table(outcomes))
        if not args.keep:
            shutil.rmtree(out, ignore_errors=True)
    if args.write is not None:
        args.write.write_text(_page(outcomes))
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="folder with the checkouts")
    parser.add_argument("--path", type=Path, action="append", default=[], help="more folders to import from")
    parser.add_argument("--only", default="", help="only steps whose name contains this")
    parser.add_argument(
        "--variants", type=int, default=6, help=f"variants to draw from {len(VARIANTS)}, each of a few commands"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed that draws the variants")
    parser.add_argument("--write", type=Path, help="write the table to this Markdown page")
    parser.add_argument("--keep", action="store_true", help="keep PEFs, checkpoints and logs")
    return parser.parse_args()


def _install(site: Path) -> Path:
    """Install the programs' libraries into a folder of their own, which leaves the virtual environment unchanged."""
    wanted = Path(__file__).with_name("requirements.txt")
    stamp = site / "requirements.txt"
    if not stamp.is_file() or stamp.read_bytes() != wanted.read_bytes():
        shutil.rmtree(site, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
        subprocess.run([*command, "--requirement", str(wanted)], check=True)
        shutil.copyfile(wanted, stamp)
    return site


def _environment(paths: list[str], work: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "RDUKIT_HOME": str(work / "home"),
        "RDUKIT_KERNELS": os.environ.get("RDUKIT_KERNELS", "portable"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONWARNINGS": "ignore",
        "HYDRA_FULL_ERROR": "1",
    }


def _make_materials(folder: Path, environment: dict[str, str]) -> None:
    script = Path(__file__).with_name("materials.py")
    stamp = folder / "made-by"
    if stamp.is_file() and stamp.read_bytes() == script.read_bytes():
        return
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, str(script), "--out", str(folder), "--mnist", str(MNIST)]
    subprocess.run(command, check=True, env=environment)
    shutil.copyfile(script, stamp)


def _run(step: Step, context: Context, environment: dict[str, str]) -> Outcome:
    places = {"programs": context.programs, "materials": context.materials, "out": context.out}
    argv = [sys.executable, *step.argv.format(**places).split()]
    folder = context.programs / step.repository / step.folder
    paths = [str(context.programs / step.repository), environment["PYTHONPATH"]]
    environment = {**environment, **step.environment, "PYTHONPATH": os.pathsep.join(paths)}
    log = context.out / f"{step.name.replace(' ', '-').replace(',', '')}.log"
    began = time.perf_counter()
    with log.open("wb") as file, subprocess.Popen(
        argv, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:  # fmt: skip
        try:
            status = process.wait(STEP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            _end_session(process)
    seconds = time.perf_counter() - began
    printed = log.read_text(errors="replace")
    context.printed[step.name] = printed
    if status != 0:
        lines = [line for line in printed.splitlines() if line.strip()]
        last = _without_places(lines[-1], context)[:200] if lines else ""
        return Outcome(step, status, False, last, seconds)
    try:
        return Outcome(step, 0, True, step.check(context, printed), seconds)
    except (CheckFailed, KeyError, OSError) as failure:
        return Outcome(step, 0, False, _without_places(str(failure), context), seconds)


def _without_places(text: str, context: Context) -> str:
    """Return a failure's words without places of this machine, which the page would tell."""
    return text.replace(str(context.out), "out").replace(str(context.programs), "programs")


def _fork_finder(environment: dict[str, str]) -> Callable[[Path, str, str, str], Fork | None]:
    """Return a function that calls ``first_difference.py`` in a process with the programs' libraries."""

    def find_fork(model: Path, prompt: str, theirs: str, ours: str) -> Fork | None:
        command = [sys.executable, str(Path(__file__).with_name("first_difference.py")), "--model", str(model)]
        asked = json.dumps({"prompt": prompt, "theirs": theirs, "ours": ours})
        done = subprocess.run(command, input=asked, env=environment, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        return None if found is None else Fork(**found)

    return find_fork


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """End all processes that a program started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _report(console: Console, outcome: Outcome, context: Context) -> None:
    mark = "[green]ok[/]" if outcome.is_good else "[red]FAILED[/]"
    console.print(f"{mark} {outcome.step.name}: {outcome.found} ({outcome.seconds:.1f} s)", highlight=False)
    if not outcome.is_good:
        console.print("\n".join(context.printed[outcome.step.name].splitlines()[-15:]), markup=False, highlight=False)


def _table(outcomes: list[Outcome]) -> Table:
    table = Table("program", "command", "exit", "check", "seconds")
    for outcome in outcomes:
        found = outcome.found if outcome.is_good else f"failed: {outcome.found}"
        row = (outcome.step.repository, outcome.step.name, str(outcome.exit_status), found, f"{outcome.seconds:.1f}")
        table.add_row(*row, style="" if outcome.is_good else "red")
    return table


def _page(outcomes: list[Outcome]) -> str:
    plain = [outcome for outcome in outcomes if not outcome.step.is_variant]
    variants = [outcome for outcome in outcomes if outcome.step.is_variant]
    good = sum(outcome.is_good for outcome in plain)
    lines = [
        "# The vendor's public programs",
        "",
        "<!-- Written by `make conformance PROGRAMS=…`; not by hand. -->",
        "",
        "The public tutorials and the model zoo, run unmodified, each command in a fresh process, on real",
        "handwritten digits and on tiny models with random weights. The check is the program's own figure, or the",
        "same figure of its CPU script. Nothing of the programs is part of this repository: fetch them, then",
        "`make conformance PROGRAMS=folder`, where `folder` holds the checkouts `tutorials` and `modelzoo`.",
        "",
        f"{good} of {len(plain)} commands did what they should.",
        "",
        *_rows(plain),
        "",
    ]
    if variants:
        good = sum(outcome.is_good for outcome in variants)
        lines += [
            "## Variants",
            "",
            "The same programs with other lengths, batches, modes, precisions and chips, on several processes, and in",
            f"the high-density mode O1HD: `scripts/programs/variants.py` has {len(VARIANTS)}, and `VARIANTS=6 SEED=1`",
            f"draw some. Of these, {good} of {len(variants)} commands did what they should.",
            "Where the CPU script fails, too, the option does not fit the model in the program's own code.",
            "",
            *_rows(variants),
            "",
        ]
    lines += [
        "Seconds are wall clock on two shared cores with portable kernels, imports included; they are no benchmark.",
        "torchvision's wheel is built for a torch with CUDA: beside a CPU torch install its CPU wheel, or name a",
        "folder that lets it import with `PATHS=`.",
        "",
    ]
    return "\n".join(lines)


def _rows(outcomes: list[Outcome]) -> list[str]:
    lines = ["| repository | command | exit | check | seconds |", "| --- | --- | --- | --- | --- |"]
    for outcome in outcomes:
        found = (outcome.found if outcome.is_good else f"failed: {outcome.found}").replace("|", "\\|")
        status, seconds = outcome.exit_status, f"{outcome.seconds:.1f}"
        lines.append(f"| {outcome.step.repository} | {outcome.step.name} | {status} | {found} | {seconds} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())

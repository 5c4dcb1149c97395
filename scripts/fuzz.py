"""Compare random modules with torch: ``scripts/fuzz.py --seed 1 --count 1000 --mode o3 --kernels native``.

Each seed is a program; ``--seed 17 --count 1`` repeats one. Whatever differs is made smaller and printed as Python,
and kept in ``--keep``. The last lines count how many programs were right, refused (by reason) and wrong. Exit status 1
if one was wrong, or ended in an error that is none of rdukit's.
"""

import argparse
import collections
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fuzzing.generate import generate
from fuzzing.programs import class_text, script_text
from fuzzing.sweep import shrink_failure, simplest_way, sweep
from fuzzing.trial import Outcome, Verdict, Way, judge_alone


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--count", type=int, default=100, help="how many seeds (default 100)")
    parser.add_argument("--mode", choices=["o0", "o1", "o3"], default="o3")
    parser.add_argument("--kernels", choices=["portable", "native"], default="portable")
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    parser.add_argument(
        "--special", action="store_true", help="also run each with NaN, infinity, extremes and others among its inputs"
    )
    parser.add_argument("--check", choices=["on", "off", "full"], default="on", help="the kernel check (default on)")
    parser.add_argument("--quick", action="store_true", help="C++ is optimised little (-O1): more modules in less time")
    parser.add_argument(
        "--trials", type=int, default=200, help="programs tried to make a failure smaller (default 200)"
    )
    parser.add_argument("--shrunk", type=int, default=20, help="failures that are made smaller at most (default 20)")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the programs that fail")
    parser.add_argument("--show", action="store_true", help="print the programs of the seeds, and run none")
    return parser.parse_args()


def show_failure(seed: int, verdict: Verdict, way: Way, folder: Path, arguments: argparse.Namespace) -> None:
    """Print a failure, shrunk; and keep it."""
    program = generate(seed)
    failing = None if verdict.cause == "the process died" else simplest_way(program, verdict, way, folder)
    if failing is not None:
        program = shrink_failure(program, verdict, failing, folder, arguments.trials)
        verdict = judge_alone(program, failing, folder)
    used = failing or way
    print(f"\n=== seed {seed}: {verdict.outcome}, {verdict.cause}; {used.mode} {used.kernels} {used.precision}")
    print("\n".join(f"# {item.name} = {item.text}" for item in program.inputs))
    print(class_text(program))
    print(verdict.detail[-1500:])
    print(
        "alone it is right" if failing is None else "",
        f"again: scripts/fuzz.py --seed {seed} --count 1 --mode {way.mode} --kernels {way.kernels} "
        f"--precision {way.precision}{' --special' if way.special else ''}",
        flush=True,
    )
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        path = arguments.keep / f"seed_{seed}_{used.mode}_{used.kernels}_{used.precision}.py"
        path.write_text(script_text(program, used.mode, used.kernels, used.precision))


def write_quick_compiler(folder: Path) -> str:
    """Write a program that calls the C++ compiler with ``-O1`` in place of ``-O3``; returns its path."""
    path = folder / "g++"
    path.write_text(f'#!/bin/sh\nexec {os.environ.get("CXX") or "g++"} "$@" -O1\n')
    path.chmod(0o755)
    return str(path)


def main() -> int:
    arguments = parse()
    os.environ.setdefault("RDUKIT_NODE", "private")
    os.environ["RDUKIT_KERNEL_CHECK"] = arguments.check
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    if arguments.show:
        print("\n".join(f"# seed {seed}\n{class_text(generate(seed))}" for seed in seeds))
        return 0
    way = Way(arguments.mode, arguments.kernels, arguments.precision, arguments.special)
    counted: collections.Counter[str] = collections.Counter()
    causes: dict[str, list[int]] = collections.defaultdict(list)
    refused = 0
    with tempfile.TemporaryDirectory() as name:
        if arguments.quick:
            os.environ["CXX"] = write_quick_compiler(Path(name))
        for seed, verdict in sweep(seeds, way, Path(name)):
            counted[verdict.outcome] += 1
            refused += len(verdict.refused)
            if verdict.cause:
                causes[f"{verdict.outcome}: {verdict.cause}"].append(seed)
            failed = verdict.outcome in {Outcome.WRONG, Outcome.BARE}
            if failed or verdict.refused:
                lines = (
                    verdict.detail.strip().splitlines()[-1:] if verdict.outcome is Outcome.BARE else [verdict.detail]
                )
                print(
                    f"seed {seed}: {verdict.outcome}: {' '.join(lines)[:400]} {'; '.join(verdict.refused)}", flush=True
                )
            if failed and sum(n for o, n in counted.items() if o in {Outcome.WRONG, Outcome.BARE}) <= arguments.shrunk:
                show_failure(seed, verdict, way, Path(name), arguments)
    judged = sum(counted.values()) - counted[Outcome.ILLEGAL]
    counts = ", ".join(f"{counted[outcome]} {outcome}" for outcome in Outcome)
    print(f"\n{way.mode} {way.kernels} {way.precision}: {judged} modules ({counts})")
    for cause, found in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"{len(found):6d} {cause} (seeds {', '.join(map(str, found[:5]))})")
    if way.kernels == "native":
        print(f"{refused:6d} sections refused by the kernel check ({arguments.check})")
    return 1 if counted[Outcome.WRONG] or counted[Outcome.BARE] else 0


if __name__ == "__main__":
    sys.exit(main())

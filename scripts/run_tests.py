"""Run the tests in concurrent parts: ``scripts/run_tests.py [OPTION …] [arguments of pytest]``.

Without an option it is the short tier, which shows each feature once; ``--all`` has the cases marked ``long``, too.
``--changed [--base REVISION]`` runs the short cases nearest to what differs from a revision, for about two minutes;
``--layer NAME`` only a layer of a tier. ``RDUKIT_TEST_RECORDS=FOLDER`` keeps what each case took.

Two parts more than there are cores run at a time; whoever is done takes the next. What a part says comes as a whole,
when it has ended (or is stopped). What failed beside others is repeated once with the machine to itself, a few tests at
most: what fails again fails, and what passes then is reported as flaky. At the end it says where the time went, what
was skipped and how a failure is repeated. With a path among the arguments, or on one core, it is one pytest as usual.
"""

import argparse
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

from suite.changed import choose_files
from suite.plan import LONG, Part, all_files, layer_of, plan, short_files
from suite.records import Case, file_times, read_cases, report
from suite.running import NOTHING_CHOSEN, PYTEST, SOME_FAILED, choose_status, repeat, run_beside, total

TREE = Path(__file__).resolve().parents[1]
#: Parts at once beside one for each core.
MORE_AT_ONCE = 2
#: State folder that tests of the compiler share: what is measured or built there once serves all parts, and later runs.
HOME = "RDUKIT_TEST_HOME"
RECORDS = "RDUKIT_TEST_RECORDS"
#: What a kernel is made from: with other files other kernels are to be built, and none of before is used.
KERNEL_SOURCES = ("compiler/rdukit_compiler", "runtime/rdukit_runtime", "core/rdukit/pef")
#: Homes of earlier sources that stay.
HOMES_KEPT = 2


def names_path(argument: str) -> bool:
    """Return whether an argument says which files are to be run."""
    return not argument.startswith("-") and Path(argument.split("::")[0]).exists()


def kept_folder() -> Path:
    """Return the folder of what later runs go on with; it goes with the virtual environment."""
    return Path(os.environ.get("VENV") or ".venv").absolute() / "rdukit-tests"


def kernel_home(folder: Path) -> Path:
    """Return the home whose kernels fit the compiler as it is and this processor; older ones but a few are removed."""
    digest = hashlib.sha256(platform.machine().encode())
    for root in KERNEL_SOURCES:
        for path in sorted((TREE / root).rglob("*")):
            if path.suffix in {".py", ".h", ".cpp", ".yaml", ".txt"}:
                digest.update(f"{path.relative_to(TREE)}\0".encode() + path.read_bytes())
    home = folder / f"home-{digest.hexdigest()[:16]}"
    home.mkdir(parents=True, exist_ok=True)
    home.touch()
    homes = sorted(folder.glob("home-*"), key=lambda path: path.stat().st_mtime)
    for old in homes[:-HOMES_KEPT]:
        subprocess.run(["rm", "-rf", str(old)], check=False)
    return home


@dataclass(slots=True)
class Times:
    """Times of earlier runs: core-seconds of each file, seconds of each tier."""

    files: dict[str, float] = field(default_factory=dict)
    tiers: dict[str, float] = field(default_factory=dict)


def read_times(file: Path) -> Times:
    """Return the times of earlier runs; empty without any."""
    try:
        return Times(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return Times()


def keep_times(file: Path, cases: list[Case], tier: str, seconds: float) -> None:
    """Keep what a run took, beside what is known of others."""
    times = read_times(file)
    times.files |= file_times(cases)
    times.tiers[tier] = round(seconds)
    part = file.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(asdict(times), indent=0, sort_keys=True))
    part.replace(file)


def run(
    parts: list[Part], arguments: list[str], at_once: int, is_short: bool = True, run_s: float = 0.0
) -> tuple[int, list[Case]]:  # fmt: skip
    """Run all parts, then what failed. Prints the report; returns the exit status and the cases."""
    began = time.monotonic()
    with ExitStack() as stack:
        records = os.environ.get(RECORDS) or stack.enter_context(tempfile.TemporaryDirectory(prefix="rdukit-records-"))
        environment = {RECORDS: records}
        ended = run_beside(parts, arguments, at_once, environment, run_s)
        line, statuses = total([each.output for each in ended]), {each.part.name: each.status for each in ended}
        if choose_status([*statuses.values()]) == SOME_FAILED:
            failed = [each.part for each in ended if each.status not in (0, NOTHING_CHOSEN)]
            again = repeat(failed, arguments, environment)
            line += "".join(f"; repeated alone: {total([each.output])}" for each in again)
            statuses |= {each.part.name: each.status for each in again}
        cases = read_cases(Path(records))
    core_s: dict[str, float] = {}
    for each in ended:
        layer = layer_of(each.part.files[0])
        core_s[layer] = core_s.get(layer, 0.0) + each.core_s
    print("\n".join(report(cases, core_s, is_short)))
    print(f"test: {line} in {time.monotonic() - began:.0f} s")
    return choose_status([*statuses.values()]), cases


def choose_parts(options: argparse.Namespace, times: dict[str, float]) -> list[Part]:
    """Return the parts of the tier, or of what a change touches, and say what was chosen."""
    if not options.changed:
        files = all_files() if options.all else short_files()
        return plan(
            [file for file in files if layer_of(file) in (options.layer or [layer_of(file)])], options.all, times
        )
    changed, choice = choose_files(options.base, times)
    left = f"; make test has {len(choice.left)} more that are further away" if choice.left else ""
    print(f"test: {len(changed)} changed files, {len(choice.chosen)} files of tests are nearest{left}", flush=True)
    return plan(choice.chosen, False, times)


def stop(number: int, frame: object) -> NoReturn:
    """Interrupt the run, as Ctrl-C does."""
    raise KeyboardInterrupt


def main(words: list[str]) -> int:
    """Run the tests; return the exit status."""
    os.chdir(TREE)
    parser = argparse.ArgumentParser(description="Run the tests.", add_help=False, allow_abbrev=False)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--base", default="")
    parser.add_argument("--layer", action="append")
    options, arguments = parser.parse_known_args(words)
    kept = kept_folder()
    os.environ.setdefault(HOME, str(kernel_home(kept)))
    cores = len(os.sched_getaffinity(0))
    if any(names_path(argument) for argument in arguments):
        return subprocess.run([*PYTEST, *arguments], check=False).returncode
    tier = [] if options.all else ["-m", f"not {LONG}"]
    if cores < 2:
        return subprocess.run([*PYTEST, *tier, *arguments], check=False).returncode
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    times_file = kept / "times.json"
    times = read_times(times_file)
    parts = choose_parts(options, times.files)
    if not parts:
        print("test: no test is near to what was changed")
        return 0
    name = "all" if options.all else "changed" if options.changed else "short"
    began = time.monotonic()
    try:
        status, cases = run(
            parts, [*tier, *arguments], cores + MORE_AT_ONCE, name == "short", times.tiers.get(name, 0.0)
        )
    except KeyboardInterrupt:
        return 130
    if not arguments and not options.layer:
        keep_times(times_file, cases, name, time.monotonic() - began)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""All tests, in parts that run side by side: ``scripts/test.py [arguments of pytest]``.

Each part is a pytest of its own with files of one folder. Two parts more than there are cores run at a time, by turns
of a kind that mostly waits for processes that it starts and of one that computes; whoever is done takes the next, so
that none is left over at the end. What a part says comes as a whole, when it has ended (or is stopped); the last line
counts all.

What failed beside others is repeated once with the machine to itself, a few tests at most: what fails again fails, and
what passes then is told as flaky. With a path among the arguments, or on one core, it is one pytest as usual.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

#: Folder of tests → parts that its files are dealt to, in the order in which they start: what takes longest is first.
#: Each part imports anew what its tests need, six seconds of a core. These mostly wait …
WAITING = {"tests/integration": 8, "tests/browser": 1, "tests/engine": 1}
#: … and these compute: they take what the others leave of the cores.
COMPUTING = {"tests/conformance": 6, "tests/unit": 1, "tests/security": 2}
#: Parts at once beside one for each core.
MORE_AT_ONCE = 2
PYTEST = [str(Path(sys.executable).with_name("pytest")), "-q"]
#: State folder that tests of the compiler share: what is measured or built there once serves all parts.
HOME = "RDUKIT_TEST_HOME"
#: What pytest counts, in the order in which it is told here.
COUNTED = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "error")
SOME_FAILED, NOTHING_CHOSEN = 1, 5
#: Failures that are repeated at most: of more it is not a busy machine that is at fault.
REPEATED = 10


@dataclass(frozen=True, slots=True)
class Part:
    """Files that one pytest runs."""

    name: str
    files: list[str]


@dataclass(frozen=True, slots=True)
class Ended:
    """Part that has run: its exit status, and the lines that it said."""

    part: Part
    status: int
    output: list[str]


def deal(folder: str, files: list[str], count: int) -> list[Part]:
    """Split a folder's files into parts: neighbours by name, which are often alike, come to different ones."""
    files = sorted(files)
    parts = [Part(f"{folder} {i + 1}/{count}" if count > 1 else folder, files[i::count]) for i in range(count)]
    return [part for part in parts if part.files]


def mix(first: list[Part], second: list[Part]) -> list[Part]:
    """Return the parts of both in their order, spread so that any stretch has of both what the whole has."""
    placed = [((i + 0.5) / len(parts), part) for parts in (first, second) for i, part in enumerate(parts)]
    return [part for _, part in sorted(placed, key=lambda each: each[0])]


def plan() -> list[Part]:
    """Return parts with all test files, each in one of them."""

    def parts_of(folders: dict[str, int]) -> list[Part]:
        found = {folder: [str(path) for path in Path(folder).rglob("test_*.py")] for folder in folders}
        return [part for folder, count in folders.items() for part in deal(folder, found[folder], count)]

    return mix(parts_of(WAITING), parts_of(COMPUTING))


def names_path(argument: str) -> bool:
    """Return whether an argument says which files are to be run."""
    return not argument.startswith("-") and Path(argument.split("::")[0]).exists()


def count(line: str) -> dict[str, int]:
    """Return what pytest's last line says, ``3 passed, 1 skipped in 0.12s``; nothing of other lines."""
    if not re.search(r" in \d+\.\d+s", line):
        return {}
    found = re.findall(rf"(\d+) ({'|'.join(COUNTED)})s?\b", line)
    return {word: int(number) for number, word in found}


def total(outputs: list[list[str]]) -> str:
    """Return one line for all outputs: of each its last line that counts, after which a program may have said more."""
    counts = [next(filter(None, map(count, reversed(output))), {}) for output in outputs]
    summed = {word: sum(each.get(word, 0) for each in counts) for word in COUNTED}
    return ", ".join(f"{number} {word}" for word, number in summed.items() if number)


def choose_status(statuses: list[int]) -> int:
    """Return the first failure; a part without a chosen test is none, unless the others have none either."""
    failed = [status for status in statuses if status not in (0, NOTHING_CHOSEN)]
    return failed[0] if failed else min(statuses)


def cache_of(part: Part) -> Path:
    """Return where a part remembers its failures, for ``--lf``."""
    return Path(".pytest_cache") / part.name.replace("/", "-").replace(" ", "-")


def read_failures(part: Part) -> list[str]:
    """Return the tests that failed when a part was last run."""
    file = cache_of(part) / "v/cache/lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


class Running:
    """A part at work, in a session of its own: Ctrl-C comes from here, once."""

    def __init__(self, part: Part, arguments: list[str]) -> None:
        self.part = part
        self._began = time.monotonic()
        self._kept: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by tell)
        cache = ["-o", f"cache_dir={cache_of(part)}"]
        # Tests start hundreds of programs: each would compile a thousand modules anew where bytecode is not to be kept.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        # Threads of torch that wait for each other would turn round and round on cores that other parts have work for.
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        self.process = subprocess.Popen(
            [*PYTEST, *cache, *part.files, *arguments], stdout=self._kept, stderr=subprocess.STDOUT,
            start_new_session=True, env=environment,
        )  # fmt: skip

    def tell(self) -> list[str]:
        """Wait for its end and pass on what it has said. Returns the lines."""
        self.process.wait()
        print(f"test: {self.part.name} in {time.monotonic() - self._began:.0f} s", flush=True)
        with self._kept:
            self._kept.seek(0)
            said = self._kept.read()
        sys.stdout.buffer.write(said)
        sys.stdout.buffer.flush()
        return said.decode(errors="replace").splitlines()


def run_beside(parts: list[Part], arguments: list[str], at_once: int) -> list[Ended]:
    """Run all parts, so many at once; returns them in the order in which they ended."""
    waiting, running, ended = list(parts), list[Running](), list[Ended]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(Running(waiting.pop(0), arguments))
            # Any of the children; which one it is, poll finds out: nothing else is started here.
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                output = one.tell()
                ended.append(Ended(one.part, one.process.returncode, output))
    except KeyboardInterrupt:  # they clean up
        for one in running:
            one.process.send_signal(signal.SIGINT)
        for one in running:
            one.tell()
        raise
    return ended


def repeat(failed: list[Part], arguments: list[str]) -> list[Ended]:
    """Run what failed of parts once more, each by itself; nothing where that is much."""
    tests = {part.name: read_failures(part) for part in failed}
    if not all(tests.values()) or sum(map(len, tests.values())) > REPEATED:
        return []
    again = [each for part in failed for each in run_beside([part], [*arguments, "--lf", "--lfnf=none"], 1)]
    for each in again:
        if each.status == 0:
            print(f"test: flaky, failed beside others and passed alone: {', '.join(tests[each.part.name])}")
    return again


def run(parts: list[Part], arguments: list[str], at_once: int) -> int:
    """Run all parts, then what failed; returns the exit status."""
    began = time.monotonic()
    ended = run_beside(parts, arguments, at_once)
    line, statuses = total([each.output for each in ended]), {each.part.name: each.status for each in ended}
    if choose_status([*statuses.values()]) == SOME_FAILED:
        again = repeat([each.part for each in ended if each.status not in (0, NOTHING_CHOSEN)], arguments)
        line += "".join(f"; repeated alone: {total([each.output])}" for each in again)
        statuses |= {each.part.name: each.status for each in again}
    print(f"test: {line} in {time.monotonic() - began:.0f} s")
    return choose_status([*statuses.values()])


def stop(number: int, frame: object) -> NoReturn:
    """As Ctrl-C does."""
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    """The exit status of what was run."""
    os.chdir(Path(__file__).parents[1])
    cores = len(os.sched_getaffinity(0))
    if cores < 2 or any(names_path(argument) for argument in arguments):
        return subprocess.run([*PYTEST, *arguments], check=False).returncode
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="rdukit-tests-") as home:
            os.environ.setdefault(HOME, home)
            return run(plan(), arguments, cores + MORE_AT_ONCE)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

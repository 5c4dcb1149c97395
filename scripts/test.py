"""All tests, in two processes side by side: ``scripts/test.py [arguments of pytest]``.

The first half computes all the time, the second much waits for the processes that it starts; they take equally long.
With a path among the arguments, or on one core, it is one pytest as usual. The first half's words come as they are
said, the second's at its end (or when it is stopped); the last line counts both.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, NoReturn

HALVES = [["tests/unit", "tests/conformance", "tests/engine"], ["tests/integration", "tests/security", "tests/browser"]]
PYTEST = [str(Path(sys.executable).with_name("pytest")), "-q"]
#: What pytest counts, in the order in which it is told here.
COUNTED = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "error")
NOTHING_CHOSEN = 5


def names_path(argument: str) -> bool:
    """Whether an argument says which files are to be run."""
    return not argument.startswith("-") and Path(argument.split("::")[0]).exists()


def count(line: str) -> dict[str, int]:
    """What pytest's last line says, ``3 passed, 1 skipped in 0.12s``; nothing of other lines."""
    if not re.search(r" in \d+\.\d+s", line):
        return {}
    found = re.findall(rf"(\d+) ({'|'.join(COUNTED)})s?\b", line)
    return {word: int(number) for number, word in found}


def total(outputs: list[list[str]]) -> str:
    """One line for what both have said: of each its last line that counts, after which a program may have said more."""
    counts = [next(filter(None, map(count, reversed(output))), {}) for output in outputs]
    summed = {word: sum(each.get(word, 0) for each in counts) for word in COUNTED}
    return ", ".join(f"{number} {word}" for word, number in summed.items() if number)


def choose_status(statuses: list[int]) -> int:
    """The first failure; a half without a chosen test is none, unless the other has none either."""
    failed = [status for status in statuses if status not in (0, NOTHING_CHOSEN)]
    return failed[0] if failed else min(statuses)


def start(half: int, arguments: list[str], output: int | IO[bytes]) -> "subprocess.Popen[bytes]":
    """One half, in a session of its own: Ctrl-C comes from here, once. Each remembers its failures for ``--lf``."""
    cache = ["-o", f"cache_dir=.pytest_cache/{half + 1}"]
    return subprocess.Popen(
        [*PYTEST, *cache, *HALVES[half], *arguments], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )


def run(arguments: list[str]) -> int:
    """Both halves; returns the exit status."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as kept:
        other, one = start(1, arguments, kept), start(0, arguments, subprocess.PIPE)
        lines = []
        try:
            assert one.stdout is not None
            for line in one.stdout:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
                lines.append(line.decode(errors="replace"))
            print("test: waiting for", *HALVES[1], flush=True)
            other.wait()
        except KeyboardInterrupt:  # they clean up
            for process in (one, other):
                process.send_signal(signal.SIGINT)
            raise
        finally:
            statuses = [one.wait(), other.wait()]
            kept.seek(0)
            said = kept.read()
            sys.stdout.buffer.write(said)
            sys.stdout.buffer.flush()
    print(f"test: {total([lines, said.decode(errors='replace').splitlines()])} in {time.monotonic() - began:.0f} s")
    return choose_status(statuses)


def stop(number: int, frame: object) -> NoReturn:
    """As Ctrl-C does."""
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    """The exit status of what was run."""
    os.chdir(Path(__file__).parents[1])
    if (os.cpu_count() or 1) < 2 or any(names_path(argument) for argument in arguments):
        return subprocess.run([*PYTEST, *arguments], check=False).returncode
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        return run(arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

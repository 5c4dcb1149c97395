"""Runs parts side by side, each a pytest in a session of its own, and once more alone what failed."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from suite.plan import Part

PYTEST = [str(Path(sys.executable).with_name("pytest")), "-q"]
#: What pytest counts, in the order in which it is told here.
COUNTED = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "error")
SOME_FAILED, NOTHING_CHOSEN = 1, 5
#: Failures that are repeated at most: of more it is not a busy machine that is at fault.
REPEATED = 10


@dataclass(frozen=True, slots=True)
class Ended:
    """Finished part: its exit status, its printed lines, and its core-seconds."""

    part: Part
    status: int
    output: list[str]
    core_s: float


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
    """Running part, in a session of its own: only this process sends it Ctrl-C, once."""

    def __init__(self, part: Part, arguments: list[str], environment: Mapping[str, str]) -> None:
        self.part = part
        self._began = time.monotonic()
        self._kept: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by end)
        cache = ["-o", f"cache_dir={cache_of(part)}"]
        # Tests start hundreds of programs: each would compile a thousand modules anew where bytecode is not to be kept.
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        # Threads of torch that wait for each other would turn round and round on cores that other parts have work for.
        variables.setdefault("OMP_WAIT_POLICY", "passive")
        self.process = subprocess.Popen(
            [*PYTEST, *cache, *part.files, *arguments], stdout=self._kept, stderr=subprocess.STDOUT,
            start_new_session=True, env={**variables, **environment},
        )  # fmt: skip

    def end(self, progress: str) -> Ended:
        """Wait for its end and print what it has said."""
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        print(f"test: {self.part.name} in {time.monotonic() - self._began:.0f} s{progress}", flush=True)
        with self._kept:
            self._kept.seek(0)
            said = self._kept.read()
        sys.stdout.buffer.write(said)
        sys.stdout.buffer.flush()
        lines = said.decode(errors="replace").splitlines()
        return Ended(self.part, self.process.returncode, lines, usage.ru_utime + usage.ru_stime)


def run_beside(
    parts: list[Part], arguments: list[str], at_once: int, environment: Mapping[str, str], run_s: float = 0.0
) -> list[Ended]:  # fmt: skip
    """Run all parts, so many at once; returns them in the order in which they ended.

    Args:
        run_s: seconds that all took last time, for the estimate of what is left; 0: unknown.
    """
    waiting, running, ended = list(parts), list[Running](), list[Ended]()
    began = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(Running(waiting.pop(0), arguments, environment))
            # Any of the children; which one it is, the loop finds out: nothing else is started here.
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            for one in [one for one in running if has_exited(one.process.pid)]:
                running.remove(one)
                left_s = run_s - (time.monotonic() - began)
                left = f", some {left_s / 60:.0f} min left" if left_s > 30 and (waiting or running) else ""
                ended.append(one.end(f" ({len(ended) + 1} of {len(parts)} parts{left})" if len(parts) > 1 else ""))
    except KeyboardInterrupt:  # they clean up
        for one in running:
            one.process.send_signal(signal.SIGINT)
        for one in running:
            one.end(", interrupted")
        raise
    return ended


def has_exited(pid: int) -> bool:
    """Return whether a child has ended; it stays to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def repeat(failed: list[Part], arguments: list[str], environment: Mapping[str, str]) -> list[Ended]:
    """Run what failed of parts once more, each by itself; nothing where that is much."""
    tests = {part.name: read_failures(part) for part in failed}
    if not all(tests.values()) or sum(map(len, tests.values())) > REPEATED:
        return []
    alone = [*arguments, "--lf", "--lfnf=none"]
    again = [each for part in failed for each in run_beside([part], alone, 1, environment)]
    for each in again:
        if each.status == 0:
            print(f"test: flaky, failed beside others and passed alone: {', '.join(tests[each.part.name])}")
    return again

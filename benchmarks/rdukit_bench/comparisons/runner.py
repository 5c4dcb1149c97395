"""Run comparisons, each in a process group of its own, and hand out rows as they come.

The child is ``python -m rdukit_bench.comparisons.runner NAME OPTIONS PARENT`` with the options as JSON: its rows and
its progress go to stdout as JSON lines, everything else to stderr. It does not outlive its parent.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rdukit.cli import exit_on_error
from rdukit.system.process import die_with_parent
from rdukit_bench.comparisons.model import BenchOptions, BenchProgress, ComparisonRow, get_comparison

#: Name of the only member of a line that tells progress instead of a row.
_PROGRESS: Final = "progress"


@dataclass(frozen=True, slots=True)
class ComparisonOutcome:
    """The rows of one comparison. ``error`` is why it ended early, empty if it did not."""

    name: str
    rows: tuple[ComparisonRow, ...]
    error: str = ""


def run_comparisons(
    names: Sequence[str],
    options: BenchOptions,
    on_start: Callable[[str], None],
    on_row: Callable[[ComparisonRow], None],
    on_progress: Callable[[BenchProgress], None],
) -> Iterator[ComparisonOutcome]:
    """Run the comparisons one after the other; one that fails or crashes loses only its later rows.

    ``options.folder`` holds what they compile and a log each. On KeyboardInterrupt the child and all it started are
    killed before it is raised.
    """
    for name in names:
        on_start(name)
        yield run_one(name, options, on_row, on_progress)


def run_one(
    name: str, options: BenchOptions, on_row: Callable[[ComparisonRow], None],
    on_progress: Callable[[BenchProgress], None],
) -> ComparisonOutcome:  # fmt: skip
    """Run one comparison to its end."""
    log = Path(options.folder) / f"{name}.log"
    command = [
        sys.executable, "-m", "rdukit_bench.comparisons.runner", name, json.dumps(asdict(options)), str(os.getpid()),
    ]  # fmt: skip
    rows: list[ComparisonRow] = []
    with log.open("w") as stderr:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
            env=child_environment(os.environ, options.threads),
        )  # fmt: skip
        with _killed_at_the_end(child):
            assert child.stdout is not None
            for line in child.stdout:
                body = json.loads(line)
                if _PROGRESS in body:
                    on_progress(BenchProgress(**body[_PROGRESS]))
                    continue
                rows.append(ComparisonRow.from_body(body))
                on_row(rows[-1])
            status = child.wait()
    return ComparisonOutcome(
        name, tuple(rows), "" if status == 0 else describe_failure(status, log.read_text(errors="replace"))
    )


def child_environment(environ: Mapping[str, str], threads: int) -> dict[str, str]:
    """Return the environment of a comparison: the OpenMP threads asked for, and Python's bytecode cached."""
    kept = {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def describe_failure(status: int, log: str) -> str:
    """Describe a failure in one line: the signal or status, and the child's last line on stderr."""
    how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it printed nothing")
    return f"{how}: {last}"


@contextmanager
def _killed_at_the_end(child: "subprocess.Popen[str]") -> Iterator[None]:
    try:
        yield
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def main(name: str, options: BenchOptions) -> None:
    """Run the comparison; compilers and peers that print do not mix with the rows."""
    import torch

    rows = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(options.threads)
    for found in get_comparison(name)(options):
        body = {_PROGRESS: asdict(found)} if isinstance(found, BenchProgress) else found.body()
        rows.write(json.dumps(body) + "\n")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[3]))
    with exit_on_error():
        main(sys.argv[1], BenchOptions(**json.loads(sys.argv[2])))

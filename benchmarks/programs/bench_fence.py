"""What does a fence cost: at the start of a box, in a section call, in a training step?

Boxes start in turn, fenced and not; the ratio of the medians is the answer. For calls and steps the same program runs
twice, once in a fence, and the two are asked in turn for a block; both compile their own native kernels. ::

    python benchmarks/programs/bench_fence.py [--json FILE] [--starts 12] [--rounds 21]

Bars: start 1.3, section call and training step 1.02.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from rdukit.errors import Unavailable
from rdukit.fence.probe import what_holds
from rdukit.fence.spec import FenceSpec, Way
from rdukit.fence.start import program_paths, start_fenced
from rdukit_platform.backends.contract import BoxFence, BoxSpec
from rdukit_platform.backends.process import ProcessBackend

UID: Final = 1_900_065_000
BLOCK_S: Final = 0.25
PATIENCE_S: Final = 300.0


def measure_starts(folder: Path, way: Way, count: int) -> dict[str, list[float]]:
    """Seconds from the start of a box to its readiness, in turn."""
    backend = ProcessBackend(records=folder / "records")
    fence = BoxFence(way, "tenant:bench", folder / "home", uid_of(way))
    taken: dict[str, list[float]] = {"unfenced": [], "fenced": []}
    for number in range(2 * count + 2):
        which = ("unfenced", "fenced")[number % 2]
        spec = BoxSpec("logreg", folder / str(number), has_sockets=True, fence=fence if which == "fenced" else None)
        began = time.perf_counter()
        box = backend.start(spec, PATIENCE_S)
        if number > 1:  # the first of each reads files that nobody has read
            taken[which].append(time.perf_counter() - began)
        box.stop()
    return taken


def measure_work(folder: Path, way: Way, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of a section call and of a training step, inside and outside, in turn."""
    with ExitStack() as stack:
        asks = {
            "unfenced": stack.enter_context(side(folder / "outside", None)),
            "fenced": stack.enter_context(side(folder / "inside", way)),
        }
        taken: dict[str, dict[str, list[float]]] = {}
        for question in ("section call", "training step"):
            taken[question] = {which: [] for which in asks}
            for number in range(rounds + 1):
                for which in list(asks) if number % 2 else list(asks)[::-1]:
                    seconds = asks[which](question)
                    if number:
                        taken[question][which].append(seconds)
    return taken


@contextmanager
def side(folder: Path, way: Way | None) -> Iterator[Callable[[str], float]]:
    """Return a process that measures when it is asked, in a fence or not."""
    folder.mkdir()
    command = [sys.executable, __file__, "--side", str(folder)]
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "RDUKIT_HOME": str(folder), "OMP_NUM_THREADS": "1",
        "RDUKIT_NODE": "private", "RDUKIT_KERNELS": "native", "LANG": "C.UTF-8",
    }  # fmt: skip
    with (folder.parent / f"{folder.name}.log").open("w+b") as log:
        if way is None:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        else:
            if way is Way.ROOT:
                os.chown(folder, UID, UID)
            readable = [*program_paths(command), str(Path(__file__).parent)]
            spec = FenceSpec(
                command, environment, str(folder), readable, [str(folder)], uid=uid_of(way), parent=os.getpid()
            )
            process = start_fenced(spec, way, log)
        try:
            with connect(folder / "sock", process, Path(log.name)) as caller, caller.makefile("rw") as lines:

                def ask(question: str) -> float:
                    print(question, file=lines, flush=True)
                    return float(lines.readline())

                yield ask
        finally:
            process.terminate()
            process.wait()


def connect(path: Path, process: "subprocess.Popen[bytes]", log: Path) -> socket.socket:
    """Return a connection to a side, once it has compiled its program."""
    deadline = time.monotonic() + PATIENCE_S
    caller = socket.socket(socket.AF_UNIX)
    while True:
        try:
            caller.connect(str(path))
            return caller
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"a side did not come up: {log.read_text()[-2000:]}") from error
        time.sleep(0.1)


def serve_side(folder: Path) -> None:
    """Compile, then measure a block for each line that is asked."""
    import torch
    from bench_daemon_overhead import compile_program, stepper
    from rdukit_bench.comparisons.section_call import SECTIONS, build_tiny, list_of

    from rdukit_runtime.application import open_application

    torch.set_num_threads(1)
    pef = compile_program("logreg", str(folder))
    with open_application(pef, "fence") as application:
        if not application.native_kernels:
            raise Unavailable("the program has no native kernels")
        run = list_of(build_tiny(), SECTIONS)
        works = {"section call": (run, SECTIONS), "training step": (stepper(application), 1)}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "sock"))
            listener.listen()
            with listener.accept()[0] as connection, connection.makefile("rw") as lines:
                for line in lines:
                    work, units = works[line.strip()]
                    print(measure_block(work) / units, file=lines, flush=True)


def measure_block(work: Callable[[], Any]) -> float:
    """Seconds of one call, over as many as fill a block."""
    began, count = time.perf_counter(), 0
    while (now := time.perf_counter()) - began < BLOCK_S:
        for _ in range(10):
            work()
        count += 10
    return (now - began) / count


def uid_of(way: Way) -> int | None:
    """Return the user inside."""
    return UID if way is Way.ROOT else None


def row(question: str, taken: dict[str, list[float]], bar: float) -> dict[str, Any]:
    """Medians and fastest, and their ratios."""
    medians = {which: statistics.median(values) for which, values in taken.items()}
    fastest = {which: min(values) for which, values in taken.items()}
    pairs = [b / a for a, b in zip(taken["unfenced"], taken["fenced"], strict=True)]
    return {
        "question": question, "rounds": len(pairs), "medians_s": medians, "bar": bar,
        "ratio": medians["fenced"] / medians["unfenced"], "median_of_pair_ratios": statistics.median(pairs),
        "ratio_of_fastest": fastest["fenced"] / fastest["unfenced"],
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--starts", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--side", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        serve_side(options.side)
        return
    from rdukit_bench.comparisons.machine import write_json

    holds = what_holds()
    if holds.way is None:
        raise Unavailable(f"no fence holds here: {holds.why}")
    with tempfile.TemporaryDirectory(prefix="fence-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        os.environ["RDUKIT_HOME"] = str(folder / "installation")
        rows = [row("start of a box", measure_starts(folder, holds.way, options.starts), 1.3)]
        work = measure_work(folder, holds.way, options.rounds)
        rows += [row(question, taken, 1.02) for question, taken in work.items()]
    for one in rows:
        medians = "  ".join(f"{which} {seconds * 1e3:10.4f} ms" for which, seconds in one["medians_s"].items())
        kinds = {"medians": "ratio", "pairs": "median_of_pair_ratios", "fastest": "ratio_of_fastest"}
        ratios = "  ".join(f"{kind} {one[key]:.3f}" for kind, key in kinds.items())
        print(f"{one['question']:15} {medians}  ratio of {ratios}  bar {one['bar']}")
    if options.json:
        write_json(options.json, {"way": holds.way, "rows": rows})


if __name__ == "__main__":
    main()

"""Minutes at half of the peak rate while the process that holds the model is killed again and again.

Every request must get an answer, a result or an error; the box's memory and descriptors must not grow. ::

    python benchmarks/programs/soak_serving.py [--minutes 10] [--kill-every 20] [--concurrency 8] [--json FILE]

The peak is measured first (h2load, the same connections). A slice is the time between two kills; the kill comes in its
middle. Ends with 1 if a request was lost or memory grew.
"""

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench_serving import answers_rightly, prepare, targets_of
from rdukit_bench.comparisons.machine import write_json
from serving_load import Target, put_under_load
from serving_peers import OURS, SERVERS, Files, box_command, free_ports
from serving_process import ServerProcess

#: Growth of the box's own process that counts as flat: the allocator's arenas move a little.
FLAT_SHARE, FLAT_MB = 0.02, 3.0


@dataclass(frozen=True, slots=True)
class Slice:
    """Outcome of the requests between two kills, and the box afterwards."""

    sent: int
    statuses: Mapping[str, int]
    #: Requests whose connection broke or that got no answer.
    lost: int
    slowest_ms: float
    box_mb: float
    descriptors: int


def device_process(server: ServerProcess) -> int | None:
    """Return the process that holds the model, if it lives."""
    for pid in server.processes():
        with contextlib.suppress(OSError):
            if b"rdukit_serving.device.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def run_slice(server: ServerProcess, target: Target, concurrency: int, rate: int, seconds: float) -> Slice:
    """Send at ``rate`` for so long and kill the device process half-way."""
    per_connection = max(1, rate // concurrency)
    count = int(per_connection * concurrency * seconds)

    def kill() -> None:
        pid = device_process(server)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(seconds / 2, kill)
    timer.start()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        body, log = Path(folder, "body"), Path(folder, "log")
        body.write_bytes(target.body)
        command = [
            "h2load", "--h1", "-n", str(count), "-c", str(concurrency), "-m", "1", "-t", "1",
            f"--rps={per_connection}", "-d", str(body), "--log-file", str(log),
        ]  # fmt: skip
        for name, value in target.headers.items():
            command += ["-H", f"{name}: {value}"]
        ended = subprocess.run(
            [*command, target.url], capture_output=True, text=True, timeout=seconds * 5 + 120, check=False
        )
        fields = [line.split() for line in log.read_text().splitlines()] if log.is_file() else []
    timer.join()
    box = server.process.pid
    return Slice(
        count, dict(Counter(field[1] for field in fields)), lost_of(ended.stdout, count),
        max((int(field[2]) / 1000 for field in fields), default=0.0), _resident_mb(box),
        len(os.listdir(f"/proc/{box}/fd")),
    )  # fmt: skip


def lost_of(summary: str, count: int) -> int:
    """Count requests without any answer, by h2load's summary. Pure."""
    found = re.search(r"requests: .*?(\d+) done.*?(\d+) errored, (\d+) timeout", summary)
    if found is None:
        return count
    done, errored, late = map(int, found.groups())
    # "done" has those that broke among them
    return count - done + errored + late


def find_faults(slices: Sequence[Slice]) -> list[str]:
    """Why the run failed; empty if it did not. Memory is compared from the third slice on. Pure."""
    faults = []
    lost = sum(each.lost for each in slices)
    if lost:
        faults.append(f"{lost} requests got no answer")
    settled = slices[2:]
    if len(settled) >= 4:
        third = max(1, len(settled) // 3)
        before = statistics.median(each.box_mb for each in settled[:third])
        after = statistics.median(each.box_mb for each in settled[-third:])
        if after - before > before * FLAT_SHARE + FLAT_MB:
            faults.append(f"the box grew from {before:.1f} to {after:.1f} MB")
        if settled[-1].descriptors > settled[0].descriptors + 2:
            faults.append(f"descriptors grew from {settled[0].descriptors} to {settled[-1].descriptors}")
    return faults


def main() -> int:
    """Run, print a line a slice, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    server = next(each for each in SERVERS if each.name == OURS)
    slices: list[Slice] = []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        pef, checkpoint, expected = prepare(Path(folder))
        files = Files(pef, checkpoint, Path(folder, "box"))
        started = box_command(files, *free_ports(2))
        target = targets_of(server, started)["rest"]
        with ServerProcess.start(
            started.command, started.environment, files.folder, None, lambda: answers_rightly(target, expected)
        ) as process:
            put_under_load(target, options.concurrency, 1)
            rate = int(put_under_load(target, options.concurrency, 3).rate / 2)
            print(f"half of the peak: {rate} requests a second", file=sys.stderr)
            deadline = time.monotonic() + options.minutes * 60
            while time.monotonic() < deadline:
                slices.append(run_slice(process, target, options.concurrency, rate, options.kill_every))
                last = slices[-1]
                print(
                    f"{len(slices):>3}: sent {last.sent}, statuses {last.statuses}, lost {last.lost}, slowest "
                    f"{last.slowest_ms:.0f} ms, box {last.box_mb:.1f} MB, {last.descriptors} descriptors", flush=True
                )  # fmt: skip
            is_right = answers_rightly(target, expected)
    faults = find_faults(slices) + ([] if is_right else ["the last answer was wrong"])
    total: Counter[str] = Counter()
    for each in slices:
        total.update(each.statuses)
    print(f"{sum(each.sent for each in slices)} requests, {len(slices)} kills, statuses {dict(total)}: "
          f"{'; '.join(faults) or 'none lost, memory flat'}")  # fmt: skip
    if options.json:
        write_json(options.json, {"rate": rate, "slices": [asdict(each) for each in slices], "faults": faults})
    return 1 if faults else 0


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1000


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())

"""A storm of fault events on a node daemon, and how the others fare meanwhile: shared by its test and its benchmark."""

import argparse
import json
import random
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import RdukitError
from rdukit.snd import SndClient

#: Classes whose rows are counted up: what a policy turns into a fault, resets and interrupts, and what it does not.
CLASSES: Final = (
    "ddr-correctable", "scratchpad-correctable", "pcie-replay", "d2d-correctable", "tile-hang", "thermal", "fan",
)  # fmt: skip
OPERATIONS: Final = ("hello", "status", "lease")


@dataclass(frozen=True, slots=True)
class FaultLoad:
    """The result of a fault load."""

    #: Events that the daemon said yes to, their sum of ``count``, and events a second that were reached.
    events: int
    counted: int
    rate: float
    #: By operation: milliseconds of each call while the storm lasted.
    latencies_ms: dict[str, list[float]]


def run_fault_load(socket: Path, seconds: float, rate: int, events_a_line: int, seed: int = 1) -> FaultLoad:
    """Let another process inject at ``rate`` events a second while this one uses the daemon as others do."""
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, "--socket", str(socket), "--seconds", str(seconds),
         "--rate", str(rate), "--line", str(events_a_line), "--seed", str(seed)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it has begun
        latencies: dict[str, list[float]] = {name: [] for name in OPERATIONS}
        with SndClient(socket) as client:
            while not select.select([process.stdout], [], [], 0.002)[0]:
                for name, taken in latencies.items():
                    began = time.perf_counter()
                    _use(client, name)
                    taken.append((time.perf_counter() - began) * 1e3)
        said = json.loads(process.stdout.readline())
        process.wait(10)
    finally:
        process.kill()
        process.communicate()
    return FaultLoad(said["events"], said["counted"], said["rate"], latencies)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which ``share`` of them are."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _use(client: SndClient, name: str) -> None:
    if name != "lease":
        client.call(name)
        return
    try:
        client.release(client.acquire("bystander", 1, 1 << 20)["id"])
    except RdukitError as error:
        if error.code not in ("no-resources", "invalid-transition"):  # the storm took the tiles out of service
            raise


def main() -> None:
    """Inject."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--line", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    events = counted = 0
    with SndClient(options.socket) as client:
        print("begun", flush=True)
        began = time.monotonic()
        while (now := time.monotonic() - began) < options.seconds:
            line = [
                {"class": generator.choice(CLASSES), "count": generator.choice((1, 1, 1, 2))}
                for _ in range(options.line)
            ]
            client.call("inject", events=line)
            events += len(line)
            counted += sum(int(event["count"]) for event in line)
            time.sleep(max(0.0, events / options.rate - now))
        rate = events / (time.monotonic() - began)
    print(json.dumps({"events": events, "counted": counted, "rate": rate}), flush=True)


if __name__ == "__main__":
    main()

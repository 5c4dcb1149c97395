"""How long do others wait while ten thousand fault events a second come in, and is each of them counted once?

A process injects at the given rate for ten seconds, in lines of few and of many events; this one asks, leases and
releases meanwhile. Then the counts in memory, in the database, and after kill -9 and a new start are compared with what
the daemon said yes to. ::

    python benchmarks/programs/bench_fault_storm.py [--json FILE] [--seconds 10] [--rate 10000]
"""

import argparse
import contextlib
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from rdukit_bench.comparisons.machine import write_json

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.node.daemons import RunningDaemon, start_daemon, stop_daemon
from support.node.fault_load import percentile, run_fault_load

EVENTS_A_LINE = (20, 100, 1000)
RESTART = "ETYPE_SND_RESTART"


def in_memory(daemon: RunningDaemon) -> int:
    """Errors that the daemon knows of."""
    with daemon.connect() as client:
        rows = client.call("errors")["errors"]
    return sum(row["err_count"] for row in rows if row["err_type"] != RESTART)


def in_database(home: Path) -> int:
    """Errors that are written down."""
    uri = f"{(home / 'snfm/snfm.db').as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        query = "SELECT coalesce(sum(err_count), 0) FROM error WHERE err_type != ?"
        return int(connection.execute(query, (RESTART,)).fetchone()[0])


def measure(seconds: float, rate: int, line: int) -> dict[str, Any]:
    """Measure a storm on a daemon of its own."""
    home = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    try:
        daemon = start_daemon(home, "SN10-8", ["--no-snml"])
        with daemon.connect() as client:
            client.acquire("bystander", 8, 1 << 20)
            storm = run_fault_load(daemon.socket, seconds, rate, line)
        counts = {"acknowledged": storm.counted, "memory": in_memory(daemon), "database": in_database(home)}
        daemon.process.kill()
        daemon.process.communicate()
        daemon = start_daemon(home, "SN10-8", ["--no-snml"])
        counts["after kill -9"] = in_memory(daemon)
        stop_daemon(daemon)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    latencies = {
        name: {
            "calls": len(taken),
            "p50_ms": percentile(taken, 0.5),
            "p99_ms": percentile(taken, 0.99),
            "max_ms": max(taken),
        }
        for name, taken in storm.latencies_ms.items()
    }
    return {"events_a_line": line, "rate": storm.rate, "counts": counts, "latencies": latencies}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=10_000)
    options = parser.parse_args()
    rows = []
    for line in EVENTS_A_LINE:
        row = measure(options.seconds, options.rate, line)
        rows.append(row)
        counts = row["counts"]
        verdict = "agree" if len(set(counts.values())) == 1 else "DIFFER"
        print(f"{line:5} events a line, {row['rate']:7.0f} events/s; counts {verdict}: {counts}")
        for name, figures in row["latencies"].items():
            shown = "  ".join(f"{key} {figures[key]:7.2f}" for key in ("p50_ms", "p99_ms", "max_ms"))
            print(f"      {name:7} {shown}")
    if options.json:
        write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    main()

"""One load client for all servers: h2load, a C program that speaks HTTP/1.1 and, for gRPC, HTTP/2.

It writes microseconds and status of every request; rates and percentiles are taken from those.
"""

import statistics
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: At the beginning, in which all connections are made at once, of every server: requests sent then are in no figure.
CONNECT_MS = 500
#: A shared host changes its speed from one second to the next, by half; within such a time it mostly keeps it.
WINDOW_MS = 500


@dataclass(frozen=True, slots=True)
class Load:
    """Result of a slot of load. ``bad``: requests without status 200; -1: the client did not end.

    ``window_tail``: p99 over p50 of the requests that were sent within ``WINDOW_MS``, the median of all such times.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    answered: int
    bad: int
    window_tail: float = 0.0

    @property
    def tail(self) -> float:
        """p99 over p50."""
        return self.p99_ms / max(self.p50_ms, 1e-9)


@dataclass(frozen=True, slots=True)
class Target:
    """Address and body of requests."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    is_grpc: bool = False


def put_under_load(target: Target, concurrency: int, seconds: int, core: int | None = None) -> Load:
    """``concurrency`` connections, each with one request at a time, for so long.

    Raises:
        FileNotFoundError: h2load is not installed (Debian: nghttp2-client).
    """
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        body, log = Path(folder, "body"), Path(folder, "log")
        body.write_bytes(b"\0" + struct.pack(">I", len(target.body)) + target.body if target.is_grpc else target.body)
        command = [
            *([] if core is None else ["taskset", "-c", str(core)]),
            "h2load", "-D", f"{seconds * 1000 + CONNECT_MS}ms", "-c", str(concurrency), "-m", "1", "-t", "1",
            "-d", str(body), "--log-file", str(log), *([] if target.is_grpc else ["--h1"]),
        ]  # fmt: skip
        for name, value in target.headers.items():
            command += ["-H", f"{name}: {value}"]
        try:
            ended = subprocess.run(
                [*command, target.url], capture_output=True, text=True, timeout=seconds + 30, check=False
            )
        except subprocess.TimeoutExpired:
            return Load(0, 0, 0, 0, -1)
        if not log.is_file():
            raise RuntimeError(f"h2load wrote nothing: {(ended.stdout + ended.stderr).strip()[-300:]}")
        return read_log(log.read_text().splitlines(), seconds)


def read_log(lines: Sequence[str], seconds: int) -> Load:
    """h2load's lines ``start, status, microseconds`` as figures of what was sent after ``CONNECT_MS``. Pure.

    Bad requests count from the beginning.
    """
    fields = [line.split() for line in lines]
    bad = sum(field[1] != "200" for field in fields)
    begun = min((int(field[0]) for field in fields), default=0) + CONNECT_MS * 1000
    sent = [(int(field[0]) - begun, int(field[2])) for field in fields if field[1] == "200" and int(field[0]) >= begun]
    taken = [micros for _, micros in sent]
    if not taken:
        return Load(0, 0, 0, 0, bad)
    windows: dict[int, list[int]] = {}
    for moment, micros in sent:
        windows.setdefault(moment // (WINDOW_MS * 1000), []).append(micros)
    tail = statistics.median(tail_of(window) for window in windows.values())
    return Load(len(taken) / seconds, statistics.median(taken) / 1000, _p99(taken) / 1000, len(taken), bad, tail)


def tail_of(values: Sequence[float]) -> float:
    """Return the 99th percentile over the median. Pure."""
    return _p99(values) / max(statistics.median(values), 1e-9)


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]

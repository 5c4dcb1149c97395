"""A gateway under load of a hostile tenant, and of strangers: another tenant's requests and the memory of the parts.

``python tests/integration/test_gateway_load.py [SECONDS]`` prints the table of ``docs/security.md``.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest

from rdukit_platform.client.http import ApiClient
from rdukit_platform.gateway.body_limits import bound_of
from rdukit_platform.settings import MAX_BODY_BYTES
from support import shows
from support.platform import attacks
from support.platform.attacks import AttackedRoute, AttackPlan, bodies_of, encode, heads_of, targets_of
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = [shows("security", "jobs", "endpoints"), pytest.mark.long]

PARTS: Final = ("gateway", "scheduler", "worker")
#: A neighbour asks so often; several of each kind are enough for a 99th percentile.
PAUSE_S: Final = 0.02
#: Another tenant's 99th percentile: so many seconds, or so many times that without the attacker.
MOST_S, MOST_TIMES = 0.5, 3.0
MORE_BYTES: Final = 256 << 20
BOX: Final = Path(__file__).with_name("platform_box.py")
#: Bodies that an attack has of each route; longer ones than 1 MiB are sent to a few routes only.
ILLEGAL: Final = ("unknown keys", "wrong entries", "deep", "one text", "no JSON")


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of a neighbour's requests, and the most bytes of memory of each part meanwhile."""

    attack: str
    median_s: float
    p99_s: float
    memory: Mapping[str, int]
    statuses: Mapping[str, int]


def memory_of(pid: int) -> int:
    """Return the bytes of memory that a process and its children have."""
    total = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1]) << 10
    return total


@contextmanager
def watched(platform: PlatformUnderTest) -> Iterator[dict[str, int]]:
    """Yield the most memory of each part, as long as the block lasts."""
    most, is_over = dict.fromkeys(PARTS, 0), threading.Event()

    def look() -> None:
        while not is_over.wait(0.1):
            for part in PARTS:
                most[part] = max(most[part], memory_of(platform.pid_of(part)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()


class Tenants:
    """The attacker, its neighbour, and what the attacker has: a job with a long log, an artifact."""

    def __init__(self, platform: PlatformUnderTest) -> None:
        self.platform, self.url = platform, platform.client.url
        self.attacker, self.neighbour = (self._token(name) for name in ("mallory", "alice"))
        with ApiClient(self.url, self.attacker) as client:
            job_id = client.submit("/v1/jobs", {"box": "counter", "verb": "preprocess"})["id"]
            self.names = {"job_id": job_id, "box": "counter", "path": "v1/models", "path:path": "v1/models"}
        self.document = httpx.get(f"{self.url}/openapi.json", timeout=60).json()
        self.definitions = self.document["components"]["schemas"]

    def _token(self, tenant: str) -> str:
        made = self.platform.client.post("/v1/tenants", {"name": tenant})
        path = f"/v1/tenants/{made['id']}/tokens"
        return str(self.platform.client.post(path, {"scopes": ["read", "write"]})["token"])

    def targets(self) -> list[AttackedRoute]:
        """Return every route."""
        return list(targets_of(self.document, self.names))

    def requests(self, kind: str, token: str | None) -> list[tuple[str, str]]:
        """Return a request of a kind to every route, as long as the route takes it."""
        found = []
        for target in self.targets():
            if target.path == "/v1/logout":
                continue  # the attacker would be out
            bound = bound_of(target.method, target.path)
            size = bound if isinstance(bound, int) else MAX_BODY_BYTES.default
            size = 0 if target.method == "GET" else size
            body = bodies_of(kind, target, self.definitions, size) if size else b""
            found.append((heads_of(target, token), body.decode("latin-1")))
        return found

    def ask_as_neighbour(self, seconds: float) -> list[float]:
        """Return how long requests of several kinds took, one after the other."""
        took = []
        headers = {"Authorization": f"Bearer {self.neighbour}"}
        with httpx.Client(base_url=self.url, headers=headers, timeout=60.0) as client:
            asks = (
                lambda: client.get("/v1/me"),
                lambda: client.get("/v1/jobs"),
                lambda: client.post("/v1/jobs/check", json={"box": "counter", "verb": "preprocess"}),
            )
            end, number = time.monotonic() + seconds, 0
            while time.monotonic() < end:
                began = time.monotonic()
                answer = asks[number % len(asks)]()
                took.append(time.monotonic() - began)
                assert answer.status_code == 200, answer.text
                time.sleep(PAUSE_S)
                number += 1
        return took

    def measure(self, name: str, seconds: float, plans: Sequence[AttackPlan]) -> Measured:
        """Attack by all plans at once, and measure the neighbour and the parts meanwhile."""
        attackers = [
            subprocess.Popen([sys.executable, attacks.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in plans
        ]
        try:
            with watched(self.platform) as memory:
                for attacker, plan in zip(attackers, plans, strict=True):
                    assert attacker.stdin is not None
                    attacker.stdin.write(encode(plan).encode())
                    attacker.stdin.close()
                took = sorted(self.ask_as_neighbour(seconds))
            statuses: dict[str, int] = {}
            for attacker in attackers:
                assert attacker.stdout is not None
                statuses |= json.loads(attacker.stdout.read() or b"{}")
                attacker.wait(60)
        finally:
            for attacker in attackers:
                attacker.kill()
                attacker.wait()
                for pipe in (attacker.stdin, attacker.stdout):
                    if pipe is not None:
                        with suppress(OSError):
                            pipe.close()
        return Measured(name, took[len(took) // 2], took[len(took) * 99 // 100], dict(memory), statuses)

    def plan(self, seconds: float, requests: list[tuple[str, str]], connections: int, manner: str) -> AttackPlan:
        """Return a plan against this gateway."""
        place = urlsplit(self.url)
        assert place.hostname is not None and place.port is not None
        return AttackPlan(place.hostname, place.port, seconds, connections, requests, manner)

    def measure_all(self, seconds: float) -> Iterator[Measured]:
        """Yield what comes of each attack, the first being none."""
        yield self.measure("none", seconds, [])
        for kind in ("legal", *ILLEGAL):
            requests = self.requests(kind, self.attacker)
            yield self.measure(f"a tenant: {kind}", seconds, [self.plan(seconds, requests, 16, "fast")])
        public = self.requests("unknown keys", None)
        yield self.measure("strangers: unknown keys", seconds, [self.plan(seconds, public, 16, "fast")])
        logs = [(heads_of(AttackedRoute("GET", f"/v1/jobs/{self.names['job_id']}/logs"), self.attacker), ""),
                (heads_of(AttackedRoute("GET", "/openapi.json"), None), "")]  # fmt: skip
        yield self.measure("slow readers", seconds, [self.plan(seconds, logs, 200, "slow-read")])
        legal = self.requests("one text", self.attacker)
        yield self.measure("slow writers", seconds, [self.plan(seconds, legal, 200, "slow-write")])
        yield self.measure("half heads", seconds, [self.plan(seconds, legal, 800, "idle")])


def table_of(found: Sequence[Measured]) -> str:
    """Return the rows of the manual's table."""
    lines = [
        "| attack | median | 99th percentile | gateway | scheduler | worker |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in found:
        memory = " | ".join(f"{each.memory[part] >> 20} MiB" for part in PARTS)
        lines.append(f"| {each.attack} | {each.median_s * 1e3:.0f} ms | {each.p99_s * 1e3:.0f} ms | {memory} |")
    return "\n".join(lines)


@contextmanager
def attacked_platform() -> Iterator[Tenants]:
    """Run a platform with an attacker and its neighbour."""
    with short_folder() as home, platform_under_test(home, BOX) as platform:
        yield Tenants(platform)


def test_memory_stays_bounded_while_every_route_is_attacked() -> None:
    """How long the neighbour waits is the program's to measure: a busy machine has other times."""
    with attacked_platform() as tenants:
        found = list(tenants.measure_all(6.0))
    idle = found[0]
    large = [
        each.attack for each in found[1:]
        if any(each.memory[part] > 2 * idle.memory[part] + MORE_BYTES for part in PARTS)
    ]  # fmt: skip
    assert large == [], table_of(found)
    assert all(sum(each.statuses.values()) for each in found[1:8]), found


def main() -> None:
    """Print the table."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with attacked_platform() as tenants:
        found: list[Any] = []
        for each in tenants.measure_all(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0):
            found.append(each)
            print(each, file=sys.stderr, flush=True)
    print(table_of(found))
    limit_s = max(MOST_S, MOST_TIMES * found[0].p99_s)
    slow = [each.attack for each in found[1:] if each.p99_s > limit_s]
    print(f"above {limit_s:.2f} s: {', '.join(slow) or 'none'}")


if __name__ == "__main__":
    main()

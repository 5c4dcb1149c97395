"""The first program of a job's Pod: reads the box's variables and limits, checks that the network is closed, and
executes the box.

The program is part of the image and runs before any code of a tenant. Kubernetes closes a Pod's network by policies,
which a cluster without a plugin for them accepts and ignores. Therefore each Pod tests the address of the cluster's
API, which every Pod reaches unless a policy forbids it.
"""

import argparse
import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from rdukit.interfaces import Clock, SystemClock

#: Exit statuses: the network stayed open; it could not be tested.
OPEN: Final = 77
UNTRIED: Final = 78
#: Variables that Kubernetes sets in every container.
API_HOST: Final = "KUBERNETES_SERVICE_HOST"
API_PORT: Final = "KUBERNETES_SERVICE_PORT"
CONNECT_S: Final = 1.0
PAUSE_S: Final = 0.25


def in_pod_command(
    command: Sequence[str],
    variables: Path | None = None,
    processes: int | None = None,
    shut_within_s: float | None = None,
    looks: int = 1,
) -> list[str]:
    """Return the command that runs this program in a container (pure)."""
    called = ["python", "-I", "-m", "rdukit.fence.in_pod"]
    if variables is not None:
        called += ["--variables", str(variables)]
    if processes is not None:
        called += ["--processes", str(processes)]
    if shut_within_s is not None:
        called += ["--shut-within", f"{shut_within_s:g}", "--looks", str(looks)]
    return [*called, "--", *command]


def wait_shut(reaches: Callable[[], bool], within_s: float, looks: int, clock: Clock) -> bool:
    """Wait until ``looks`` successive connections fail; return False if that takes longer than ``within_s`` seconds.

    A network plugin may apply a Pod's policies a moment after the Pod has started.
    """
    deadline, failed = clock.monotonic() + within_s, 0
    while True:
        failed = 0 if reaches() else failed + 1
        if failed >= looks:
            return True
        if not failed and clock.monotonic() >= deadline:
            return False
        clock.sleep(PAUSE_S)


def reaches(host: str, port: int) -> bool:
    """Return whether the port accepts a connection."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError:
        return False
    return True


def take_variables(file: Path) -> dict[str, str]:
    """Read and remove the file with variables, which a Pod's description would show to everybody who may list Pods."""
    variables: dict[str, str] = json.loads(file.read_text())
    file.unlink()
    return variables


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Check the network if asked to, then execute the command; without a command, exit with 0."""
    parser = argparse.ArgumentParser(prog="in_pod", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--variables", type=Path, help="file with the box's environment variables, as a JSON object")
    parser.add_argument("--processes", type=int, help="largest number of processes and threads of its user")
    parser.add_argument("--shut-within", type=float, help="seconds to wait until the network is closed")
    parser.add_argument(
        "--looks", type=int, default=1, help="number of consecutive failed attempts that prove a closed network"
    )
    parser.add_argument("command", nargs="*")
    asked = parser.parse_args(arguments)
    if asked.shut_within is not None:
        host, port = os.environ.get(API_HOST, ""), os.environ.get(API_PORT, "")
        if not (host and port.isdecimal()):
            print(f"the network was not tested: {API_HOST} and {API_PORT} contain no address", file=sys.stderr)
            sys.exit(UNTRIED)
        if not wait_shut(partial(reaches, host, int(port)), asked.shut_within, asked.looks, SystemClock()):
            print(f"the network is open: this pod reaches the cluster's API at {host}:{port}", file=sys.stderr)
            sys.exit(OPEN)
    if not asked.command:
        sys.exit(0)
    environment = dict(os.environ)
    if asked.variables is not None:
        environment |= take_variables(asked.variables)
    if asked.processes is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (asked.processes, asked.processes))
    os.execvpe(asked.command[0], asked.command, environment)


if __name__ == "__main__":
    main()

"""Processes of the platform as data, and their supervisor: starts, restarts, and stops them in reverse order."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Final

from rdukit.errors import Unavailable
from rdukit.files.home import make_folder
from rdukit.settings import JSON, LOG_FORMAT, SND_SOCKET, resolve
from rdukit.system.forks import ForkedProcess, ForkServer
from rdukit.system.process import start_child, stop_child
from rdukit_platform.settings import BROKER_URL, UP_NODE, Home
from rdukit_platform.up.services import has_imported_services, run_service
from rdukit_platform.up.valkey import ValkeyLines, valkey_command


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """Process of the platform. ``pass_fds``: descriptors that it inherits. ``stop_s``: seconds that it may take to end.

    ``lines``: factory of the converter from its output to log lines; ``None``: it writes the log itself. ``is_forked``:
    it is forked from ``services``, or started by its command if that fails.
    """

    name: str
    command: Sequence[str]
    pass_fds: Sequence[int] = ()
    stop_s: float = 5.0
    environment: Mapping[str, str] = field(default_factory=dict)
    lines: Callable[[], ValkeyLines] | None = None
    is_forked: bool = False


def list_children(home: Home, listener_fd: int) -> list[ServiceProcess]:
    """List the processes of ``rdukit up``, in order, without a broker or node daemon that the settings name."""
    children = []
    if not resolve(BROKER_URL):
        lines = ValkeyLines if resolve(LOG_FORMAT) == JSON else None
        children.append(ServiceProcess("valkey", valkey_command(home), environment={"TZ": "UTC"}, lines=lines))
    *daemon, worker = list_node_children(home)
    module = [sys.executable, "-m"]
    gateway = [*module, "rdukit_platform.gateway", "--fd", str(listener_fd)]
    return [
        *children,
        *daemon,
        ServiceProcess("gateway", gateway, (listener_fd,), is_forked=True),
        ServiceProcess("scheduler", [*module, "rdukit_platform.scheduler"], is_forked=True),
        replace(worker, is_forked=True),
    ]


def list_node_children(home: Home) -> list[ServiceProcess]:
    """List the processes of a node, in order: the node daemon, unless the settings name one, and a worker."""
    command = [sys.executable, "-m", "rdukit_platform.worker"]
    worker = ServiceProcess("worker", command, stop_s=15.0, is_forked=has_imported_services())
    if not resolve(UP_NODE) or resolve(SND_SOCKET):
        return [worker]
    program = "from rdukit.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        program,
        "node",
        "start",
        "--socket",
        str(home.snd_socket),
        "--name",
        home.node_name(),
    ]
    return [ServiceProcess("snd", command), worker]


logger = logging.getLogger(__name__)

POLL_S: Final = 0.05
FIRST_BACKOFF_S: Final = 0.5
#: Longest pause in seconds before a restart.
MAX_BACKOFF_S: Final = 5.0
#: Seconds of uptime after which the pause before a restart is reset.
STABLE_S: Final = 30.0


@dataclass(slots=True)
class _Running:
    """A child and its state."""

    child: ServiceProcess
    #: None while it waits for its restart.
    process: subprocess.Popen[bytes] | ForkedProcess | None = None
    #: Its output, if it does not write the log itself.
    output: IO[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    due_at: float = 0.0
    #: Last exit status.
    status: int = 0
    history: list[str] = field(default_factory=list)
    lines: ValkeyLines | None = None


class Supervisor:
    """The children of one ``rdukit up``. Every child ends when this process does, even by SIGKILL."""

    def __init__(self, children: Sequence[ServiceProcess], logs: Path, environment: Mapping[str, str]) -> None:
        self._logs, self._environment = logs, environment
        self._all = [_Running(child) for child in children]
        #: None: forking is off, or the server failed to start.
        self._forks: ForkServer | None = None
        #: Whether a fork has succeeded before.
        self._has_forked = False

    def start(self) -> None:
        """Start all children at once; each waits for its dependencies. Forks follow when their server is ready."""
        make_folder(self._logs)
        if any(running.child.is_forked for running in self._all):
            self._start_forks()
        for running in self._all:
            self._start(running)

    def watch(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Restart ended children until ``until`` holds. Returns whether it held in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not until():
            if deadline is not None and time.monotonic() > deadline:
                return False
            self._look()
            time.sleep(POLL_S)
        return True

    def pids(self) -> dict[str, int]:
        """Return the process id of each running child, and of ``services``, from which some are forked."""
        forks = {} if self._forks is None else {"services": self._forks.pid}
        return forks | {
            r.child.name: r.process.pid for r in self._all if r.process is not None and r.process.poll() is None
        }

    def last_words(self) -> str:
        """Return the last output of children that have failed."""
        return "\n".join(line for running in self._all for line in running.history)

    def last_words_of(self, status: int) -> str:
        """Return the last output of a child that ended with a status; ``""``: no child did."""
        return "\n".join(line for running in self._all if running.status == status for line in running.history)

    def stop(self) -> None:
        """Stop the services together, then their dependencies in reverse order; each is killed after its time limit."""
        for running in self._all:
            if running.child.is_forked and running.process is not None:
                running.process.terminate()
        for running in reversed(self._all):
            if running.process is None or running.process.poll() is not None:
                continue
            kill = partial(os.killpg, running.process.pid, signal.SIGKILL)
            ask = not running.child.is_forked
            if not stop_child(running.process, running.child.stop_s, ask=ask, kill=kill):
                logger.warning("child killed name=%s", running.child.name)
            self._copy(running)
            logger.info("child stopped name=%s status=%s", running.child.name, running.process.returncode)
        if self._forks is not None:
            self._forks.close()

    def _look(self) -> None:
        now = time.monotonic()
        if self._forks is not None and self._forks.has_ended():
            self._replace_forks(self._forks)
        for running in self._all:
            if running.process is None:
                if now >= running.due_at:
                    self._start(running)
                continue
            status = running.process.poll()
            self._copy(running)
            if status is None:
                continue
            running.failures = 1 if now - running.started_at > STABLE_S else running.failures + 1
            pause = min(FIRST_BACKOFF_S * 2 ** (running.failures - 1), MAX_BACKOFF_S)
            running.process, running.due_at, running.status = None, now + pause, status
            running.history = [f"{running.child.name} ended with status {status}:", *self._tail(running.child)]
            logger.warning("child ended name=%s status=%s restart_in_s=%.1f", running.child.name, status, pause)

    def _start_forks(self) -> None:
        with (self._logs / "services.log").open("ab") as log:
            if has_imported_services():
                self._forks = ForkServer.by_fork(run_service, "services", log.fileno())
            else:
                command = [sys.executable, "-m", "rdukit_platform.up.services"]
                self._forks = ForkServer.start(command, self._environment, log.fileno())
        self._has_forked = False

    def _replace_forks(self, ended: ForkServer) -> None:
        """Start another fork server. If one ends before it is ready, services are started by their commands."""
        ended.close()
        self._forks = None
        for running in self._all:
            if isinstance(running.process, ForkedProcess):  # its forks end with it
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.process.pid, signal.SIGKILL)
        if self._has_forked:
            logger.warning("fork server of services has ended; it is started again")
            self._start_forks()
        else:
            logger.warning("fork server of services does not start; they are started one by one")

    def _start(self, running: _Running) -> None:
        child = running.child
        if child.is_forked and self._forks is not None and not self._forks.is_ready():
            return  # it is still importing; checked again at the next step
        running.lines = None if child.lines is None else child.lines()
        environment = {**self._environment, **child.environment}
        with (self._logs / f"{child.name}.log").open("ab") as log:
            if child.is_forked and self._forks is not None:
                body = {"name": child.name, "environment": environment}
                try:
                    running.process = self._forks.fork(body, log.fileno(), others=child.pass_fds)
                except Unavailable:
                    return  # it has just ended, which the next step notices
                self._has_forked = True
            else:
                out, err = (log, log) if running.lines is None else (subprocess.PIPE, subprocess.STDOUT)
                process = start_child(child.command, out, environment, stderr=err, pass_fds=child.pass_fds)
                running.process, running.output = process, process.stdout
        if running.output is not None:
            os.set_blocking(running.output.fileno(), False)
        running.started_at = time.monotonic()
        logger.info("child started name=%s pid=%d", child.name, running.process.pid)

    def _copy(self, running: _Running) -> None:
        """Append a child's new output to its log, converted to rdukit's lines."""
        if running.process is None or running.output is None or running.lines is None:
            return
        stream, now = running.output, time.time()
        found: list[bytes] = []
        while piece := stream.read(1 << 16):
            found += running.lines.feed(piece, now)
        if running.process.returncode is not None:
            found += running.lines.feed(b"", now)
            stream.close()
        if found:
            with (self._logs / f"{running.child.name}.log").open("ab") as log:
                log.writelines(found)

    def _tail(self, child: ServiceProcess) -> list[str]:
        data = (self._logs / f"{child.name}.log").read_bytes()[-8192:]
        return [f"  {line}" for line in data.decode(errors="replace").splitlines()[-8:]]

"""Run a box as a process on this machine."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from rdukit.box.client import BoxClient
from rdukit.box.image import BoxEnd
from rdukit.errors import Cancelled, InvalidArgument, RdukitError, Unavailable
from rdukit.fence.spec import DISK_LIMIT, MEMORY_LIMIT
from rdukit.files.atomic import write_json_unflushed
from rdukit.files.home import make_folder
from rdukit.http.unix_sockets import GRPC_SOCKET, REST_SOCKET, rest_address
from rdukit.interfaces import Clock, SystemClock
from rdukit.settings import home_folder
from rdukit.system.forks import ForkServer
from rdukit.system.process import stop_child
from rdukit_platform.backends.box_variables import unfenced_variables
from rdukit_platform.backends.contract import (
    BoxEvent,
    BoxEventKind,
    BoxLimits,
    BoxOwner,
    BoxProcess,
    BoxSpec,
    BoxStats,
    OwnedBox,
    is_orphan,
    last_lines,
)
from rdukit_platform.backends.fenced import (
    FencedWires,
    end_fenced,
    fenced_limits,
    own_folder,
    start_fenced_box,
)
from rdukit_platform.backends.process_tree import start_ticks, stats_of, tree_of
from rdukit_platform.backends.warm import LEAST_MEMORY_BYTES, WarmBoxes

#: Files in a box's folder: the addresses of its wires, and its log.
ANNOUNCEMENT: Final = "box.json"
LOG: Final = "box.log"
POLL_S: Final = 0.005
#: Largest answer to a health check.
MAX_HEALTH_BYTES: Final = 1 << 20
REAP_GRACE_S: Final = 10.0
#: Bytes that are read from a log's end for its last lines.
TAIL_BYTES: Final = 64 << 10


class ProcessBox:
    """A box in a child process of this one; by default it ends with this process."""

    def __init__(
        self,
        process: BoxProcess,
        announced: dict[str, str],
        log_file: Path,
        limits: Mapping[str, str],
        record: Path | None,
        clock: Clock,
        started: float,
        fence: FencedWires | None = None,
    ) -> None:
        self._process = process
        self._fence = fence
        self._announced = announced
        self._log_file = log_file
        self._limits = limits
        self._record = record
        self._clock = clock
        self._events = [BoxEvent(BoxEventKind.STARTED, started), BoxEvent(BoxEventKind.READY, clock.now())]

    @property
    def id(self) -> str:
        """Process id."""
        return str(self._process.pid)

    @property
    def rest_url(self) -> str:
        """Base address of the REST wire."""
        return self._announced["rest"]

    @property
    def grpc_address(self) -> str:
        """``host:port`` or ``unix:path`` of the gRPC wire."""
        return self._announced["grpc"]

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def limits(self) -> Mapping[str, str]:
        """Limits that were asked for, and whether each is applied."""
        return self._limits

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self._process.poll() is None

    def is_ready(self) -> bool:
        """Return whether the box reports that it is ready."""
        return self.is_alive() and answers_ready(self.rest_url)

    def logs(self, tail: int | None = None) -> str:
        """Return its log so far, or its last ``tail`` lines, of 64 KiB at most."""
        if tail is None:
            return self._log_file.read_text(errors="replace")
        return last_lines(_tail_of(self._log_file), tail)

    def follow(self) -> Iterator[str]:
        """Yield its log line by line till its end."""
        with self._log_file.open(errors="replace") as stream:
            rest = ""
            while True:
                is_over = not self.is_alive()
                rest += stream.read()
                *lines, rest = rest.split("\n")
                yield from lines
                if is_over:
                    break
                self._clock.sleep(POLL_S)
            if rest:
                yield rest

    def stats(self) -> BoxStats:
        """Return the use of resources by the box and its children.

        Raises:
            Unavailable: the box has ended.
        """
        found = stats_of(self.pid) if self.is_alive() else None
        if found is None:
            raise Unavailable(f"the box {describe_status(self._process.poll() or 0)}; it uses nothing")
        return found

    def events(self) -> Sequence[BoxEvent]:
        """Start, readiness, and the end once it is seen; memory that the kernel refused is unknown."""
        status = self._process.poll()
        if status is not None and self._events[-1].kind is not BoxEventKind.ENDED:
            self._events.append(
                BoxEvent(BoxEventKind.ENDED, self._clock.now(), describe_status(status), end_of_status(status))
            )
        return tuple(self._events)

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.is_alive():
            self._process.terminate()

    def stop(self, grace_s: float = 10.0) -> None:
        """Send SIGTERM, then SIGKILL, to it and its children; returns when it has ended."""
        # All processes in a fence end with it.
        children = [] if self._fence is not None else [facts.pid for facts in tree_of(self.pid)[1:]]

        def kill() -> None:
            if self._fence is not None:
                end_fenced(self._process)
            self._process.kill()

        if not stop_child(self._process, grace_s, ask=self.is_alive(), kill=kill):
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        if self._record is not None:
            self._record.unlink(missing_ok=True)
        if self._fence is not None:
            self._fence.close()


class ProcessBackend:
    """Starts boxes as processes. Boxes with an owner have a record in ``records`` while they run."""

    name = "process"

    def __init__(
        self,
        clock: Clock | None = None,
        records: Path | None = None,
        command: Sequence[str] | None = None,
        warm: WarmBoxes | None = None,
    ) -> None:
        """``command`` runs boxes; by default this Python's ``rdukit_modelbox``. The backend closes ``warm``."""
        self._clock = clock or SystemClock()
        self._records = records
        self._command = tuple(command or (sys.executable, "-m", "rdukit_modelbox"))
        self._warm = warm

    def close(self) -> None:
        """End the fork server of warm boxes, if there is one."""
        if self._warm is not None:
            self._warm.close()

    def start(self, spec: BoxSpec, timeout_s: float = 30.0, stop: threading.Event | None = None) -> ProcessBox:
        """Start the command in a session of its own and wait for its announcement.

        Raises:
            Unavailable: it ended or was not ready in time; the message has its last words.
            Cancelled: ``stop`` was set meanwhile.
        """
        make_folder(spec.state)
        folder = own_folder(spec)
        announce, log_file = folder / ANNOUNCEMENT, spec.state / LOG
        announce.unlink(missing_ok=True)
        started = self._clock.now()
        with log_file.open("ab") as log:
            process = self._launch(spec, folder, log)
        record: Path | None = None
        wires: FencedWires | None = None
        try:
            applied = apply_limits(process.pid, spec.limits) if spec.fence is None else fenced_limits(spec, spec.fence)
            record = self._write_record(process.pid, spec)
            wait_announced(process, spec, announce, timeout_s, stop, self._clock)
            announced, wires = open_wires(spec, announce)
        except BaseException:
            if spec.fence is not None:
                end_fenced(process)
            process.kill()
            process.wait()
            if record is not None:
                record.unlink(missing_ok=True)
            raise
        return ProcessBox(process, announced, log_file, applied, record, self._clock, started, wires)

    def _launch(self, spec: BoxSpec, folder: Path, log: IO[bytes]) -> BoxProcess:
        forks = None if self._warm is None or needs_memory(spec) else self._warm.find()
        if forks is not None:
            with contextlib.suppress(Unavailable):  # it has just ended
                return self._fork(forks, spec, folder, log)
        arguments = box_arguments(spec, folder, os.getpid())
        if spec.fence is not None:
            return start_fenced_box(spec, spec.fence, self._command, arguments, log)
        return subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=unfenced_variables(os.environ, spec.environment),
            start_new_session=True,
            pass_fds=spec.descriptors,
        )

    def _fork(self, forks: ForkServer, spec: BoxSpec, folder: Path, log: IO[bytes]) -> BoxProcess:
        arguments = box_arguments(spec, folder, forks.pid)
        if spec.fence is not None:
            return start_fenced_box(spec, spec.fence, self._command, arguments, log, forks)
        body = {
            "name": f"box-{spec.box}", "arguments": arguments,
            "environment": unfenced_variables(os.environ, spec.environment),
        }  # fmt: skip
        return forks.fork(body, log.fileno(), others=spec.descriptors)

    def owned(self) -> Sequence[OwnedBox]:
        """Find boxes by their records; records of ended boxes are removed."""
        found = []
        for path in sorted(self._folder().glob("*.json")):
            try:
                record = json.loads(path.read_bytes())
            except FileNotFoundError:
                continue
            if start_ticks(record["pid"]) != record["start_ticks"]:
                path.unlink(missing_ok=True)
                continue
            found.append(OwnedBox(path.name, record["box"], BoxOwner(record["owner"], record["epoch"])))
        return tuple(found)

    def orphans(self, owner: BoxOwner) -> Sequence[OwnedBox]:
        """Find boxes that an earlier epoch of the owner left behind."""
        return tuple(box for box in self.owned() if is_orphan(box.owner, owner))

    def reap(self, orphan: OwnedBox) -> None:
        """Send SIGTERM, then SIGKILL, to the process of the record and its children."""
        path = self._folder() / orphan.id
        try:
            record = json.loads(path.read_bytes())
        except FileNotFoundError:
            return
        pid, ticks = record["pid"], record["start_ticks"]
        if start_ticks(pid) == ticks:
            tree = [(facts.pid, facts.start_ticks) for facts in tree_of(pid)]
            _signal(pid, signal.SIGTERM)
            deadline = self._clock.monotonic() + REAP_GRACE_S
            while start_ticks(pid) == ticks and self._clock.monotonic() < deadline:
                self._clock.sleep(POLL_S)
            for child, child_ticks in tree:
                if start_ticks(child) == child_ticks:
                    _signal(child, signal.SIGKILL)
        path.unlink(missing_ok=True)

    def read_image(self, image: str, folder: Path) -> str:
        """Refuse: a process runs from a folder.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(
            f"{image!r} looks like an image, but job boxes are processes here (worker.box_backend); expected a folder "
            "with a modelbox.yaml"
        )

    def _folder(self) -> Path:
        return self._records or home_folder() / "run" / "boxes"

    def _write_record(self, pid: int, spec: BoxSpec) -> Path | None:
        ticks = start_ticks(pid)
        if spec.owner is None or ticks is None:
            return None
        path = self._folder() / f"{pid}-{ticks}.json"
        facts = {"pid": pid, "start_ticks": ticks, "box": spec.box, "owner": spec.owner.id, "epoch": spec.owner.epoch}
        write_json_unflushed(path, facts)
        return path


def _tail_of(log_file: Path) -> str:
    with log_file.open("rb") as stream:
        stream.seek(max(log_file.stat().st_size - TAIL_BYTES, 0))
        return stream.read(TAIL_BYTES).decode(errors="replace")


def open_wires(spec: BoxSpec, announce: Path) -> tuple[dict[str, str], FencedWires | None]:
    """Return the addresses of a ready box; in a fence also the object that holds its sockets.

    Raises:
        Unavailable: its sockets' paths are not sockets of its own.
    """
    if spec.fence is not None:
        wires = FencedWires(own_folder(spec), spec.fence.uid)
        return wires.addresses, wires
    return _read_announced(spec, announce), None


def _read_announced(spec: BoxSpec, announce: Path) -> dict[str, str]:
    if spec.has_sockets:
        # Addresses that a fenced box announces are not trusted.
        rest, grpc = spec.state / REST_SOCKET, spec.state / GRPC_SOCKET
        if rest.is_symlink() or not rest.is_socket():
            raise Unavailable(f"box {spec.box} reports ready, but {rest} is not a socket", end=str(BoxEnd.EXITED))
        return {"rest": rest_address(rest), "grpc": f"unix:{grpc}"}
    announced: dict[str, str] = json.loads(announce.read_text())
    return announced


def wait_announced(
    process: BoxProcess,
    spec: BoxSpec,
    announce: Path,
    timeout_s: float,
    stop: threading.Event | None,
    clock: Clock,
) -> None:
    """Wait until a started box reports that it is ready.

    Raises:
        Unavailable: it ended or was not ready in time; the message has its last words.
        Cancelled: ``stop`` was set meanwhile.
    """
    log_file = spec.state / LOG
    deadline = clock.monotonic() + timeout_s
    while not os.path.lexists(announce):
        status = process.poll()
        if stop is not None and stop.is_set():
            raise Cancelled(f"box {spec.box} was stopped before it was ready")
        if status is not None or clock.monotonic() > deadline:
            words = _tail_of(log_file).strip()[-500:]
            what = describe_status(status) if status is not None else f"was not ready in {timeout_s:g} s"
            end = BoxEnd.LATE if status is None else end_of_status(status)
            raise Unavailable(f"box {spec.box} {what}: {words}", end=str(end))
        clock.sleep(POLL_S)


def needs_memory(spec: BoxSpec) -> bool:
    """Return whether a box may have too little memory for a fork (pure)."""
    return spec.limits.memory_bytes is not None and spec.limits.memory_bytes < LEAST_MEMORY_BYTES


def box_arguments(spec: BoxSpec, folder: Path, starter: int) -> list[str]:
    """Return the arguments of the command that runs boxes. A box without a fence ends with the process ``starter``."""
    # A fence ends its processes itself, and the starter is not visible inside.
    parent = str(starter) if spec.ends_with_parent and spec.fence is None else "0"
    wires = ["--socket-folder", str(folder)] if spec.has_sockets else ["--rest-port", "0", "--grpc-port", "0"]
    arguments = [
        "run", str(spec.folder or spec.box), *wires,
        "--state", str(folder), "--announce", str(folder / ANNOUNCEMENT), "--parent", parent,
    ]  # fmt: skip
    for mount in (*spec.mounts, *spec.outputs):
        arguments += ["--mount", str(mount)]
    return arguments


def apply_limits(pid: int, limits: BoxLimits) -> dict[str, str]:
    """Limit a new process and its future children. Returns which requested limits were applied."""
    outcomes: dict[str, str] = {}
    if limits.cores is not None:
        try:
            os.sched_setaffinity(pid, limits.cores)
            outcomes["cores"] = f"applied: affinity to {', '.join(map(str, limits.cores))}"
        except (OSError, ValueError) as error:
            outcomes["cores"] = f"not applied: {error}"
    if limits.memory_bytes is not None:
        try:
            resource.prlimit(pid, resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
            outcomes["memory"] = f"applied: each process may have {limits.memory_bytes} bytes of data (RLIMIT_DATA)"
        except (OSError, ValueError) as error:
            outcomes["memory"] = f"not applied: {error}"
    if limits.pids is not None:
        outcomes["pids"] = "not applied: the kernel counts processes by user, not by box; containers have this limit"
    if limits.disk_bytes is not None:
        outcomes["disk"] = "not applied: fenced boxes and containers have this limit"
    return outcomes


def answers_ready(rest_url: str) -> bool:
    """Return whether the box at ``rest_url`` answers its check of readiness with 200."""
    try:
        with BoxClient(rest_url, timeout_s=5.0, max_bytes=MAX_HEALTH_BYTES) as client:
            client.health()
    except (RdukitError, ValueError):
        return False
    return True


def describe_status(status: int) -> str:
    """Describe an exit status: ``ended with status 3`` or ``was killed by SIGKILL``."""
    if status == DISK_LIMIT:
        return "was terminated: it exceeded its disk limit"
    if status == MEMORY_LIMIT:
        return "was terminated: it exceeded its memory limit"
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by {signal.Signals(-status).name}"


def end_of_status(status: int) -> BoxEnd:
    """Return the end of a box from its exit status; negative: the signal that killed it."""
    if status == DISK_LIMIT:
        return BoxEnd.DISK_FULL
    return BoxEnd.KILLED if status == -signal.SIGKILL else BoxEnd.EXITED


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

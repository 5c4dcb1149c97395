"""Run a box inside a Slurm allocation on this machine: Slurm accounts for tiles and time, and schedules it.

The same launcher of the same fence runs as without Slurm, with sockets in the same folder. ``sbatch`` and ``slurmd``
start it instead of this process, so it does not end with this one.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rdukit.box.image import BoxEnd
from rdukit.errors import BackendUnavailable, Cancelled, InvalidArgument, NoResources, Unavailable
from rdukit.fence.start import LAUNCHER, launcher_json
from rdukit.files.atomic import write_atomic
from rdukit.files.home import make_folder
from rdukit.interfaces import Clock, SystemClock
from rdukit_platform.backends.box_variables import unfenced_variables
from rdukit_platform.backends.contract import (
    BoxEvent,
    BoxEventKind,
    BoxOwner,
    BoxSpec,
    OwnedBox,
    is_orphan,
)
from rdukit_platform.backends.fenced import fenced_limits, own_folder, prepare_fence
from rdukit_platform.backends.process import (
    ANNOUNCEMENT,
    POLL_S,
    ProcessBox,
    box_arguments,
    open_wires,
    wait_announced,
)
from rdukit_platform.backends.process_tree import start_ticks, tree_of
from rdukit_platform.backends.slurm_commands import SlurmCommands, find_place
from rdukit_platform.backends.slurm_jobs import (
    OUT_OF_MEMORY,
    JobFiles,
    SlurmLook,
    describe_end,
    describe_wait,
    end_of,
    make_script,
    submit_options,
)
from rdukit_platform.backends.slurm_place import SlurmPlace

logger = logging.getLogger(__name__)

#: Seconds between polls of waiting jobs, and of running ones.
LOOK_S: Final = 0.5
WATCH_S: Final = 2.0
#: Seconds to wait for Slurm's exit status of an ended program, and for Slurm to end a job.
SAY_S: Final = 10.0
REAP_S: Final = 10.0
#: Status of a program whose exit status Slurm does not report.
UNKNOWN: Final = 255


class SlurmProgram:
    """The program of a job, a process of this machine that is not our child; its exit status is the job's."""

    def __init__(self, commands: SlurmCommands, job_id: str, pid: int, clock: Clock) -> None:
        self._commands, self._clock = commands, clock
        self.job_id = job_id
        self._pid, self._ticks = pid, start_ticks(pid)
        #: The job after its end.
        self.ended: SlurmLook | None = None
        self._status: int | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._pid

    def is_there(self) -> bool:
        """Return whether the process runs, regardless of Slurm's state."""
        return self._ticks is not None and start_ticks(self._pid) == self._ticks

    def poll(self) -> int | None:
        """Return its exit status; ``None`` while it runs, and until Slurm reports the status, for some seconds."""
        if self._status is None and not self.is_there():
            self.ended = await_job(self._commands, self.job_id, SAY_S, self._clock)
            self._status = UNKNOWN if self.ended is None else self.ended.status
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and self._clock.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"Slurm job {self.job_id}", timeout or 0.0)
            self._clock.sleep(POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        if self.is_there():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to it and its descendants; everything in a fence ends with it."""
        tree = [(facts.pid, facts.start_ticks) for facts in tree_of(self._pid)] if self.is_there() else []
        self.send_signal(signal.SIGKILL)
        for pid, ticks in tree[1:]:
            if start_ticks(pid) == ticks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class SlurmBox(ProcessBox):
    """A box in a Slurm allocation."""

    def __init__(self, backend: "SlurmBackend", program: SlurmProgram, spec: BoxSpec, started: float) -> None:
        """Open the box's sockets. Raises: Unavailable: one of the variables is not the box's own."""
        announced, wires = open_wires(spec, own_folder(spec) / ANNOUNCEMENT)
        limits = {"slurm": f"applied: job {program.job_id}", **(fenced_limits(spec, spec.fence) if spec.fence else {})}
        files = JobFiles(spec.state)
        super().__init__(program, announced, files.log, limits, None, backend.clock, started, wires)
        self._backend, self._program, self._files = backend, program, files
        #: Set when this process ends it: Slurm then reports an end that no other user caused.
        self._is_ending = self._is_cancelled = False
        self._cancelling = threading.Lock()

    @property
    def id(self) -> str:
        """Slurm's number of the job."""
        return self._program.job_id

    def events(self) -> Sequence[BoxEvent]:
        """Start, readiness, and its end or that of its allocation, whichever comes first."""
        if self._events[-1].kind is BoxEventKind.ENDED:
            return tuple(self._events)
        look = self._look()
        end = None if look is None else end_of(look)
        if look is not None and (end is not None or look.state == OUT_OF_MEMORY):
            kind = BoxEventKind.OUT_OF_MEMORY if look.state == OUT_OF_MEMORY else BoxEventKind.ENDED
            self._events.append(BoxEvent(kind, self._backend.clock.now(), describe_end(look), end))
            if kind is BoxEventKind.ENDED:
                return tuple(self._events)
        return super().events()

    def terminate(self) -> None:
        """Cancel the job: its processes get SIGTERM, and SIGKILL after the cluster's KillWait."""
        self._is_ending = True
        with self._cancelling:
            if not self._is_cancelled:
                self._backend.commands.cancel(self.id)
                self._is_cancelled = True

    def stop(self, grace_s: float = 10.0) -> None:
        """Stop the box; its job then counts as successful, unless it was cancelled before."""
        self._is_ending = True
        with self._cancelling:  # Slurm must know before the program ends
            if not self._is_cancelled:
                self._files.done.touch()
        super().stop(grace_s)
        self._backend.forget(self._program)

    def _look(self) -> SlurmLook | None:
        """Return the job's present state; for an ending job, wait until Slurm reports the end."""
        if self._is_ending or self._program.ended is not None:
            return None if self._is_ending else self._program.ended
        try:
            look = self._backend.commands.look(self.id)
            if look is not None and look.state == "COMPLETING":
                look = await_job(self._backend.commands, self.id, SAY_S, self._backend.clock)
        except BackendUnavailable as error:
            logger.warning("Slurm does not report a job's state job=%s error=%s", self.id, error)
            return None
        return look


class SlurmBackend:
    """Starts boxes as jobs of Slurm's on this machine."""

    name = "slurm"

    def __init__(
        self,
        place: SlurmPlace,
        command: Sequence[str],
        wait_s: float,
        commands: SlurmCommands | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``command`` runs boxes; ``wait_s``: seconds that a job may wait for its allocation."""
        self.commands, self.clock = commands or SlurmCommands(), clock or SystemClock()
        self._place, self._command, self._wait_s = place, tuple(command), wait_s
        self._lock = threading.Lock()
        #: Running programs, each with whether its allocation was gone at the last poll.
        self._programs: dict[SlurmProgram, bool] = {}
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._run, name="slurm_watch", daemon=True)
        self._watch.start()

    def close(self) -> None:
        """End the watch; boxes keep running."""
        self._stop.set()

    def start(self, spec: BoxSpec, timeout_s: float = 30.0, stop: threading.Event | None = None) -> SlurmBox:
        """Submit a job, wait for its allocation, then until the box is ready in it.

        Raises:
            NoResources: Slurm refuses the job, or gave no allocation in time; the message has Slurm's reason.
            Unavailable: the job was cancelled, or the box ended or was not ready in time. The box is removed.
            BackendUnavailable: Slurm does not answer.
            Cancelled: ``stop`` was set meanwhile. The box is removed.
        """
        make_folder(spec.state)
        spec, files = replace(spec, descriptors=(), ends_with_parent=False), JobFiles(spec.state)
        for path in (own_folder(spec) / ANNOUNCEMENT, files.pid, files.done):
            path.unlink(missing_ok=True)
        script = self._write_script(spec, files)
        started = self.clock.now()
        job_id = self.commands.submit(submit_options(spec, self._place), script)
        logger.info("slurm job submitted job=%s slurm_job=%s", spec.owner.id if spec.owner else "", job_id)
        program: SlurmProgram | None = None
        try:
            program = self._await_program(spec, job_id, files, stop)
            with self._lock:
                self._programs[program] = False
            try:
                wait_announced(program, spec, own_folder(spec) / ANNOUNCEMENT, timeout_s, stop, self.clock)
            except Unavailable as error:
                raise _with_end(error, program) from error
            return SlurmBox(self, program, spec, started)
        except BaseException:
            self._end(job_id, program)
            raise
        finally:
            files.spec.unlink(missing_ok=True)

    def forget(self, program: SlurmProgram) -> None:
        """Stop watching a program."""
        with self._lock:
            self._programs.pop(program, None)

    def owned(self) -> Sequence[OwnedBox]:
        """Find boxes by the comments of this user's jobs, on any machine."""
        return tuple(look.owned for look in self.commands.looks() if look.owned is not None)

    def orphans(self, owner: BoxOwner) -> Sequence[OwnedBox]:
        """Find boxes that an earlier epoch of the owner left behind."""
        return tuple(box for box in self.owned() if is_orphan(box.owner, owner))

    def reap(self, orphan: OwnedBox) -> None:
        """Cancel its job. After the cluster's KillWait, Slurm ends it by force."""
        self.commands.cancel(orphan.id)
        await_job(self.commands, orphan.id, REAP_S, self.clock)

    def read_image(self, image: str, folder: Path) -> str:
        """Refuse: a Slurm job runs from a folder.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(
            f"{image!r} looks like an image, but job boxes are Slurm jobs here (worker.box_backend); expected a "
            "folder with a modelbox.yaml"
        )

    def _write_script(self, spec: BoxSpec, files: JobFiles) -> str:
        """Write the file that the job's program reads. Returns its script, which holds no secrets."""
        arguments = box_arguments(spec, own_folder(spec), 0)
        if spec.fence is not None:
            text = launcher_json(prepare_fence(spec, spec.fence, self._command, arguments), spec.fence.way)
            program = ["env", "-i", "PATH=/usr/bin:/bin", "LANG=C.UTF-8",
                       sys.executable, "-I", "-S", str(LAUNCHER), "--spec-fd", "3"]  # fmt: skip
        else:
            text = json.dumps(unfenced_variables(os.environ, spec.environment))
            # The job inherits sbatch's environment, and the token in it is the worker's.
            program = ["env", "-u", "SLURM_JWT", sys.executable, "-I", "-m", "rdukit.fence.in_pod",
                       "--variables", str(files.spec), "--", *self._command, *arguments]  # fmt: skip
        write_atomic(files.spec, text.encode(), 0o600)
        return make_script(program, files, files.spec if spec.fence is not None else None)

    def _await_program(
        self, spec: BoxSpec, job_id: str, files: JobFiles, stop: threading.Event | None
    ) -> SlurmProgram:  # fmt: skip
        """Wait until the job's script reports its program's process id."""
        clock = self.clock
        begun = looked = clock.monotonic()
        said, is_given = "", False
        while not files.pid.exists():
            if stop is not None and stop.is_set():
                raise Cancelled(f"box {spec.box} was stopped before Slurm job {job_id} had begun")
            now = clock.monotonic()
            if now - looked >= LOOK_S:
                looked = now
                look = self.commands.look(job_id)
                if look is None or look.has_ended:
                    if files.pid.exists():
                        break  # it was short, and reports its end itself
                    what = f"Slurm job {job_id} is gone" if look is None else describe_end(look)
                    end = BoxEnd.EXITED if look is None else end_of(look) or BoxEnd.EXITED
                    raise Unavailable(f"box {spec.box} did not begin: {what}", end=str(end))
                if not look.is_waiting and not is_given:
                    is_given, begun = True, now
                why, code = describe_wait(look, self._place.node, now - begun)
                if why and why != said and spec.on_wait is not None:
                    said = why
                    spec.on_wait({"backend": self.name, "id": job_id}, why, code)
                if now - begun > self._wait_s:
                    what = f"began, but its script did not start within {now - begun:.0f} s" if is_given else why
                    raise NoResources(f"{what}; the worker gave up after {self._wait_s:g} s (slurm.wait_s)")
            clock.sleep(POLL_S)
        if said and spec.on_wait is not None:
            spec.on_wait({"backend": self.name, "id": job_id}, "", "")
        return SlurmProgram(self.commands, job_id, int(files.pid.read_text()), clock)

    def _end(self, job_id: str, program: SlurmProgram | None) -> None:
        """End an unwanted job; if Slurm fails to, the search for orphans ends it later."""
        try:
            self.commands.cancel(job_id)
            if program is not None:
                program.kill()
                self.forget(program)
            await_job(self.commands, job_id, SAY_S, self.clock)
        except BackendUnavailable as error:
            logger.warning("slurm job not ended slurm_job=%s error=%s", job_id, error)

    def _run(self) -> None:
        while not self._stop.wait(WATCH_S):
            with self._lock:
                programs = list(self._programs)
            if not programs:
                continue
            try:
                there = {look.id for look in self.commands.looks() if not look.has_ended}
            except BackendUnavailable as error:
                logger.warning("slurm jobs were not checked error=%s", error)
                continue
            for program in programs:
                self._watch_one(program, program.job_id in there)

    def _watch_one(self, program: SlurmProgram, has_allocation: bool) -> None:
        """End a program without an allocation; Slurm itself has ended it, unless ``slurmd`` of the node is down."""
        with self._lock:
            if (was_gone := self._programs.get(program)) is None:
                return
            self._programs[program] = not has_allocation
        if was_gone and not has_allocation and program.is_there():
            logger.warning("allocation gone, program ended slurm_job=%s", program.job_id)
            program.kill()


def open_slurm(command: Sequence[str], wait_s: float) -> SlurmBackend:
    """Return the backend for the place in Slurm that the settings name.

    Raises:
        Unavailable: a command of Slurm's is missing.
        BackendUnavailable: Slurm does not answer.
        InvalidArgument: a setting names something that does not exist.
    """
    commands = SlurmCommands()
    place, _ = find_place(commands)
    return SlurmBackend(place, command, wait_s, commands)


def await_job(commands: SlurmCommands, job_id: str, timeout_s: float, clock: Clock) -> SlurmLook | None:
    """Return a job when it has ended; ``None``: Slurm does not report it, or it has not ended within ``timeout_s``."""
    deadline = clock.monotonic() + timeout_s
    while True:
        with contextlib.suppress(BackendUnavailable):
            look = commands.look(job_id)
            if look is None or look.has_ended:
                return look
        if clock.monotonic() > deadline:
            return None
        clock.sleep(0.1)


def _with_end(error: Unavailable, program: SlurmProgram) -> Unavailable:
    """Return the error of a box that was not ready; if Slurm took its allocation, that error."""
    look = program.ended
    if look is None or (end := end_of(look)) is None:
        return error
    return Unavailable(f"{error.message}: {describe_end(look)}", end=str(end))

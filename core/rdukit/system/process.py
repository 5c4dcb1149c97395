"""Control of this process and its children: parent death, start, stop, libraries, garbage collection, logs. Linux.

It also reads facts of any process from ``/proc``.
"""

import contextlib
import ctypes
import gc
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from rdukit.fence.kernel import signal_on_parent_death
from rdukit.files.home import make_folder
from rdukit.settings import JSON, LOG_FORMAT, LOG_LEVEL, resolve


class Child(Protocol):
    """Interface of a child process, as in ``subprocess``."""

    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Receive signal ``number`` when the process ``parent`` ends; if it has ended already, end at once.

    The kernel sends the signal when the *thread* that started this process ends, even if the parent lives on. A process
    with one thread may call this between fork and exec.
    """
    signal_on_parent_death(number)
    if os.getppid() != parent:
        os._exit(1)


def lower_priority(by: int) -> None:
    """Lower the priority: add ``by`` to the niceness of this process and of the session that it leads.

    Kernels with autogroups compare niceness only within a session, and sessions by a separate niceness, which a fence
    may make read-only.
    """
    os.nice(by)
    if by and os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(by))


def start_child(
    command: Sequence[str], stdout: IO[bytes] | int, environment: Mapping[str, str], *,
    stderr: IO[bytes] | int | None = None, pass_fds: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":  # fmt: skip
    """Start a program in a new session, without stdin; it receives SIGTERM when this process ends.

    The caller must have one thread, since Python code runs between fork and exec. Pipes are unbuffered.

    Args:
        stderr: target of its stderr; None: this process's stderr.
    """
    parent = os.getpid()
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=dict(environment), pass_fds=pass_fds,
        bufsize=0, start_new_session=True,
        preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),  # noqa: PLW1509 - one thread
    )  # fmt: skip


def stop_child(child: Child, grace_s: float, *, ask: bool = True, kill: Callable[[], object] | None = None) -> bool:
    """Terminate a child and wait for its exit; return whether it exited within ``grace_s`` seconds.

    Args:
        ask: whether to send SIGTERM first; False if the child is already ending for another reason. kill: function that
            kills the child after ``grace_s``, by default by SIGKILL to the child alone.
    """
    if ask:
        child.terminate()
    try:
        child.wait(grace_s)
        return True
    except subprocess.TimeoutExpired:
        (kill or child.kill)()
        child.wait()
        return False


def end_group_with_parent(parent: int) -> None:
    """Kill this process and the process group that it leads as soon as the process ``parent`` has ended.

    Its children end with it. Unlike ``die_with_parent``, this does not depend on the parent's thread: a thread of this
    process waits.
    """
    assert os.getpgrp() == os.getpid(), "a group with another leader must not be killed"
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() != parent:
        os._exit(1)

    def wait() -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="parent-death", daemon=True).start()


def is_readable(descriptor: int) -> bool:
    """Return whether a pipe or socket is readable now, or has ended."""
    poll = select.poll()  # select would refuse numbers above 1,023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection in all threads; a context or a decorator.

    With torch imported there are a million objects, and a full collection takes 80 ms. Imports and traces keep many new
    objects, so they would trigger collections that free nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def load_library(library: bytes, name: str) -> ctypes.CDLL:
    """Load a library from memory; ``name`` is its name in the process's maps.

    Folders for temporary files are often mounted ``noexec``, especially in containers: libraries there cannot be
    loaded.

    Raises:
        OSError: this process cannot load the library.
    """
    # The descriptor stays open: otherwise its path would be reused, and the loader would return the library that it
    # knows by this path.
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(library)
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


def configure_logging(level: str | None = None, file: Path | None = None) -> None:
    """Send rdukit's log to stderr, and to ``file`` as well if given; a second call replaces the first configuration.

    One event a line, ids as key=value; with ``log.format`` json an object a line.
    """
    root = logging.getLogger()
    for handler in [h for h in root.handlers if getattr(h, "_rdukit", False)]:
        root.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        make_folder(file.parent)
        handlers.append(logging.FileHandler(file))
    formatter = logging.Formatter(_FORMAT)
    logging.captureWarnings(resolve(LOG_FORMAT) == JSON)
    if resolve(LOG_FORMAT) == JSON:
        from rdukit.telemetry.logs import JsonLines

        formatter = JsonLines()
    for handler in handlers:
        handler.setFormatter(formatter)
        handler._rdukit = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    root.setLevel(resolve(LOG_LEVEL, level).upper())
    # It would log each request: four a second while a worker waits for a pod.
    logging.getLogger("httpx").setLevel(logging.NOTSET if root.level <= logging.DEBUG else logging.WARNING)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Facts of ``/proc/PID/stat``, times in ticks."""

    pid: int
    state: str
    parent: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    resident_pages: int

    @property
    def is_running(self) -> bool:
        """Return whether it runs; an ended process stays listed until its parent has reaped it."""
        return self.state not in {"Z", "X"}


def read_facts(pid: int) -> ProcessFacts | None:
    """Read facts of a process; None if it is gone.

    Raises:
        OSError: its facts cannot be read; it may be running.
    Source: proc(5), "/proc/pid/stat".
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    words = text.rpartition(")")[2].split()
    return ProcessFacts(
        pid, words[0], int(words[1]), int(words[11]) + int(words[12]), int(words[17]), int(words[19]), int(words[21])
    )


def own_place() -> str:
    """Return an id of this boot and pid namespace; processes with an equal id can see each other."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"

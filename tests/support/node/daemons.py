"""The real node daemon as a process, for tests."""

import contextlib
import os
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.snd import SndClient
from support.forked import ForkedProgram, fork_rdukit
from support.recording import note_log

_COMMAND: Final = [sys.executable, "-c", "from rdukit.cli import main; main()"]
_START_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """A daemon process that has said that it is ready."""

    process: ForkedProgram
    socket: Path
    home: Path

    def connect(self) -> SndClient:
        """Return a new connection."""
        return SndClient(self.socket)

    def leases(self) -> list[dict[str, Any]]:
        """Ask for the leases that it has granted."""
        with self.connect() as client:
            return list(client.status()["leases"])

    def end(self, is_orderly: bool) -> None:
        """Stop it, or kill it, and wait for its end."""
        self.process.send_signal(signal.SIGTERM if is_orderly else signal.SIGKILL)
        self.process.communicate()


def node_command(*arguments: str) -> list[str]:
    """Command line of ``rdukit node …``, and nothing that depends on the PATH."""
    return [*_COMMAND, "node", *arguments]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return this process's environment with another home and without settings of the runtime."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RDUKIT_", "SF_RNT_"))}
    return {**kept, "RDUKIT_HOME": str(home), "OMP_NUM_THREADS": "1", **more}


def start_daemon(
    home: Path, platform: str = "TEST-1", more: Sequence[str] = (), settings: Mapping[str, str] | None = None
) -> RunningDaemon:
    """Start a daemon that serves ``home`` and wait until it is ready. The caller stops the process.

    Args:
        settings: environment variables for it.

    Raises:
        RuntimeError: it ended, or did not get ready in time; with its words.
    """
    home.mkdir(parents=True, exist_ok=True)
    words = home / "snd.stderr"  # not a pipe: nobody reads it while a test runs, and a full one would stop the daemon
    note_log(words)
    with words.open("a") as stderr:
        process = fork_rdukit(
            ["node", "start", "--platform", platform, "--with-parent", "--snml-port", "-1", *more],
            environment(home, **(settings or {})),
            stderr=stderr.fileno(),
            text=True,
        )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    line = process.stdout.readline() if ready else ""
    if not line.startswith("snd ready"):
        process.kill()
        process.communicate()
        raise RuntimeError(f"the node daemon did not start: {line!r} {words.read_text()}")
    return RunningDaemon(process, home / "run" / "snd.sock", home)


def stop_daemon(daemon: RunningDaemon) -> int:
    """Ask it to stop and wait. Returns its exit status."""
    daemon.process.terminate()
    daemon.process.communicate(timeout=20)
    return daemon.process.wait()


@contextlib.contextmanager
def running_daemon(platform: str = "TEST-1", more: Sequence[str] = ()) -> Iterator[RunningDaemon]:
    """Run a daemon with a home folder of its own, whose path is short enough for a socket; remove it afterwards."""
    home = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    try:
        daemon = start_daemon(home, platform, more)
        try:
            yield daemon
        finally:
            stop_daemon(daemon)
    finally:
        shutil.rmtree(home, ignore_errors=True)

"""One ModelBox process for one attempt: started, waited for, stopped."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rdukit.errors import Cancelled, Unavailable

logger = logging.getLogger(__name__)

POLL_S: Final = 0.02
TERM_S: Final = 8.0
LOG_TAIL_LINES: Final = 20


class BoxProcess:
    """A running ModelBox. It ends with its worker: the box asks the kernel for that itself."""

    def __init__(self, process: subprocess.Popen[bytes], log_file: Path, announce: Path) -> None:
        self._process = process
        self._announce = announce
        self.log_file = log_file

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        box: str,
        folder: Path,
        mounts: Sequence[Path],
        environment: Mapping[str, str],
        lock: int,
    ) -> "BoxProcess":
        """Start a box whose own files lie in ``folder``.

        Args:
            environment: variables besides this process's own.
            lock: a descriptor that the box inherits and never uses: a file lock on it lasts as long as the box.
        """
        announce, log_file = folder / "announce.json", folder / "box.log"
        arguments = ["run", "--box", box, "--rest-port", "0", "--grpc-port", "0"]
        arguments += ["--state", str(folder / "state"), "--announce", str(announce)]
        for mount in mounts:
            arguments += ["--mount", str(mount)]
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
                pass_fds=[lock],
            )
        return cls(process, log_file, announce)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait_ready(self, timeout_s: float, stop: threading.Event) -> str:
        """Wait until the box announces itself. Returns its REST address.

        Raises:
            Unavailable: it ended, or was not ready in time.
            Cancelled: ``stop`` was set.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return str(json.loads(self._announce.read_bytes())["rest"])
            except FileNotFoundError:
                pass
            if stop.is_set():
                raise Cancelled("the attempt was stopped while its box started")
            if not self.is_running:
                raise Unavailable(f"the box {self.describe_end()} before it was ready")
            if time.monotonic() > deadline:
                raise Unavailable(f"the box was not ready after {timeout_s:g} s")
            time.sleep(POLL_S)

    def describe_end(self) -> str:
        """``ended with status 3`` or ``was killed by SIGKILL``."""
        status = self._process.poll()
        if status is None:
            return "is running"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def terminate(self) -> None:
        """Ask it to end; it cancels what it does."""
        if self.is_running:
            self._process.terminate()

    def stop(self) -> None:
        """Make sure that it and all it started have ended."""
        self.terminate()
        try:
            self._process.wait(TERM_S)
        except subprocess.TimeoutExpired:
            logger.warning("box killed pid=%d", self.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def log_tail(self) -> list[str]:
        """The last lines that it wrote."""
        try:
            with self.log_file.open("rb") as stream:
                stream.seek(max(self.log_file.stat().st_size - 16384, 0))
                return stream.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        except OSError:
            return []

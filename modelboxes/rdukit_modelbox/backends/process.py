"""Run a box as a process on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

from rdukit.clock import Clock, SystemClock
from rdukit.errors import Unavailable
from rdukit_modelbox.backends.base import BoxSpec

POLL_S = 0.02


class ProcessBox:
    """A box in a child process of this one; it ends when this process does."""

    def __init__(self, process: subprocess.Popen[bytes], announced: dict[str, str], log_file: Path) -> None:
        self._process = process
        self._announced = announced
        self._log_file = log_file

    @property
    def rest_url(self) -> str:
        """Base address of the REST wire."""
        return self._announced["rest"]

    @property
    def grpc_address(self) -> str:
        """``host:port`` of the gRPC wire."""
        return self._announced["grpc"]

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    def logs(self) -> str:
        """What it has written to its log so far."""
        return self._log_file.read_text(errors="replace")

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL; returns when it has ended."""
        if self.is_alive():
            self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ProcessBackend:
    """Starts boxes as processes."""

    name = "process"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def start(self, spec: BoxSpec, timeout_s: float = 30.0) -> ProcessBox:
        """Start ``python -m rdukit_modelbox run`` and wait for its announcement.

        Raises:
            Unavailable: it ended or was not ready in time; the message has its last words.
        """
        spec.state.mkdir(parents=True, exist_ok=True)
        announce, log_file = spec.state / "box.json", spec.state / "box.log"
        announce.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "rdukit_modelbox", "run", "--box", spec.box, "--rest-port", "0", "--grpc-port", "0",
            "--state", str(spec.state), "--announce", str(announce), "--parent", str(os.getpid()),
        ]  # fmt: skip
        for mount in spec.mounts:
            command += ["--mount", str(mount)]
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **spec.environment}
            )
        deadline = self._clock.monotonic() + timeout_s
        while not announce.exists():
            status = process.poll()
            if status is not None or self._clock.monotonic() > deadline:
                process.kill()
                process.wait()
                words = log_file.read_text(errors="replace").strip()[-500:]
                what = f"ended with status {status}" if status is not None else f"was not ready in {timeout_s:g} s"
                raise Unavailable(f"box {spec.box} {what}: {words}")
            self._clock.sleep(POLL_S)
        return ProcessBox(process, json.loads(announce.read_text()), log_file)

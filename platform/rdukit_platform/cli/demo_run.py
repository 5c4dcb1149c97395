"""A platform for the length of the demo, and its pipeline's progress: live bars on a terminal, lines elsewhere."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rdukit.errors import Unavailable
from rdukit.settings import HOME
from rdukit.system.process import Child, start_child, stop_child
from rdukit_platform.cli.show import describe_progress
from rdukit_platform.client.http import FINAL_STATES, ApiClient

POLL_S: Final = 0.25
#: Shortest time in seconds between two progress lines of a step, if the output is not a terminal.
LINE_S: Final = 5.0


def follow_pipeline(client: ApiClient, pipeline_id: str) -> dict[str, Any]:
    """Show the progress of a pipeline's steps until all have ended. Returns the pipeline."""
    console = Console(stderr=True, highlight=False)
    shower = _Bars(console) if console.is_terminal else _Lines(console)
    with shower:
        while True:
            pipeline = client.get(f"/v1/pipelines/{pipeline_id}")
            for job in pipeline["jobs"]:
                shower.show(job)
            if all(job["state"] in FINAL_STATES for job in pipeline["jobs"]):
                return pipeline
            time.sleep(POLL_S)


def _words(job: dict[str, Any]) -> str:
    if job["state"] == "failed" and job["error"]:
        return str(job["error"]["message"])
    if job["state"] in FINAL_STATES:
        return ""
    return job["waits_for"] or describe_progress(job["progress"])


class _Bars:
    """A bar per step."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<11}"),
            TextColumn("{task.fields[state]:<10}"),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}"),
            console=console,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "_Bars":
        self._progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._progress.stop()

    def show(self, job: dict[str, Any]) -> None:
        """Bring the step's bar up to date."""
        task = self._tasks.get(job["id"])
        if task is None:
            task = self._progress.add_task(job["step"], start=False, total=None, state="", words="")
            self._tasks[job["id"]] = task
        if job["started_at"]:
            self._progress.start_task(task)
        progress = job["progress"] or {}
        total, done = progress.get("total") or None, progress.get("step") or 0
        if job["state"] == "succeeded":
            total = done = total or 1
        self._progress.update(task, total=total, completed=done, state=job["state"], words=_words(job))
        if job["state"] in FINAL_STATES:
            self._progress.stop_task(task)


class _Lines:
    """A line for each change of state, and from time to time for progress."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, tuple[str, float]] = {}
        self._began = time.monotonic()

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def show(self, job: dict[str, Any]) -> None:
        """Print what has changed."""
        state, at = self._told.get(job["id"], ("", 0.0))
        now = time.monotonic()
        if job["state"] == state and (state != "running" or now - at < LINE_S):
            return
        self._told[job["id"]] = (job["state"], now)
        text = f"{now - self._began:6.1f} s  {job['step']:<11}{job['state']:<11}{_words(job)}"
        self._console.print(text.rstrip(), soft_wrap=True)


STOP_S: Final = 40.0


@contextmanager
def started_platform(
    home: Path, port: int = 0, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[ApiClient, dict[str, Any]]]:
    """Run ``rdukit up`` in ``home``. Yields a client, and the platform's own ready message. The platform is stopped at
    the end.

    Args:
        environment: variables in addition to this process's own.

    Raises:
        Unavailable: the platform does not start; the message has its output.
    """
    program = "from rdukit.cli import main; main()"
    command = [sys.executable, "-c", program, "up", "--json", "--port", str(port)]
    variables = {**os.environ, **(environment or {}), HOME.variable: str(home)}
    process = start_child(command, subprocess.PIPE, variables)
    assert process.stdout is not None
    with ready_platform(process, process.stdout, home) as found:
        yield found


@contextmanager
def ready_platform(process: Child, stdout: IO[bytes], home: Path) -> Iterator[tuple[ApiClient, dict[str, Any]]]:
    """Yield a client of ``rdukit up --json`` (``process``) as soon as it is ready; stop the platform at the end.

    Raises:
        Unavailable: the platform does not start; the message has its output.
    """
    try:
        line = stdout.readline()
        if not line.startswith(b'{"url"'):
            raise Unavailable(f"the platform did not start in {home}; its logs are in {home / 'logs'}")
        running = json.loads(line)
        with ApiClient(running["url"], Path(running["token_file"]).read_text().strip()) as client:
            yield client, running
    finally:
        stop_child(process, STOP_S)
        stdout.close()

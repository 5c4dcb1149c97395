"""A platform that runs for the length of a ``with`` block, started as a user would start it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rdukit.errors import Unavailable
from rdukit.settings import HOME
from rdukit.system.process import die_with_parent
from rdukit_platform.cli.client import ApiClient

STOP_S: Final = 40.0


@contextmanager
def started_platform(
    home: Path, port: int = 0, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[ApiClient, dict[str, Any]]]:
    """``rdukit up`` in ``home``; gives a client of it and what it said when it was ready. Stopped at the end.

    Args:
        environment: variables besides this process's own.

    Raises:
        Unavailable: it does not come up; the message has what it said.
    """
    parent = os.getpid()

    def tie_to_parent() -> None:
        die_with_parent(parent, signal.SIGTERM)

    program = "from rdukit.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "up", "--json", "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, **(environment or {}), HOME.variable: str(home)},
        start_new_session=True,
        preexec_fn=tie_to_parent,  # noqa: PLW1509 - this process has one thread
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith(b'{"url"'):
            raise Unavailable(f"the platform did not start in {home}; its logs are in {home / 'logs'}")
        running = json.loads(line)
        with ApiClient(running["url"], Path(running["token_file"]).read_text().strip()) as client:
            yield client, running
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

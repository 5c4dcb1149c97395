"""``rdukit`` commands that serve a folder, as programs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from support.helpers import wait_until

RDUKIT: Final = Path(sys.executable).with_name("rdukit")


@contextmanager
def running(
    command: Sequence[str | Path], home: Path, kernels: str = "portable"
) -> Iterator[httpx.Client]:  # fmt: skip
    """Run a server until it has announced itself, and end it afterwards. ``home`` may be that of an earlier one."""
    announced, log = home / "announced.json", home / "log"
    home.mkdir(exist_ok=True)
    announced.unlink(missing_ok=True)
    environment = {**os.environ, "RDUKIT_HOME": str(home), "RDUKIT_KERNELS": kernels, "OMP_NUM_THREADS": "1"}
    ports: list[str | Path] = ["--rest-port", "0", "--grpc-port", "0", "--announce", announced]
    with log.open("wb") as stream, subprocess.Popen(
        [RDUKIT, *command, *ports], env=environment, stdout=stream, stderr=stream
    ) as process:  # fmt: skip
        try:
            wait_until(lambda: announced.exists() or process.poll() is not None, 600)
            assert announced.exists(), log.read_text()
            with httpx.Client(base_url=json.loads(announced.read_text())["rest"], trust_env=False, timeout=60) as http:
                yield http
        finally:
            process.terminate()

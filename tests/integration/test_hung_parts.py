"""A node daemon that hangs in a container is ended by the container's health check; so the engine starts it again."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support import shows, wait_until
from support.node.daemons import environment, node_command

pytestmark = shows("containers", "health")

COMPOSE = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text())
#: Process 1 of a container: starts the part, ends with it, and says how.
_INIT = "import subprocess, sys; part = subprocess.Popen(sys.argv[1:]); print(part.wait(), flush=True)"


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def check_of(service: str, home: Path) -> list[str]:
    """The service's health check, for a home elsewhere."""
    words = [str(word) for word in COMPOSE["services"][service]["healthcheck"]["test"]][1:]
    return [sys.executable if word == "python" else word.replace("/var/lib/rdukit", str(home)) for word in words]


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root makes a namespace of processes")
def test_the_check_of_compose_ends_a_daemon_that_hangs_and_no_other(home: Path) -> None:
    init = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", _INIT,
         *node_command("start", "--platform", "TEST-1", "--snml-port", "-1")],
        env=environment(home), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        (one,) = _children(init.pid, 1)
        inside = ["nsenter", "-t", str(one), "-p", "-m", *check_of("snd", home)]
        settings = environment(home, TMPDIR=str(home))
        wait_until(lambda: subprocess.run(inside, env=settings, check=False, capture_output=True).returncode == 0)
        (part,) = _children(one, 1)
        os.kill(part, signal.SIGSTOP)
        begun = time.monotonic()

        def is_ended() -> bool:
            status = subprocess.run(inside, env=settings, check=False, capture_output=True).returncode
            assert status in (1, -signal.SIGKILL), "unhealthy, or ended with the container"
            return init.poll() is not None

        wait_until(is_ended, what="the check ends the daemon, and process 1 with it")
        assert time.monotonic() - begun > 10, "it had time to come back"
        assert init.stdout is not None and init.stdout.read().split()[-1] == "-9"
    finally:
        init.kill()
        init.communicate()


def _children(pid: int, count: int) -> list[int]:
    found: list[int] = []

    def are_there() -> bool:
        found[:] = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return len(found) >= count

    wait_until(are_there, what=f"children of {pid}")
    return found

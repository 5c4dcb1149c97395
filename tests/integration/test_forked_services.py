"""What becomes of services whose fork server ends, and of children that are refused."""

import sys
from pathlib import Path

from rdukit.errors import Conflict, Unavailable
from rdukit_platform.up.supervisor import ServiceProcess, Supervisor
from support import shows

pytestmark = shows("up")

SLEEPING = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_service_is_started_by_its_command_where_no_fork_server_starts(tmp_path: Path) -> None:
    (tmp_path / "rdukit_platform").mkdir()
    (tmp_path / "rdukit_platform/__init__.py").touch()  # hides the package: the server finds no program
    service = ServiceProcess("sleeper", SLEEPING, is_forked=True)
    supervisor = Supervisor([service], tmp_path / "logs", {"PYTHONPATH": str(tmp_path)})
    supervisor.start()
    try:
        assert supervisor.watch(lambda: set(supervisor.pids()) == {"sleeper"}, 60.0)
        assert b"time.sleep" in Path(f"/proc/{supervisor.pids()['sleeper']}/cmdline").read_bytes()
    finally:
        supervisor.stop()


def test_a_child_that_is_refused_is_seen_by_its_status(tmp_path: Path) -> None:
    refused = [sys.executable, "-c", "import sys; print('the name is taken'); sys.exit(6)"]
    supervisor = Supervisor([ServiceProcess("worker", refused)], tmp_path / "logs", {})
    supervisor.start()
    try:
        assert supervisor.watch(lambda: bool(supervisor.last_words_of(Conflict.exit_status)), 60.0)
        assert "the name is taken" in supervisor.last_words_of(Conflict.exit_status)
        assert supervisor.last_words_of(Unavailable.exit_status) == ""
    finally:
        supervisor.stop()

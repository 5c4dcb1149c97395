"""Database in a folder, jobs in it, and a platform of real processes."""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from rdukit.settings import HOME
from rdukit_platform.backends.process_tree import tree_of
from rdukit_platform.catalog.model import Boxes, read_box
from rdukit_platform.cli.demo_run import ready_platform, started_platform
from rdukit_platform.client.http import FINAL_STATES, ApiClient
from rdukit_platform.db.engine import Database
from rdukit_platform.settings import Home
from support.forked import ForkedProgram, fork_rdukit, run_rdukit_forked
from support.helpers import pause_after
from support.platform.database import place_database
from support.recording import service_logs

#: A catalog with one box: ``preprocess`` makes the data set that ``train`` needs.
COUNTER: Mapping[str, object] = {
    "name": "counter",
    "verbs": [
        {
            "name": "preprocess",
            "parameters": [],
            "inputs": [{"name": "data", "kind": "folder", "required": False}],
            "outputs": [{"name": "dataset", "kind": "folder", "required": True}],
        },
        {
            "name": "train",
            "parameters": [
                {
                    "name": "steps",
                    "type": "int",
                    "default": 5,
                    "legal": "1 <= x <= 1000",
                    "help": "",
                    "schema": {"type": "integer", "minimum": 1, "maximum": 1000},
                },
                {
                    "name": "mode",
                    "type": "string",
                    "default": "o0",
                    "legal": "one of o0, o1",
                    "help": "",
                    "schema": {"type": "string", "enum": ["o0", "o1"]},
                },
            ],
            "inputs": [{"name": "dataset", "kind": "folder", "required": True}],
            "outputs": [{"name": "checkpoint", "kind": "folder", "required": True}],
        },
    ],
}


def counter_boxes() -> Boxes:
    """Return the catalog of ``COUNTER``."""
    return Boxes({"counter": read_box(COUNTER)})


@contextmanager
def fresh_database(folder: Path) -> Iterator[Database]:
    """Yield an empty, migrated SQLite database."""
    place_database(folder)
    with closing(Database(f"sqlite:///{folder / 'db.sqlite'}")) as database:
        yield database


def run_rdukit(*words: str, status: int = 0) -> str:
    """Run ``rdukit``, which must end with ``status``. Returns what it prints; of an error its message."""
    done = run_rdukit_forked(words)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


@contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a temporary folder whose path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="rdk-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class PlatformUnderTest:
    """A platform of real processes, and shortcuts to it."""

    def __init__(self, client: ApiClient, home: Path, running: Mapping[str, Any]) -> None:
        self.client, self.home, self.running = client, home, running

    def pid_of(self, name: str) -> int:
        """Process id of a child, as it was when the platform became ready."""
        return int(self.running["pids"][name])

    def kill(self, name: str) -> None:
        """SIGKILL to a child."""
        os.kill(self.pid_of(name), signal.SIGKILL)

    def submit(self, verb: str, **body: object) -> dict[str, Any]:
        """Submit a job of the box ``counter``, or of the one that ``box`` names."""
        return self.client.submit("/v1/jobs", {"box": "counter", "verb": verb, **body})

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the job as it is now."""
        return self.client.get(f"/v1/jobs/{job_id}")

    def wait_job(
        self, job_id: str, until: Callable[[dict[str, Any]], bool], timeout_s: float = 120.0
    ) -> dict[str, Any]:  # fmt: skip
        """Return the job as soon as ``until`` holds."""
        start = time.monotonic()
        while not until(found := self.job(job_id)):
            waited_s = time.monotonic() - start
            if waited_s > timeout_s:
                raise TimeoutError(f"job {job_id} did not get there: {found}")
            time.sleep(pause_after(waited_s))
        return found

    def wait_end(self, job_id: str, timeout_s: float = 120.0) -> dict[str, Any]:
        """Return the job when it has ended."""
        return self.wait_job(job_id, lambda job: job["state"] in FINAL_STATES, timeout_s)

    def states(self, job_id: str) -> list[str]:
        """Return the states that a job went through."""
        events = self.client.get(f"/v1/jobs/{job_id}/events")["events"]
        return [event["data"]["to"] for event in events if event["kind"] == "state"]


@contextmanager
def platform_under_test(
    home: Path, box_program: Path | None = None, environment: Mapping[str, str] | None = None, is_cold: bool = False
) -> Iterator[PlatformUnderTest]:
    """Run ``rdukit up`` in ``home`` on a free port; ``box_program`` stands in for the ModelBox command.

    Args:
        is_cold: start it as a new process, which imports all itself, not as a fork.
    """
    variables = {"OMP_NUM_THREADS": "1", **(environment or {})}
    if not os.environ.get("RDUKIT_DATABASE_URL", variables.get("RDUKIT_DATABASE_URL")):
        place_database(home)
    if box_program is not None:
        variables["RDUKIT_WORKER_BOX_COMMAND"] = f"{sys.executable} {box_program}"
    with ExitStack() as stack:
        stack.enter_context(service_logs(Home(home).logs))
        if is_cold:
            client, running = stack.enter_context(started_platform(home, 0, variables))
        else:
            program = fork_rdukit(
                ["up", "--json", "--port", "0"], {**os.environ, **variables, HOME.variable: str(home)}
            )
            assert program.stdout is not None
            client, running = stack.enter_context(ready_platform(program, program.stdout, home))
        yield PlatformUnderTest(client, home, running)


class NodeUnderTest:
    """``rdukit node join`` of a platform on this machine, in a home of its own; it may be killed and return."""

    def __init__(
        self, platform: PlatformUnderTest, home: Path, name: str, words: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            words: more of the command line.
            environment: variables besides this process's own; the database's, where it is not the platform's file.
        """
        self.home, self.name = home, name
        first = Home(platform.home)
        self._environment = {
            "OMP_NUM_THREADS": "1",
            "RDUKIT_DATABASE_URL": f"sqlite:///{first.folder / 'db.sqlite'}",
            **os.environ,
            **(environment or {}),
            "RDUKIT_HOME": str(home),
        }
        self._words = [
            *("node", "join", "--json", "--name", name),
            *("--broker", f"redis+socket://{first.broker_socket}", "--artifacts", str(first.folder / "artifacts")),
            *words,
        ]
        self._process: ForkedProgram | None = None

    @property
    def pid(self) -> int:
        """Process id of its supervisor."""
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        """Return whether its supervisor runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Begin to join; ``wait_joined`` waits for it."""
        self._close()
        self._process = fork_rdukit(self._words, self._environment)

    def wait_joined(self) -> dict[str, Any]:
        """Return what it says when it has joined."""
        assert self._process is not None and self._process.stdout is not None
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        return said

    def kill(self) -> None:
        """SIGKILL to all its processes at once."""
        for facts in tree_of(self.pid):
            with suppress(ProcessLookupError):
                os.kill(facts.pid, signal.SIGKILL)
        self.wait()

    def wait(self, timeout_s: float = 60.0) -> int:
        """Return the status that it ends with."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """End it in order, if it runs."""
        if self.is_running():
            assert self._process is not None
            self._process.terminate()
            self.wait()
        self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()


def build_digits(platform: PlatformUnderTest) -> dict[str, str]:
    """Run preprocess and compile of the box ``logreg``. Returns the inputs of its train: slot to artifact id."""
    steps = [
        {"name": "preprocess", "box": "logreg", "verb": "preprocess"},
        {"name": "compile", "box": "logreg", "verb": "compile", "parameters": {"mode": "o0", "num_tiles": 2}},
    ]
    pipeline = platform.client.submit("/v1/pipelines", {"name": "digits", "steps": steps})
    done = [platform.wait_end(job["id"], 120) for job in pipeline["jobs"]]
    assert [job["state"] for job in done] == ["succeeded", "succeeded"], done
    return {"dataset": done[0]["outputs"]["dataset"], "pef": done[1]["outputs"]["pef"]}


def has_ended(pid: int, timeout_s: float = 60.0) -> bool:
    """Return whether a process is gone, or only its parent's to bury, within the time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False

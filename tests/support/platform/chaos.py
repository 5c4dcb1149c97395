"""Chaos: what a platform works on while its parts are killed, what is done to it, and what must hold afterwards."""

import json
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Protocol
from zipfile import ZipFile

import psycopg
import redis
from safetensors.torch import load

from rdukit.errors import RdukitError, Unavailable
from rdukit_platform.backends.process_tree import tree_of
from rdukit_platform.cli.local import STEPS as VERBS
from rdukit_platform.cli.local import demo_steps
from rdukit_platform.settings import Home
from support.helpers import wait_until
from support.platform.processes import NodeUnderTest, PlatformUnderTest, short_folder

#: Seconds in which a submission gets through whatever is killed meanwhile.
PERSIST_S: Final = 300.0


@contextmanager
def both_boxes() -> Iterator[Path]:
    """Yield a program, a folder, that runs the tests' box and the real ones."""
    boxes = Path(__file__).parents[2] / "integration"
    with short_folder() as folder:
        folder.chmod(0o755)
        shutil.copy(boxes / "platform_boxes.py", folder / "__main__.py")
        shutil.copy(boxes / "platform_box.py", folder)
        yield folder


class Work(Protocol):
    """What the platform does while its parts are killed, and what is right."""

    #: The program that stands in for the boxes, and what is in the command line of a box.
    program: Path | None
    mark: str

    def prepare(self, platform: PlatformUnderTest) -> None:
        """Make what the jobs need and find out what is right, as long as nothing is disturbed."""

    def submit(self, platform: PlatformUnderTest) -> list[str]:
        """Begin some jobs. Returns their ids."""

    def check(self, platform: PlatformUnderTest, job: dict[str, Any]) -> None:
        """Check that a job made what it should."""


class CountingJobs:
    """Trainings of the tests' box, which go on from their checkpoints."""

    def __init__(self, program: Path, steps: int = 40, step_s: float = 0.05) -> None:
        self.program: Path | None = program
        self.mark = str(program)
        self._steps, self._step_s = steps, step_s
        self._dataset, self._digest = "", ""

    def prepare(self, platform: PlatformUnderTest) -> None:
        made = platform.wait_end(platform.submit("preprocess")["id"])
        assert made["state"] == "succeeded", made
        self._dataset = made["outputs"]["dataset"]
        (gold,) = self.submit(platform)
        self._digest = self._made(platform, platform.wait_end(gold))

    def submit(self, platform: PlatformUnderTest) -> list[str]:
        parameters = {"steps": self._steps, "step_s": self._step_s}
        body = {"box": "counter", "verb": "train", "inputs": {"dataset": self._dataset}, "tiles": 1,
                "parameters": parameters}  # fmt: skip
        return [str(persist(platform, "/v1/jobs", body)["id"])]

    def check(self, platform: PlatformUnderTest, job: dict[str, Any]) -> None:
        assert self._made(platform, job) == self._digest, job

    def _made(self, platform: PlatformUnderTest, job: dict[str, Any]) -> str:
        (artifact,) = platform.client.get("/v1/artifacts", job=job["id"])["artifacts"]
        assert json.loads(_download(platform, artifact["id"], path="latest.json")) == {"step": self._steps}, job
        return str(artifact["digest"])


class SweptJobs(CountingJobs):
    """Sweeps of four such trainings of different lengths."""

    LENGTHS: Final = (5, 10, 15, 20)

    def __init__(self, program: Path, step_s: float = 0.05) -> None:
        super().__init__(program, step_s=step_s)

    def prepare(self, platform: PlatformUnderTest) -> None:
        made = platform.wait_end(platform.submit("preprocess")["id"])
        assert made["state"] == "succeeded", made
        self._dataset = made["outputs"]["dataset"]

    def submit(self, platform: PlatformUnderTest) -> list[str]:
        job = {"box": "counter", "verb": "train", "inputs": {"dataset": self._dataset}, "tiles": 1,
               "parameters": {"step_s": self._step_s}}  # fmt: skip
        body = {"name": "lengths", "job": job, "space": {"steps": {"values": [*self.LENGTHS]}},
                "objective": {"metric": "steps", "goal": "maximize"}, "max_parallel": len(self.LENGTHS)}  # fmt: skip
        sweep = persist(platform, "/v1/sweeps", body)["id"]
        trials: list[dict[str, Any]] = []

        def has_all() -> bool:  # the scheduler makes them, if it is not being killed
            with suppress(RdukitError):
                trials[:] = platform.client.get(f"/v1/sweeps/{sweep}")["trials"]
            return len(trials) == len(self.LENGTHS)

        wait_until(has_all, PERSIST_S, "the trials of a sweep are made")
        return [str(trial["job"]) for trial in trials]

    def check(self, platform: PlatformUnderTest, job: dict[str, Any]) -> None:
        steps = job["parameters"]["steps"]
        (artifact,) = platform.client.get("/v1/artifacts", job=job["id"])["artifacts"]
        assert json.loads(_download(platform, artifact["id"], path="latest.json")) == {"step": steps}, job
        sweep = platform.client.get(f"/v1/sweeps/{job['labels']['sweep']}")
        lengths = sorted(trial["parameters"]["steps"] for trial in sweep["trials"])
        assert lengths == [*self.LENGTHS], sweep
        wait_until(
            lambda: platform.client.get(f"/v1/sweeps/{sweep['id']}")["state"] == "succeeded", what="its sweep ends"
        )


class QuickJobs:
    """Jobs of the tests' box that are over at once, many by one request: they are taken ahead and ended together."""

    def __init__(self, program: Path, at_once: int = 50) -> None:
        self.program: Path | None = program
        self.mark = str(program)
        self.at_once = at_once
        self._digest = ""

    def prepare(self, platform: PlatformUnderTest) -> None:
        self._digest = self._made(platform, platform.wait_end(self.submit(platform)[0]))

    def submit(self, platform: PlatformUnderTest) -> list[str]:
        jobs = [{"box": "counter", "verb": "preprocess"}] * self.at_once
        return list(persist(platform, "/v1/jobs/batch", {"jobs": jobs})["ids"])

    def check(self, platform: PlatformUnderTest, job: dict[str, Any]) -> None:
        assert self._made(platform, job) == self._digest, job

    def _made(self, platform: PlatformUnderTest, job: dict[str, Any]) -> str:
        (artifact,) = platform.client.get("/v1/artifacts", job=job["id"])["artifacts"]
        assert json.loads(_download(platform, artifact["id"], path="manifest.json")) == {"inputs": []}, job
        return str(artifact["digest"])


class DigitsPipelines:
    """The demo's pipelines with the box ``logreg``; the first one runs undisturbed and says what is right."""

    program: Path | None = None
    mark = "rdukit_modelbox"

    def __init__(self, epochs: int = 12) -> None:
        #: A training whose checkpoints are about a tenth of a second apart.
        self._parameters: Mapping[str, object] = {"epochs": epochs, "checkpoint_every": 50}
        self._gold: dict[str, dict[str, Any]] = {}

    def prepare(self, platform: PlatformUnderTest) -> None:
        for job in self._submit(platform):
            self._gold[job["step"]] = platform.wait_end(job["id"], 300)

    def submit(self, platform: PlatformUnderTest) -> list[str]:
        return [str(job["id"]) for job in self._submit(platform)]

    def _submit(self, platform: PlatformUnderTest) -> list[dict[str, Any]]:
        steps = demo_steps("logreg")
        steps[VERBS.index("train")]["parameters"] = self._parameters
        jobs: list[dict[str, Any]] = persist(
            platform, "/v1/pipelines", {"name": "digits", "steps": steps, "cache": False}
        )["jobs"]
        return jobs

    def check(self, platform: PlatformUnderTest, job: dict[str, Any]) -> None:
        gold = self._gold[job["step"]]
        assert job["outputs"].keys() == gold["outputs"].keys()
        if job["step"] in {"train", "infer"}:
            assert self._figures(job) == self._figures(gold), job
        read = {"preprocess": self._folder, "compile": self._graphs, "train": self._tensors}.get(job["step"])
        if read is not None:
            assert read(platform, job) == read(platform, gold), job

    def _figures(self, job: dict[str, Any]) -> dict[str, Any]:
        """What a job told, without the times that it took on this machine or that it summed in another order."""
        return {k: v for k, v in job["result"].items() if not k.endswith("_seconds") and k != "resumed_from_step"}

    def _folder(self, platform: PlatformUnderTest, job: dict[str, Any]) -> object:
        return platform.client.get(f"/v1/artifacts/{job['outputs']['dataset']}")["digest"]

    def _graphs(self, platform: PlatformUnderTest, job: dict[str, Any]) -> object:
        """What a PEF has beside its description, which names the folder that it was made in."""
        with ZipFile(BytesIO(_download(platform, job["outputs"]["pef"]))) as pef:
            return {entry.filename: entry.CRC for entry in pef.infolist() if entry.filename != "pef.json"}

    def _tensors(self, platform: PlatformUnderTest, job: dict[str, Any]) -> object:
        newest = json.loads(_download(platform, job["outputs"]["checkpoint"], path="latest.json"))
        found = load(_download(platform, job["outputs"]["checkpoint"], path=newest["file"]))
        return {name: (tensor.dtype, tensor.tolist()) for name, tensor in found.items()}


def persist(platform: PlatformUnderTest, path: str, body: Mapping[str, object]) -> dict[str, Any]:
    """Submit under one idempotency key until the gateway has answered.

    Raises:
        RdukitError: it refused, or stays away.
    """
    keyed = {**body, "idempotency_key": uuid.uuid4().hex}
    deadline = time.monotonic() + PERSIST_S
    while True:
        try:
            return platform.client.submit(path, keyed)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _download(platform: PlatformUnderTest, artifact: str, **parameters: str) -> bytes:
    content = BytesIO()
    platform.client.download(f"/v1/artifacts/{artifact}/content", content, **parameters)
    return content.getvalue()


def command_of(pid: int) -> str:
    """Return the command line of a process; ``""``: it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def name_of(pid: int) -> str:
    """Return the name of a process; ``""``: it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


#: What the command line of each part has in it, beside the box's. Forks, and what they are forked from, have a name.
PARTS: Final = {
    "broker": "valkey", "snd": "node start", "gateway": "rdukit_platform.gateway",
    "scheduler": "rdukit_platform.scheduler", "worker": "rdukit_platform.worker", "services": "",
}  # fmt: skip
PROCESSES: Final = (*PARTS, "box")
#: What goes wrong with messages: all lost with the disk of the broker, one lost, one twice.
MESSAGES: Final = ("broker emptied", "message lost", "message twice")


class Chaos:
    """What is done to a platform, in an order that the seed decides."""

    def __init__(
        self, platform: PlatformUnderTest, mark: str, seed: int, kinds: Iterable[str],
        second: NodeUnderTest | None = None, database_url: str = "", clock_file: Path | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            mark: what is in the command line of a box.
            kinds: what may be done, of ``PROCESSES``, ``MESSAGES``, ``database``, ``clock`` and ``node``.
            database_url: of a PostgreSQL server's; none: the SQLite file of the platform's home.
            clock_file: of ``settable_clock``, which all processes read.
        """
        self._platform, self._second, self._database_url = platform, second, database_url
        self._marks, self._clock_file = {**PARTS, "box": mark}, clock_file
        self._dice, self._kinds = random.Random(seed), sorted(kinds)
        self.struck = list[str]()

    def strike(self) -> str | None:
        """Do the next thing. Returns what; ``None``: there was nothing to do it to."""
        kind = self._dice.choice(self._kinds)
        done: Callable[[], bool] = {
            "database": self._end_database_work, "clock": self._set_clock, "node": self._kill_node,
            "broker emptied": self._empty_broker, "message lost": lambda: self._take_message(0),
            "message twice": lambda: self._take_message(2),
        }.get(kind, lambda: self._kill_part(kind))  # fmt: skip
        if not done():
            return None
        self.struck.append(kind)
        return kind

    def pids_of(self, part: str) -> list[int]:
        """Processes of one part that run now, on all nodes."""
        supervisors = [int(self._platform.running["pid"])]
        if self._second is not None and self._second.is_running():
            supervisors.append(self._second.pid)
        with suppress(ProcessLookupError):
            mine = [facts.pid for pid in supervisors for facts in tree_of(pid)[1:]]
            mark = self._marks[part]
            return [pid for pid in mine if name_of(pid) == part or (mark and mark in command_of(pid))]
        return []

    def _kill_part(self, part: str) -> bool:
        pids = self.pids_of(part)
        if not pids:
            return False
        with suppress(ProcessLookupError):
            os.kill(self._dice.choice(pids), signal.SIGKILL)
        return True

    def _kill_node(self) -> bool:
        """Kill all processes of the second node at once, or let it return."""
        assert self._second is not None
        if self._second.is_running():
            self._second.kill()
        else:
            self._second.start()
        return True

    def _end_database_work(self) -> bool:
        """Kill the server's process of a connection; of SQLite's a writer within its transaction."""
        if not self._database_url:
            return kill_writer(Home(self._platform.home).folder / "db.sqlite")
        with suppress(psycopg.Error), closing(psycopg.connect(self._database_url, autocommit=True)) as connection:
            mine = "datname = current_database() and pid <> pg_backend_pid()"
            pids = [row[0] for row in connection.execute(f"select pid from pg_stat_activity where {mine}").fetchall()]
            if not pids:
                return False
            if self._dice.random() < 0.5:
                # The server ends all its connections and recovers.
                os.kill(self._dice.choice(pids), signal.SIGKILL)
            else:
                connection.execute("select pg_terminate_backend(%s)", [self._dice.choice(pids)])
            return True
        return False

    def _set_clock(self) -> bool:
        assert self._clock_file is not None
        offset_s = self._dice.choice([-1, 1]) * self._dice.choice([5, 60, 900, 7200])
        with self._clock_file.open("r+b") as file:  # in place: the processes have it mapped
            file.write(struct.pack("q", offset_s))
        return True

    def _empty_broker(self) -> bool:
        home = Home(self._platform.home)
        killed = self._kill_part("broker")
        shutil.rmtree(home.broker, ignore_errors=True)
        home.broker.mkdir(mode=0o700)
        return killed

    def _take_message(self, copies: int) -> bool:
        """Take a message out of the broker, waiting or delivered, and put so many of it back."""
        with suppress(redis.RedisError), closing(redis.Redis(unix_socket_path=str(self._broker()))) as client:
            queues = [key for key in client.keys("rdukit.attempts*") if client.type(key) == b"list"]
            for key in queues:
                message = client.lpop(key)
                if isinstance(message, bytes):
                    for _ in range(copies):
                        client.lpush(key, message)
                    return True
            waiting = sorted(client.hkeys("unacked"))
            if waiting:
                tag = self._dice.choice(waiting)
                message, _, queue = json.loads(client.hget("unacked", tag) or b"null")
                if copies:
                    client.lpush(queue, json.dumps(message))
                else:
                    client.hdel("unacked", tag)
                return True
        return False

    def _broker(self) -> Path:
        return Home(self._platform.home).broker_socket


def settable_clock(folder: Path) -> tuple[Path, dict[str, str]]:
    """Return a file that sets the wall clock of processes, and the variables that they must have. Needs ``cc``."""
    library, file = folder / "set_clock.so", folder / "clock"
    source = Path(__file__).with_name("set_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
    file.write_bytes(struct.pack("q", 0))
    return file, {"LD_PRELOAD": str(library), "RDUKIT_TEST_CLOCK": str(file)}


#: Begins to write into all jobs, and says so; it does not get to the end.
_WRITER: Final = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], timeout=15, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE jobs SET name = 'never', state = 'failed'")
print("writes", flush=True)
time.sleep(60)
"""


def kill_writer(database: Path) -> bool:
    """Kill a process that has written into each row of SQLite's jobs before it commits."""
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(database)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    with writer.stdout:
        had_begun = writer.stdout.readline() == b"writes\n"
    time.sleep(0.2)
    writer.kill()
    writer.wait()
    return had_begun


def is_ready(platform: PlatformUnderTest) -> bool:
    """Return whether all parts are up."""
    with suppress(RdukitError):
        return bool(platform.client.get("/health")["status"] == "ready")
    return False


def why_wrong(platform: PlatformUnderTest, work: Work, job: dict[str, Any]) -> str:
    """Return what is wrong with a job that should have succeeded, once; ``""``: nothing."""
    if (job["state"], job["reason"]) != ("succeeded", "completed"):
        return f"{job['id']} is {job['state']}: {job['reason']} {job['error']}"
    ends = Counter(attempt["outcome"] for attempt in job["attempts"])["succeeded"]
    told = platform.states(job["id"]).count("succeeded")
    if (ends, told) != (1, 1):
        return f"{job['id']} has {ends} attempts that succeeded and told {told} times that it had"
    try:
        work.check(platform, job)
    except AssertionError as error:
        return f"{job['id']} has made something else: {str(error)[:500]}"
    return ""


def leftovers(homes: Iterable[Path]) -> list[str]:
    """Return what outlived platforms that were stopped: their processes, and folders of jobs."""
    homes = list(homes)
    left = [str(path) for home in homes for path in Home(home).work.glob("*")]
    for entry in Path("/proc").glob("[0-9]*"):
        command = command_of(int(entry.name))
        if entry.name != str(os.getpid()) and any(str(home) in command for home in homes):
            left.append(f"process {entry.name}: {command[:160]}")
    return left


def is_sound(database: Path) -> bool:
    """Return whether SQLite finds no fault with its file."""
    with closing(sqlite3.connect(database)) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchone() == ("ok",))

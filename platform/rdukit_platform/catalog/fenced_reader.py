"""Programs that read a tenant's files for the gateway, in a fence if the machine has one, and always with limits.

A parser of untrusted input may take any memory and time, and may have exploitable faults.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, Overloaded, Unavailable
from rdukit.fence.probe import NOBODY, what_holds
from rdukit.fence.spec import MEMORY_LIMIT, FenceLimits, FenceSpec, Way
from rdukit.fence.start import absolute_command, program_paths, start_fenced
from rdukit.settings import home_folder, resolve
from rdukit_platform.backends.box_variables import THREADS, UNFENCED, fenced_variables, named_variables
from rdukit_platform.backends.fenced import end_fenced, give_folder, open_to_read
from rdukit_platform.settings import FENCE

#: Largest numbers of concurrent readers, of all tenants and of one; each takes processes, memory and a request's
#: thread.
MAX_READERS: Final = 4
MAX_READERS_OF_TENANT: Final = 2
#: Limits of memory and seconds for reading a box or bundle. The largest vocabularies take a fifth.
MEMORY_BYTES: Final = 1 << 30
SECONDS: Final = 60
#: Longest answer of a reader, and bytes kept of its error output.
MAX_ANSWER_BYTES: Final = 16 << 20
MAX_WORDS_BYTES: Final = 16 << 10
LIMITS: Final = FenceLimits(
    memory_bytes=MEMORY_BYTES, processes=256, file_bytes=MAX_ANSWER_BYTES, open_files=256, disk_bytes=64 << 20,
    disk_files=1000, temporary_bytes=64 << 20,
)  # fmt: skip
#: Runs a program whose output goes to a file.
_INTO: Final = ("/bin/sh", "-c", 'exec "$@" >"$0"')
#: Runs a program with limits if there is no fence.
_LIMITED: Final = f"""
import os, resource, sys
for limit, most in (("DATA", {MEMORY_BYTES}), ("FSIZE", {MAX_ANSWER_BYTES}), ("CPU", {SECONDS}), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (most, most))
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Readers:
    """The readers of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Tenants whose files are being read, once for each reader.
        self._busy = Counter[str]()

    @property
    def total(self) -> int:
        """Return the number of running readers."""
        return self._busy.total()

    @contextmanager
    def one_of(self, tenant_id: str) -> Iterator[None]:
        """Count a reader while the block lasts.

        Raises:
            Overloaded: the tenant's limit, or that of all tenants, is reached.
        """
        with self._lock:
            own, total = self._busy[tenant_id], self._busy.total()
            if total >= MAX_READERS or own >= MAX_READERS_OF_TENANT:
                raise Overloaded(
                    f"{own} of your files or folders and {total} in all are being read; try again in a few seconds"
                )
            self._busy[tenant_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= Counter({tenant_id: 1})


READERS: Final = Readers()


@dataclass(frozen=True, slots=True)
class ReaderEnd:
    """End of a reader: exit status, stdout, and the end of stderr."""

    status: int
    answer: bytes
    words: str


def run_reader(line: Sequence[str], folder: Path) -> ReaderEnd:
    """Run a program that reads ``folder`` and nothing else of the home folder.

    Args:
        line: the command with its arguments.
    Raises:
        InvalidArgument: it exceeds its limit of memory or time.
        Unavailable: the reader cannot run.
    """
    if shutil.which(line[0]) is None:
        raise Unavailable(f"{' '.join(line)} gave no description, because program {line[0]!r} does not exist")
    way = what_holds().way if resolve(FENCE) != "off" else None
    with tempfile.TemporaryDirectory(prefix="rdukit-reader-") as scratch, tempfile.TemporaryFile() as words:
        own = Path(scratch, "own")
        try:
            process = (
                _start_fenced(line, folder, own, way, words.fileno()) if way else _start(line, own, words.fileno())
            )
            try:
                status = process.wait(SECONDS)
            except subprocess.TimeoutExpired as cause:
                raise InvalidArgument(f"reading it takes more than {SECONDS} s; make it smaller") from cause
            finally:
                end_fenced(process) if way else process.kill()
                process.wait()
            answer = _read_answer(own / "answer")
        except OSError as cause:
            raise Unavailable(f"{' '.join(line)} cannot be run: {cause}") from cause
        words.seek(max(0, words.seek(0, os.SEEK_END) - MAX_WORDS_BYTES))
        said = words.read().decode(errors="replace")
    if status and (status == MEMORY_LIMIT or "MemoryError" in said or b"MemoryError" in answer):
        raise InvalidArgument(f"reading it takes more than {MEMORY_BYTES >> 20} MiB of memory; make it smaller")
    return ReaderEnd(status, answer, said)


def _start_fenced(line: Sequence[str], folder: Path, own: Path, way: Way, words: int) -> "subprocess.Popen[bytes]":
    uid = NOBODY if way is Way.ROOT else None
    give_folder(own, uid)
    open_to_read(folder)
    environment = fenced_variables(os.environ, {**named_variables(), **dict.fromkeys(THREADS, "1")}, str(own))
    if search := os.environ.get("PYTHONPATH", ""):
        environment["PYTHONPATH"] = search
    spec = FenceSpec(
        command=[*_INTO, str(own / "answer"), *absolute_command(line)],
        environment=environment,
        folder=str(own),
        readable=[*program_paths(_program_of(line, folder), search), str(folder)],
        writable=[str(own)],
        hidden=[str(home_folder())],
        limits=LIMITS,
        uid=uid,
        parent=os.getpid(),
    )
    return start_fenced(spec, way, words)


def _start(line: Sequence[str], own: Path, words: int) -> "subprocess.Popen[bytes]":
    own.mkdir()
    environment = {name: os.environ[name] for name in UNFENCED if name in os.environ}
    with (own / "answer").open("wb") as answer:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LIMITED, *absolute_command(line)],
            stdin=subprocess.DEVNULL, stdout=answer, stderr=words, env=environment | named_variables(),
        )  # fmt: skip


def _program_of(line: Sequence[str], folder: Path) -> list[str]:
    """Return the arguments of a command that belong to the program, without those inside ``folder``."""
    return [word for word in line if not Path(word).is_relative_to(folder)]


def _read_answer(file: Path) -> bytes:
    """Read the program's output file, which it may have replaced by another kind of file."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(descriptor, "rb") as stream:
        return stream.read(MAX_ANSWER_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""

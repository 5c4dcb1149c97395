"""Python programs of tests – ``rdukit``, tools, SambaFlow programs – forked from a process that has imported a lot.

A cold ``rdukit up`` spends ten core-seconds on imports, a program that needs torch three, a command one. Tests that are
about what these do, not about how they start, fork them; what a cold start does has its tests, too. The server is the
product's own (``rdukit.system.forks``), one of each kind for each test process, started when first needed.
"""

import atexit
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final

from rdukit.system.forks import ForkedProcess, ForkRequest, ForkServer, import_for_forks, serve_forks
from rdukit.system.process import die_with_parent
from rdukit_platform.up.services import MODULES as SERVICES
from rdukit_platform.up.services import prepare_services
from support.helpers import FIND_SUPPORT, wait_until

#: What commands share besides the platform's services: the command line, and the node daemon.
COMMANDS: Final = (
    *SERVICES, "rdukit.cli", "rdukit.cli.status", "rdukit_platform.cli.local", "rdukit_platform.cli.job",
    "rdukit_platform.cli.artifact", "rdukit_platform.cli.node", "rdukit_platform.cli.pipeline",
    "rdukit_platform.cli.sweep", "rdukit_platform.cli.endpoint", "rdukit_platform.cli.expert",
    "rdukit_platform.cli.catalog", "rdukit_platform.cli.tenant", "rdukit_platform.cli.token",
    "rdukit_platform.cli.webhook", "rdukit_platform.up.run", "rdukit_node.cli.node", "rdukit_node.daemon.server",
    "rdukit_node.cli.snfadm", "rdukit_node.cli.snconfig", "rdukit_node.cli.sntilestat", "runpy",
)  # fmt: skip
#: What SambaFlow programs share.
SAMBAFLOW: Final = (
    "torch", "sambaflow.samba", "sambaflow.samba.utils", "sambaflow.samba.utils.argparser", "sambaflow.samba.session",
    "rdukit_compiler.pipeline",
    "rdukit_compiler.capture.from_fx", "rdukit_compiler.capture.record", "sambaflow.sessions.compiling",
    "rdukit_runtime.application", "rdukit_zoo.registry", "rdukit_zoo.datasets.digits", "numpy.random",
    "safetensors.torch", "sympy", "rdukit.cli", "runpy",
)  # fmt: skip
KINDS: Final = {"commands": COMMANDS, "sambaflow": SAMBAFLOW}
#: Of this process, also while pytest captures what tests write.
STDERR: Final = 2
#: What the server's path has besides, to import this.
SUPPORT: Final = str(Path(__file__).parents[1])
#: Signals that a fork handles as any new process of Python does; SIGPIPE is ignored there, too.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ForkedProgram:
    """A forked command, as ``subprocess.Popen`` shows one.

    Args:
        stdout: what it writes, if that is a pipe.
    """

    def __init__(self, process: ForkedProcess, args: Sequence[str], stdout: IO[Any] | None) -> None:
        self.args, self.pid, self.stdout = list(args), process.pid, stdout
        self._process = process
        self.poll, self.wait = process.poll, process.wait
        self.terminate, self.kill, self.send_signal = process.terminate, process.kill, process.send_signal

    @property
    def returncode(self) -> int | None:
        """Its exit status as far as it is known."""
        return self._process.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, None]:
        """Read what it writes until its end; returns that, and None if it was read before.

        Raises:
            subprocess.TimeoutExpired: it runs after ``timeout`` seconds. What it had written is lost.
        """
        if timeout is not None:
            self.wait(timeout)
        said = None
        if self.stdout is not None and not self.stdout.closed:
            said = self.stdout.read()
            self.stdout.close()
        self.wait()
        return said, None


@cache
def _server(kind: str) -> ForkServer:
    """Start a server, with the environment of now and without settings of rdukit."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RDUKIT_")}
    program = f"{FIND_SUPPORT}from support.forked import main\nmain()"
    command = [sys.executable, "-c", program, kind]
    server = ForkServer.start(command, {**environment, "OMP_NUM_THREADS": "1"}, STDERR)
    atexit.register(server.close)
    wait_until(lambda: server.is_ready() or server.has_ended(), 300, what=f"the fork server of {kind}")
    return server


def fork_python(
    words: Sequence[str], environment: Mapping[str, str] | None = None, *, stdout: int = subprocess.PIPE,
    stderr: int | None = None, cwd: Path | None = None, text: bool = False, kind: str = "commands",
) -> ForkedProgram:  # fmt: skip
    """Start ``python`` with words, as a fork; it gets SIGTERM when the test process ends, and reads nothing.

    Args:
        words: ``-c PROGRAM``, ``-m MODULE`` or a file, and its arguments.
        environment: all of its variables; None: those of this process.
        stdout: a pipe, or a descriptor.
        stderr: a descriptor, such as that of stdout; None: this process's.
        kind: of ``KINDS``; what was imported before. With torch it computes with one thread.
    """
    body = {"name": "python", "words": list(words), "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment)}  # fmt: skip
    reader = writer = -1
    if stdout == subprocess.PIPE:
        reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        errors = STDERR if stderr is None else stderr
        process = _server(kind).fork(body, writer if writer >= 0 else stdout, others=(errors,))
    finally:
        if writer >= 0:
            os.close(writer)
    stream: IO[Any] | None = None
    if reader >= 0:
        stream = os.fdopen(reader, "r") if text else os.fdopen(reader, "rb", buffering=0)
    return ForkedProgram(process, ["python", *words], stream)


def run_python(
    words: Sequence[str], environment: Mapping[str, str] | None = None, *, cwd: Path | None = None,
    timeout_s: float = 120.0, kind: str = "commands",
) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """Run ``python`` with words to its end, as a fork. Returns its status and what it wrote, as ``subprocess.run``.

    Raises:
        subprocess.TimeoutExpired: it takes longer than ``timeout_s``; it is killed.
    """
    with os.fdopen(os.memfd_create("stdout"), "r+") as out, os.fdopen(os.memfd_create("stderr"), "r+") as err:
        program = fork_python(words, environment, stdout=out.fileno(), stderr=err.fileno(), cwd=cwd, kind=kind)
        try:
            status = program.wait(timeout_s)
        except subprocess.TimeoutExpired:
            program.kill()
            raise
        return subprocess.CompletedProcess(program.args, status, *(_read(stream) for stream in (out, err)))


#: What ``rdukit`` is to Python.
_RDUKIT: Final = ("-c", "from rdukit.cli import main; main()")


def fork_rdukit(words: Sequence[str], environment: Mapping[str, str] | None = None, **more: Any) -> ForkedProgram:
    """Start ``rdukit`` with words, as ``fork_python``."""
    return fork_python([*_RDUKIT, *words], environment, **more)


def run_rdukit_forked(
    words: Sequence[str], environment: Mapping[str, str] | None = None, **more: Any
) -> "subprocess.CompletedProcess[str]":
    """Run ``rdukit`` with words, as ``run_python``."""
    return run_python([*_RDUKIT, *words], environment, **more)


def _read(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


def run_program(request: ForkRequest) -> int:
    """Become the program that a request names, in a fork."""
    die_with_parent(request.server, signal.SIGTERM)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    body = request.body
    (errors,) = request.descriptors
    os.dup2(errors, STDERR)
    os.close(errors)
    os.environ.clear()
    os.environ.update(body["environment"])
    time.tzset()
    os.chdir(body["cwd"])
    first, *words = body["words"]
    sys.path[:] = [path for path in sys.path if path != SUPPORT]
    sys.modules.pop("__main__")
    if first == "-c":
        code, *arguments = words
        sys.argv[:], sys.path[:0] = ["-c", *arguments], [""]
        main_module = ModuleType("__main__")
        sys.modules["__main__"] = main_module
        exec(compile(code, "<string>", "exec"), main_module.__dict__)
    elif first == "-m":
        module, *arguments = words
        sys.argv[:], sys.path[:0] = [module, *arguments], [""]
        sys.modules["__main__"] = ModuleType("__main__")
        sys.modules.pop(module, None)  # as if it were new, which runpy asks for
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:], sys.path[:0] = [first, *words], [str(Path(first).absolute().parent)]
        sys.modules["__main__"] = ModuleType("__main__")
        runpy.run_path(first, run_name="__main__")
    return 0


def main() -> None:
    """Serve forks to the test process: kind and descriptor are the arguments."""
    kind, descriptor = sys.argv[1:]
    import_for_forks(KINDS[kind])
    if kind == "commands":
        prepare_services()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_forks(int(descriptor), run_program)

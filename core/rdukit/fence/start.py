"""Start a program in a fence, as a process or in a fork of a server, and find the paths that it must be able to
read.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

from rdukit.errors import InvalidArgument
from rdukit.fence import launcher
from rdukit.fence.seccomp import make_filter, pack_filter
from rdukit.fence.spec import FenceSpec, Way, outermost, to_json
from rdukit.system.forks import ForkRequest, run_to_end

LAUNCHER: Final = Path(__file__).with_name("launcher.py")
#: Packages that a box may import, if they are installed.
PACKAGES: Final = (
    "rdukit", "rdukit_compiler", "rdukit_node", "rdukit_runtime", "rdukit_serving", "rdukit_modelbox", "rdukit_zoo",
    "sambaflow",
)  # fmt: skip
#: Environment of the launcher itself, without the caller's variables.
_LAUNCHER_ENVIRONMENT: Final[Mapping[str, str]] = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def start_fenced(spec: FenceSpec, way: Way, output: IO[bytes] | int | None = None) -> "subprocess.Popen[bytes]":
    """Start a program in its fence; return the launcher's process, which ends like the program, and the program with
    it.

    ``output`` receives the program's stdout and stderr, and the reason if it could not be fenced. Its stdin is empty.

    Raises:
        InvalidArgument: no filter of system calls is known for this processor.
    """
    text = launcher_json(spec, way)
    descriptor = os.memfd_create("fence", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(LAUNCHER), "--spec-fd", str(descriptor)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(_LAUNCHER_ENVIRONMENT),
            cwd="/",
            start_new_session=True,
            pass_fds=(descriptor, *spec.held),
        )
    finally:
        os.close(descriptor)


def launcher_json(spec: FenceSpec, way: Way) -> str:
    """Return the launcher's specification.

    Raises:
        InvalidArgument: no filter of system calls is known for this processor.
    """
    return to_json(spec, way, _filter_of(os.uname().machine))


@functools.cache
def _filter_of(machine: str) -> bytes:
    return pack_filter(make_filter(machine))


def program_paths(command: Sequence[str], search: str = "") -> list[str]:
    """Return the paths that a command must be able to read: its interpreter, packages and the files in its arguments.

    The search runs once in each process.

    Args:
        search: the program's ``PYTHONPATH``.
    Raises:
        InvalidArgument: the program does not exist.
    """
    return list(_find_program_paths(tuple(command), search))


@functools.cache
def _find_program_paths(command: tuple[str, ...], search: str) -> tuple[str, ...]:
    program = shutil.which(command[0])
    if program is None:
        raise InvalidArgument(f"there is no program {command[0]!r}")
    paths = [program, *_environment_of(Path(program))]
    if Path(program).resolve() == Path(sys.executable).resolve():
        paths += [sys.prefix, sys.base_prefix, *_packages()]
    paths += [word for word in command[1:] if word.startswith("/") and Path(word).exists()]
    paths += [word for word in search.split(os.pathsep) if word.startswith("/") and Path(word).is_dir()]
    return tuple(outermost(paths))


def absolute_command(command: Sequence[str]) -> list[str]:
    """Return the command with its program's full path."""
    return [shutil.which(command[0]) or command[0], *command[1:]]


def _environment_of(program: Path) -> list[str]:
    """Return the folders of an interpreter's virtual environment and of the one that it is based on."""
    folder = program.parent.parent
    try:
        lines = (folder / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return []
    settings = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    home = settings.get("home")
    return [str(folder), *([str(Path(home).parent)] if home else [])]


def _packages() -> list[str]:
    found = [find_spec(name) for name in PACKAGES]
    ours = [folder for spec in found if spec is not None for folder in spec.submodule_search_locations or ()]
    # Folders of packages, including the user's.
    installed = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    return [path for path in (*ours, *installed) if Path(path).is_dir()]


def run_forked(request: ForkRequest, program: Callable[[Sequence[str]], int]) -> int:
    """Run ``program`` with the request's ``arguments`` and ``environment``, in its ``fence`` if it has one.

    ``fence`` comes from ``launcher_json``, and its environment is the program's. The program inherits neither the
    server's environment nor descriptors of the server or the fence.
    """
    fence = request.body.get("fence")
    if fence is None:
        return _run(request, program, request.body["environment"], request.descriptors)
    # The launcher is a child of the server, which ends with its client.
    watched = {**fence, "parent": None if fence["parent"] is None else request.server}

    def become(spec: Mapping[str, Any]) -> None:
        run_to_end(functools.partial(_run, request, program, spec["environment"], ()))

    return launcher.launch(watched, become)


def _run(
    request: ForkRequest, program: Callable[[Sequence[str]], int], environment: Mapping[str, str], kept: Sequence[int]
) -> int:
    request.close_others(kept)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return program(request.body["arguments"])

"""Programs in a fence, of each kind that this machine has, and what they said there."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rdukit.fence.spec import FenceLimits, FenceSpec, Way
from rdukit.fence.start import program_paths, start_fenced

START_S = 30.0
OTHER_PYTHON = "/usr/bin/python3"
#: Users of this process alone, who own no files: limits of processes count all of a user's, and tests run side by side.
UID = 210_000 + os.getpid() % 9_999
OTHER_UID = str(40_000 + os.getpid() % 20_000)
OTHER_USER = ["setpriv", "--reuid", OTHER_UID, "--regid", OTHER_UID, "--clear-groups", OTHER_PYTHON, "-I"]
#: Starts, as a user without rights, what its input says, and ends as that does.
DRIVER = f"""
import json, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "core")!r})
from rdukit.fence.spec import FenceLimits, FenceSpec, Way
from rdukit.fence.start import start_fenced
text = sys.stdin.read()
if not text:
    sys.exit(0)
given = json.loads(text)
given |= {{"limits": FenceLimits(**given["limits"]), "parent": os.getpid()}}
process = start_fenced(FenceSpec(**given), Way.USER)
status = process.wait()
os.kill(os.getpid(), -status) if status < 0 else sys.exit(status)
"""
#: Before each attack: how to try something and say what came of it.
PREAMBLE = """
import ctypes, errno, json, os, resource, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def attempt(act):
    try:
        found = act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return found if isinstance(found, (str, int, list)) else "done"
def call(name, *arguments):
    ctypes.set_errno(0)
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
def system_call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), str(number))
"""

Run = Callable[..., Any]


class Fenced:
    """What a program of a test said, and how it ended."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text

    @property
    def said(self) -> Any:
        """The JSON of its last line."""
        assert self.status == 0, self.text
        return json.loads(self.text.splitlines()[-1])


@pytest.fixture(params=[Way.ROOT, Way.USER])
def run(request: pytest.FixtureRequest, folder: Path) -> Run:
    """Run code in a fence, of each kind that this machine has."""
    way: Way = request.param
    if way is Way.ROOT and os.getuid() != 0:
        pytest.skip("only root has fences of this kind")
    if way is Way.USER and os.getuid() == 0 and not has_other_user(folder):
        pytest.skip(f"{OTHER_PYTHON} of another user cannot run our code")

    def run_code(code: str, *words: object, limits: FenceLimits | None = None, **more: Any) -> Fenced:
        process, output = start(way, folder / "work", code, *words, limits=limits, **more)
        process.wait(START_S)
        return Fenced(process.returncode, output.read_text())

    return run_code


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield one with a folder ``work`` that everybody may write; pytest's own folders are closed to other users."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "work").mkdir()
    (folder / "work").chmod(0o777)
    yield folder
    # Folders in folders can be too deep for Python's own way to remove them.
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def has_other_user(folder: Path) -> bool:
    """Return whether a user without rights can run the launcher here."""
    try:
        words = [*OTHER_USER, "-c", DRIVER]
        return subprocess.run(words, check=False, cwd=folder, input=b"", timeout=START_S).returncode == 0
    except FileNotFoundError:
        return False


def start(
    way: Way,
    work: Path,
    code: str,
    *words: object,
    limits: FenceLimits | None = None,
    more: Sequence[str] = (),
    **rest: Any,
) -> "tuple[subprocess.Popen[bytes], Path]":
    """Start code in a fence whose folder is ``work``. Returns its process and the file with what it says."""
    is_other = way is Way.USER and os.getuid() == 0
    python = OTHER_PYTHON if is_other else sys.executable
    command = [python, "-I", "-S", "-c", PREAMBLE + code, str(work), *map(str, words)]
    paths = [*program_paths(command[:1]), *more]
    output = work.with_suffix(".txt")
    limits = limits or FenceLimits(processes=64)
    given = {"folder": str(work), "readable": paths, "writable": [str(work)], **rest}
    with output.open("wb") as stream:
        if not is_other:
            uid = UID if way is Way.ROOT else None
            spec = FenceSpec(command, {"HOME": str(work)}, limits=limits, uid=uid, parent=os.getpid(), **given)
            return start_fenced(spec, way, stream), output
        process = subprocess.Popen(
            [*OTHER_USER, "-c", DRIVER],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=stream,
            cwd="/",
            pass_fds=rest.get("held", ()),
        )
        assert process.stdin is not None
        process.stdin.write(
            json.dumps({"command": command, "environment": {}, **given, "limits": asdict(limits)}).encode()
        )
        process.stdin.close()
        return process, output


def listed_processes() -> str:
    """Return state and command line of every process of this machine."""
    return subprocess.run(["ps", "-eo", "stat,args"], check=True, capture_output=True, text=True).stdout

"""A compile shows its phases in a terminal; what a program prints into a pipe or file is the same without one."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import shows

pytestmark = [shows("surface"), pytest.mark.long]

PROGRAM = """
import sys
from torch import nn
from sambaflow import samba
from sambaflow.samba.utils.argparser import parse_app_args

args = parse_app_args(sys.argv[1:])
model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))
samba.from_torch_model_(model)
samba.session.compile(model, (samba.randn(3, 7, name="x"),), name="small", config_dict=vars(args))
"""
BUILD = ("-c", "from rdukit.cli import main; main()", "pef", "build", "out/small/small.pef", "-o", "built.pef")


@dataclass(frozen=True, slots=True)
class Output:
    """What a program wrote."""

    stdout: bytes
    stderr: bytes


def run(folder: Path, *arguments: str, in_terminal: bool) -> Output:
    """Run Python with stdout into a file, and stderr into a terminal of 120 columns or another file."""
    variables = {**os.environ, "RDUKIT_KERNELS": "portable", "TERM": "xterm-256color"}
    command = [sys.executable, *arguments]
    with (folder / "stdout").open("wb") as stdout:
        if not in_terminal:
            done = subprocess.run(
                command, cwd=folder, env=variables, stdout=stdout, stderr=subprocess.PIPE, check=True
            )  # fmt: skip
            return Output((folder / "stdout").read_bytes(), done.stderr)
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdin=slave, stdout=stdout, stderr=slave, start_new_session=True
        )  # fmt: skip
        os.close(slave)
        shown = _read_to_the_end(master)
        assert process.wait() == 0, shown.decode()
        return Output((folder / "stdout").read_bytes(), shown)


def _read_to_the_end(master: int) -> bytes:
    shown = b""
    try:
        while data := os.read(master, 65536):
            shown += data
    except OSError:  # the last one closed the terminal
        pass
    finally:
        os.close(master)
    return shown


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_phases_are_shown_in_a_terminal_and_stdout_stays_what_it_is(program: Path) -> None:
    arguments = (str(program), "compile", "--pef-name", "small", "--inference")
    piped = run(program.parent, *arguments, in_terminal=False)
    watched = run(program.parent, *arguments, in_terminal=True)
    assert b"[info    ]: Compilation succeeded." in piped.stdout
    assert watched.stdout == piped.stdout
    assert b"compiling" not in piped.stderr and b"\x1b" not in piped.stdout + piped.stderr
    for phase in (b"dtypes of ", b"cutting sections", b"sections of ", b"writing the PEF"):
        assert b"compiling: " + phase in watched.stderr
    assert b"0:00:0" in watched.stderr, "the time of a phase"
    assert watched.stderr.count(b"\x1b[?25h") == watched.stderr.count(b"\x1b[?25l") > 0, "the cursor comes back"

    built = run(program.parent, *BUILD, in_terminal=True)
    assert b"compiling: kernels" in built.stderr and b"0/1" in built.stderr
    built = run(program.parent, *BUILD, in_terminal=False)
    assert built.stdout == b"" and len(built.stderr.splitlines()) == 1, "as before: what was built, in one line"

"""Every tool whose output cannot be written ends with one line on stderr and a status of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from support import shows
from support.forked import fork_python
from support.node.daemons import environment

pytestmark = shows(
    "snconfig",
    "slurmfeeder",
    "snddrstat",
    "snfadm",
    "snpciestat",
    "snprof",
    "sntilestat",
    "node",
    "pef",
    "zoo",
    "errors",
)

NODE_TOOLS = ("exporter", "slurmfeeder", "snconfig", "snddrstat", "snfadm", "snpciestat", "sntilestat")
TOOLS = (*(f"rdukit_node.cli.{tool}" for tool in NODE_TOOLS), "rdukit_runtime.profile.snprof")
COMMANDS = [
    *([tool, *words] for tool in TOOLS for words in (["--help"], ["--json"])),
    ["rdukit_node.cli.snfadm", "-l", "catalogue", "--json"],
    ["rdukit_node.cli.snfadm", "--no-such-option", "--json"],
    ["rdukit.cli", "--help"],
    ["rdukit.cli", "node", "status", "--json"],
    ["rdukit.cli", "zoo", "list"],
    ["rdukit.cli", "pef", "show", "nothing.pef", "--json"],
]
RUN = "import importlib, sys; sys.argv[0] = 'tool'; importlib.import_module(sys.argv.pop(1)).main()"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_output_that_does_not_fit_is_one_line_and_an_exit_status(tmp_path: Path, command: list[str]) -> None:
    with Path("/dev/full").open("w") as full, (tmp_path / "stderr").open("w+") as stderr:
        program = fork_python(
            ["-c", RUN, *command], environment(tmp_path), stdout=full.fileno(), stderr=stderr.fileno()
        )
        status = program.wait(60)
        stderr.seek(0)
        said = stderr.read()
    assert status not in (0, 1, 120), said
    assert "Traceback" not in said and "Exception ignored" not in said
    errors = [line for line in said.splitlines() if line.lower().startswith("error")]
    assert len(errors) == 1, said


@pytest.mark.parametrize("words", ["print('x' * 10)", "print('x', flush=True)", "raise SystemExit(0)"])
def test_what_is_still_in_the_buffer_at_the_end_counts_too(tmp_path: Path, words: str) -> None:
    program = f"from rdukit.cli import exit_on_error\nwith exit_on_error():\n    print('y', end='')\n    {words}"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 7
    assert done.stderr.splitlines() == [
        "error [disk-full]: no space is left on the disk or in the quota; make room and try again"
    ]

"""``snprof``: run a program and show its time on host and device.

Source: runtime reference 6.3 (``-c``, the summary's columns and rows, its files' names); the other options are ours.
"""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import write_reports
from rdukit.files.owned import scratch_folder
from rdukit_node.cli.output import aligned, csv_option, csv_text, host_option, json_option, json_text
from rdukit_runtime.profile.step import COLUMNS, Breakdown, breakdown_from_dict, breakdown_rows, join_breakdowns
from rdukit_runtime.settings import PROFILE_FOLDER

_TOOL: Final = "snprof"
#: Words that only a shell understands.
_SHELL: Final = re.compile(r"[|&;<>()$`*?\[\]~#{}\n]")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="snprof")
@click.option("-c", "command", required=True, metavar="COMMAND", help="The full command line, as one argument.")
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), default=Path("snprof"),
    help="Folder for summary.json and summary.csv (default: snprof).",
)  # fmt: skip
@json_option
@csv_option
@host_option
@click.pass_context
def snprof(context: click.Context, /, command: str, folder: Path, as_json: bool, as_csv: bool) -> None:
    """Run COMMAND and break down its time from the first run of a session to the last.

    RUN HW near 100 % means that the device is the limit; all else is the host's. With --json or --csv the program's
    output goes to stderr. The exit status is the program's, or 3 if it ended well without running a session.

    Example: snprof -c "python mlp.py run --pef=out/mlp/mlp.pef"

    Example: snprof -c "python gpt2.py run --pef=out/gpt2/gpt2.pef" -o profile --json
    """
    if as_json and as_csv:
        raise InvalidArgument("--json and --csv cannot be combined; choose one")
    arguments, environment = command_arguments(command)
    with scratch_folder("snprof") as scratch:
        environment = {**os.environ, **environment, PROFILE_FOLDER.variable: str(scratch)}
        status = run_program(arguments, environment, 2 if as_json or as_csv else None)
        found = read_breakdowns(scratch)
    summary = {"command": command, "exit_status": status, **summary_of(found)}
    table = csv_text(COLUMNS, breakdown_rows(found))
    files = {"summary.json": json_text(summary).encode() + b"\n", "summary.csv": table.encode() + b"\n"}
    try:
        write_reports(folder, files)
    except OSError as cause:
        click.echo(f"{_TOOL}: the summary cannot be written into {folder}: {cause.strerror}", err=True)
    if as_json:
        click.echo(json_text(summary))
    elif as_csv:
        click.echo(table)
    else:
        click.echo("\n".join(breakdown_lines(found)))
    if not found.processes:
        message = f"{_TOOL}: the program completed no session, so there is no breakdown"
        click.echo(message, err=True)
        status = status or NotFound.exit_status
    context.exit(status)


def command_arguments(command: str) -> tuple[list[str], dict[str, str]]:
    """Return arguments and environment of a command line. A shell runs the command only if it contains shell syntax.

    Raises:
        InvalidArgument: the command is empty, or a quotation mark is left open.
    """
    try:
        words = shlex.split(command)
    except ValueError as cause:
        raise InvalidArgument(f"-c {command!r} cannot be read: {cause}") from cause
    if _SHELL.search(command):
        return ["/bin/sh", "-c", command], {}
    environment = {}
    while words and _ASSIGNMENT.match(words[0]):
        name, _, environment[name] = words.pop(0).partition("=")
    if not words:
        raise InvalidArgument(f'-c {command!r} holds no command; expected snprof -c "python app.py run --pef=app.pef"')
    return words, environment


def read_breakdowns(folder: Path) -> Breakdown:
    """Return the sum of the breakdowns of a program's processes in ``folder``; zeros without any."""
    return join_breakdowns(breakdown_from_dict(json.loads(file.read_text())) for file in sorted(folder.glob("*.json")))


def summary_of(breakdown: Breakdown) -> dict[str, object]:
    """Return the summary as plain values."""
    return {"processes": breakdown.processes, "runs": breakdown.runs, "breakdown": breakdown_rows(breakdown)}


def breakdown_lines(breakdown: Breakdown) -> list[str]:
    """Return the table for people."""
    rows = [list(COLUMNS)]
    for row in breakdown_rows(breakdown):
        name, nanoseconds, seconds, percentage = row.values()
        rows.append([str(name), str(nanoseconds), f"{seconds:.6f}", f"{percentage:.2f}"])
    return aligned(rows, right=(1, 2, 3))


def run_program(arguments: list[str], environment: Mapping[str, str], output: int | None = None) -> int:
    """Run a program to its end; returns its exit status, 128 and the signal's number if a signal ended it.

    SIGTERM is passed on to it; Ctrl-C reaches it directly.

    Args:
        output: descriptor of its standard output; 2: stderr. Its own stderr is unchanged.
    Raises:
        NotFound: the program cannot be started.
    """
    errors = None if output in {None, 2} else output
    try:
        process = subprocess.Popen(arguments, env=dict(environment), stdout=output, stderr=errors)
    except OSError as cause:
        raise NotFound(f"{arguments[0]!r} cannot be started: {cause.strerror}") from cause
    with _signals_go_to(process):
        status = process.wait()
    return 128 - status if status < 0 else status


@contextmanager
def _signals_go_to(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Pass SIGTERM on to ``process`` and ignore Ctrl-C, which the terminal sends to ``process`` itself."""
    former = signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
        signal.signal(signal.SIGINT, interrupt)


def main() -> None:
    """Entry point."""
    run_command(snprof)


if __name__ == "__main__":
    main()

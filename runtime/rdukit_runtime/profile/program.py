"""``rdukit profile``: run a program and draw its time, from its lines of Python to the kernels of its sections.

This command imports torch once the program has ended.
"""

import json
import os
import shlex
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from rdukit.cli.tables import Table, print_tables
from rdukit.errors import InvalidArgument, NotFound
from rdukit.files.atomic import write_reports
from rdukit.units import format_seconds
from rdukit_runtime.profile.program_run import BYTES_A_CALL, profile_program

#: Sections in the printed table; all are in summary.json.
_MOST_ROWS: Final = 20


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), default=Path("profile"), show_default=True,
    help="Folder for report.html, trace.json, speedscope.json and summary.json.",
)  # fmt: skip
@click.option(
    "--limit-mb",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    help="Largest size of each file in megabytes.",
)
@click.option(
    "--try", "is_tried", is_flag=True, help="Apply the best advice, and measure COMMAND with and without the change."
)
@click.option("--try-with", metavar="COMMAND", help="Measure this command, which contains the advised change.")
@click.option(
    "--rounds",
    type=click.IntRange(7),
    default=7,
    show_default=True,
    help="Number of pairs of runs that --try measures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print summary.json; the program's output goes to stderr.")
@click.pass_context
def profile(
    context: click.Context, /, command: tuple[str, ...], folder: Path, limit_mb: int, is_tried: bool,
    try_with: str | None, rounds: int, as_json: bool,
) -> None:  # fmt: skip
    """Run COMMAND, and show its time on the host and in sections, from Python lines to kernels.

    Put -- before COMMAND. Traces hold names, lines and times, never values of tensors. The exit status is the
    program's, or 3 if it ended well without compiling or running anything.

    Example: rdukit profile -- python mlp.py run --pef=out/mlp/mlp.pef

    Example: rdukit profile --try -- python gpt2.py run --pef=out/gpt2/gpt2.pef
    """
    limit = limit_mb * 1_000_000
    found = profile_program(command, limit // BYTES_A_CALL, os.environ, 2 if as_json else None)
    from rdukit_runtime.report.files import profile_files, summarize_profile
    from rdukit_runtime.report.make import build_page
    from rdukit_runtime.report.try_advice import INTERRUPTED, Trials

    page = None
    if found.recordings:
        command_line = shlex.join(["rdukit", "profile", *(["--try"] if is_tried else []), "--", *command])
        page = build_page(found.command, found.recordings, found.spans, [command_line], os.environ)
        trials = Trials(command, found, rounds, os.environ, lambda line: click.echo(line, err=True))
        if try_with is not None and not found.status:
            page = replace(page, advice=trials.try_command(page.advice, shlex.split(try_with)))
        if is_tried and not found.status:
            page = replace(page, advice=trials.try_all(page.advice))
    is_interrupted = page is not None and any(each.trial == INTERRUPTED for each in page.advice)
    summary = summarize_profile(found, page)
    files = profile_files(found, summary, page, limit)
    try:
        write_reports(folder, files)
    except OSError as cause:
        raise InvalidArgument(f"{folder} cannot be written: {cause.strerror}; choose another with -o") from cause
    if as_json:
        click.echo(json.dumps(summary, indent=1))
    else:
        print_tables(summary_tables(summary))
    for name in files:
        click.echo(f"{folder / name} created", err=True)
    status = 128 + signal.SIGINT if is_interrupted else found.status
    if not (found.recordings or found.spans):
        click.echo("the program neither compiled a model nor ran a session, so there is no profile", err=True)
        status = status or NotFound.exit_status
    context.exit(status)


def summary_tables(summary: dict[str, Any]) -> list[Table]:
    """Return tables of a summary: an account a process, and the sections that took longest."""
    tables = []
    if not summary["processes"] and summary["spans"]:
        spans = tuple((span["name"], format_seconds(span["ns"] / 1e9)) for span in summary["spans"])
        total = ("total", format_seconds(summary["wall_ns"] / 1e9))
        title = "The program ran no session: time of this machine (measured)"
        tables.append(Table(title, ("what", "time"), (*spans, total), frozenset({"time"})))
    for process in summary["processes"]:
        tables += [_account_table(process), _sections_table(process)]
    if any(each["trial"] for each in summary.get("advice", ())):
        tables.append(_advice_table(summary["advice"]))
    if (straggler := summary["straggler"]) is not None:
        words = f"takes {straggler['times_the_others']:.2f} times as long per run as the other ranks, which wait for it"
        tables.insert(0, Table("", ("", ""), ((f"rank {straggler['rank']}", words),)))
    return tables


def _account_table(process: dict[str, Any]) -> Table:
    wall = process["wall_ns"] or 1
    sums: dict[tuple[str, str], int] = {}
    for row in process["account"]:
        key = ("sections", "all, see below") if row["part"] == "section" else ("host", row["name"])
        sums[key] = sums.get(key, 0) + row["ns"]
    rows = [(part, name, format_seconds(ns / 1e9), f"{100 * ns / wall:.1f} %") for (part, name), ns in sums.items()]
    rows.append(("total", "life of the process", format_seconds(wall / 1e9), "100.0 %"))
    title = f"Process {process['pid']}, rank {process['rank']}, {process['runs']} runs: time of this machine (measured)"
    if process["calls_not_kept"]:
        title += (
            f"; the trace has the first {process['calls_kept']} calls and omits {process['calls_not_kept']} later ones"
        )
    return Table(title, ("part", "what", "time", "share"), tuple(rows), frozenset({"time", "share"}))


def _sections_table(process: dict[str, Any]) -> Table:
    listed = sorted(process["sections"], key=lambda section: -section["host_ns"])
    wall = process["wall_ns"] or 1
    rows = tuple(
        (
            str(s["id"]), s["type"], s["name"], s["graph"], s["form"], str(s["runs"]),
            format_seconds(s["host_ns"] / 1e9), f"{100 * s['host_ns'] / wall:.1f} %",
            format_seconds(s["emulated_ns"] / 1e9),
        )
        for s in listed[:_MOST_ROWS]
    )  # fmt: skip
    title = f"Sections, the longest {len(rows)} of {len(listed)}; emulated time is projected by the cost model"
    columns = ("id", "type", "section", "graph", "kernel", "runs", "host time", "share", "emulated time")
    return Table(title, columns, rows, frozenset({"id", "runs", "host time", "share", "emulated time"}))


def _advice_table(advice: Sequence[dict[str, Any]]) -> Table:
    rows = tuple(
        (
            each["change"].partition("#")[0].strip(), f"{each['gain']:.2f}",
            f"{each['trial']['state']}: {each['trial']['words']}" if each["trial"] else "",
        )
        for each in advice
    )  # fmt: skip
    return Table("Advice: gains as factors of speed", ("change", "predicted", "trial"), rows, frozenset({"predicted"}))

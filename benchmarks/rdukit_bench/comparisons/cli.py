"""``rdukit bench``: compare this machine with PyTorch and other common tools."""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from rdukit.cli.tables import print_table, print_tables
from rdukit.errors import InvalidArgument
from rdukit_bench.comparisons.machine import describe_machine, measured_limits
from rdukit_bench.comparisons.model import QUESTIONS, BenchOptions, BenchProgress, ComparisonRow, check_name
from rdukit_bench.comparisons.report import describe_progress, describe_row, make_table, report_body, write_report
from rdukit_bench.comparisons.runner import ComparisonOutcome, run_comparisons


@click.command()
@click.argument("names", nargs=-1, metavar="[NAMES]...")
@click.option("--list", "as_list", is_flag=True, help="List the comparisons and stop.")
@click.option("--machine", "as_machine", is_flag=True, help="Measure what the machine can do at most, and stop.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout instead of tables.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=9,
    show_default=True,
    help="Samples of each variant, taken in turn; at least 7 are taken, 3 with --quick.",
)
@click.option("--quick", is_flag=True, help="Few samples, and none of the cases that take minutes.")
@click.option(
    "--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Threads of ours and of the peers."
)
@click.option("--only", default=None, help="Only the cases whose name contains this.")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path, file_okay=False), default=None,
              help="Write bench.json and bench.svg to this folder.")  # fmt: skip
def bench(
    names: tuple[str, ...], as_list: bool, as_machine: bool, as_json: bool, rounds: int, quick: bool, threads: int,
    only: str | None, folder: Path | None,
) -> None:  # fmt: skip
    """Compare this machine's speed and memory with those of PyTorch and other common tools.

    Each comparison runs in a process of its own, ours and the peers in turn; only the ratios mean anything. Without
    names all comparisons run. Ctrl-C prints what is done.

    Example: rdukit bench training_step --quick -o bench

    Example: rdukit bench llama --threads 2
    """
    if as_list:
        _print_list(as_json)
        return
    if as_machine:
        _print_limits(as_json, threads)
        return
    chosen = names or tuple(QUESTIONS)
    for name in chosen:
        check_name(name)
    options = BenchOptions(rounds=rounds, threads=threads, quick=quick, only=only)
    outcomes, interrupted = measure(chosen, options)
    if only is not None and not interrupted and not any(outcome.rows or outcome.error for outcome in outcomes):
        message = f"--only: {only!r} is in no case of {', '.join(chosen)}; expected a part of a case's name"
        raise InvalidArgument(message, field="only")
    wants_machine = as_json or folder is not None
    machine = {**describe_machine(), "limits": measured_limits(threads)} if wants_machine else describe_machine()
    body = report_body(outcomes, machine, asdict(options))
    _print_outcomes(outcomes, body, as_json)
    if folder is not None:
        for path in write_report(folder, body):
            click.echo(f"wrote {path}", err=True)
    if interrupted:
        raise click.exceptions.Exit(130)
    if any(outcome.error for outcome in outcomes):
        raise click.exceptions.Exit(1)


def measure(names: Sequence[str], options: BenchOptions) -> tuple[list[ComparisonOutcome], bool]:
    """Run the comparisons, talking on stderr. Returns what they gave, and whether Ctrl-C ended it early."""
    talk = Console(stderr=True)
    outcomes: list[ComparisonOutcome] = []
    running: list[str] = []
    streamed: list[ComparisonRow] = []
    began = 0.0

    def start(name: str) -> None:
        running.append(name)
        streamed.clear()
        tell(QUESTIONS[name])

    def tell(line: str) -> None:
        if talk.is_terminal:
            status.update(line)
        else:
            talk.print(line, highlight=False, markup=False, soft_wrap=True)

    def show_progress(progress: BenchProgress) -> None:
        nonlocal began
        if progress.done == 0:
            began = time.monotonic()
        tell(f"{running[-1]} {describe_progress(progress, time.monotonic() - began)}")

    def show(row: ComparisonRow) -> None:
        streamed.append(row)
        talk.print(
            "  ".join(cell for cell in describe_row(row)[1:-1] if cell), highlight=False, markup=False, soft_wrap=True
        )

    with tempfile.TemporaryDirectory(prefix="rdukit-bench-") as folder, talk.status("") as status:
        try:
            for outcome in run_comparisons(names, replace(options, folder=folder), start, show, show_progress):
                outcomes.append(outcome)
                if outcome.error:
                    talk.print(
                        f"{outcome.name}: {outcome.error}", style="red", highlight=False, markup=False, soft_wrap=True
                    )
        except KeyboardInterrupt:
            if len(outcomes) < len(running):
                outcomes.append(ComparisonOutcome(running[-1], tuple(streamed), "interrupted"))
            return outcomes, True
    return outcomes, False


def _print_list(as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([{"name": name, "question": line} for name, line in QUESTIONS.items()]))
        return
    print_table(("NAME", "QUESTION"), QUESTIONS.items())


def _print_limits(as_json: bool, threads: int) -> None:
    from rdukit_runtime.engine.machine_limits import renew_limits

    limits = asdict(renew_limits(threads))
    if as_json:
        click.echo(json.dumps({**describe_machine(), "limits": limits}, sort_keys=True))
        return
    described = describe_machine()
    lines = {
        "processor": limits["processor"],
        "flags": " ".join(described["flags"]),
        "cores": f"{described['cores']} usable, {limits['threads']} measured",
        "memory": f"read {limits['read_gb_s']:.1f} GB/s, copy {limits['copy_gb_s']:.1f} GB/s",
        **{f"GEMM {dtype}": f"{value:.0f} GFLOP/s" for dtype, value in limits["gemm"].items()},
        "operator": f"{limits['operator_s'] * 1e6:.2f} us a call",
    }
    for key, value in lines.items():
        click.echo(f"{key:10} {value}")


def _print_outcomes(outcomes: Sequence[ComparisonOutcome], body: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(body, sort_keys=True))
        return
    rows = [row for outcome in outcomes for row in outcome.rows]
    print_tables([make_table(rows)])
    for outcome in outcomes:
        if outcome.error:
            click.echo(f"{outcome.name}: {outcome.error}")

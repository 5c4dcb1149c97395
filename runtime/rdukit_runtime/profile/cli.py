"""``rdukit pef profile``: the times of a PEF's sections on this machine. Attached to ``rdukit pef`` by entry point.

torch is imported when it runs, not when ``rdukit pef --help`` lists it.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_reports

if TYPE_CHECKING:
    from rdukit_runtime.profile.pef import Profile


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--runs", type=click.IntRange(min=1), default=10, show_default=True, help="Steps to measure.")
@click.option("--graph", help="Profile only this graph; default: all except evaluation graphs, in the PEF's order.")
@click.option("--sections", "types", help="Profile only these section types, such as fwd,bckwd,opt.")
@click.option(
    "--portable", "--o0", "is_portable", is_flag=True, help="Run generated ATen code instead of native libraries."
)
@click.option(
    "--operators", "shows_operators", is_flag=True, help="Also time the operators inside sections, as ATen code."
)
@click.option("--all", "shows_all", is_flag=True, help="Print one row per section, even if several share a kernel.")
@click.option("--measure-limits", "renews_limits", is_flag=True, help="Measure this machine's limits again.")
@click.option(
    "--ranks", type=click.IntRange(1), help="World size for which the reduce is projected; default: as compiled."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with unrounded figures.")
@click.option("--trace", type=click.Path(path_type=Path), help="Write the last run as a trace for Perfetto.")
@click.option("--roofline", type=click.Path(path_type=Path), help="Write an SVG picture of sections under the limits.")
def profile(
    file: Path, runs: int, graph: str | None, types: str | None, is_portable: bool,
    shows_operators: bool, shows_all: bool, renews_limits: bool, ranks: int | None, as_json: bool, trace: Path | None,
    roofline: Path | None,
) -> None:  # fmt: skip
    """Run FILE with made-up values and show each section's time here, and the machine's limits.

    Host time, GFLOP/s and GB/s are measured on this machine; emulated time, flop and bytes are the cost model's.
    Weights, inputs and labels are made up: only times mean anything.

    Example: rdukit pef profile out/logreg/logreg.pef --roofline logreg.svg

    Example: rdukit pef profile mlp.pef --operators --json
    """
    from rdukit.cli.tables import print_tables
    from rdukit.pef.explain import explain_reduce, reduce_table
    from rdukit.pef.file import read_pef
    from rdukit_runtime.profile.operators import operators_to_dicts
    from rdukit_runtime.profile.pef import profile_to_dict
    from rdukit_runtime.profile.reports import operators_table, profile_tables
    from rdukit_runtime.profile.run import ProfileRequest, profile_file, profile_operators

    reduce = {} if ranks is None else explain_reduce(read_pef(file).pef, ranks, None)
    request = ProfileRequest(file, runs, graph, _types_of(types), is_portable, renews_limits)
    with _progress(runs, "runs") as on_run:
        found = profile_file(request, on_run)
    operators = None
    if shows_operators:
        with _progress(runs, "runs by operator") as on_run:
            operators = profile_operators(request, on_run)
    if as_json:
        listed = None if operators is None else operators_to_dicts(operators)
        click.echo(json.dumps(profile_to_dict(found, listed) | reduce, indent=2, sort_keys=True))
    else:
        tables = profile_tables(found, shows_all)
        more = [] if operators is None else [operators_table(operators)]
        more += [reduce_table(reduce["reduce"])] if reduce else []
        print_tables([*tables, *more])
    _write_files(found, trace, roofline)


def _types_of(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise InvalidArgument(f"--sections {text!r} names no section type; expected fwd,bckwd,opt or some of them")
    return words


def _write_files(found: "Profile", trace: Path | None, roofline: Path | None) -> None:
    from rdukit_runtime.profile.reports import trace_profile
    from rdukit_runtime.profile.roofline import draw_roofline

    files = []
    if trace is not None:
        files.append((trace, "Trace", json.dumps(trace_profile(found)).encode()))
    if roofline is not None:
        files.append((roofline, "Picture", draw_roofline(found).encode()))
    for path, kind, data in files:
        try:
            write_reports(path.parent, {path.name: data})
        except OSError as cause:
            raise InvalidArgument(f"{path} cannot be written: {cause.strerror}") from cause
        click.echo(f"{kind} {path} created", err=True)


@contextmanager
def _progress(runs: int, label: str) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr while it is a terminal; yields the function that advances it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=runs)
        yield lambda: bar.advance(task)

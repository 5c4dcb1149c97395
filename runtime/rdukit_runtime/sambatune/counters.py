"""``read_perf_counters``: counters of an instrumented PEF. The cost model projects them; no hardware counts.

A compile counts the stages of ``--stage-instrumentation``; ``--include-read-stall-cycles`` adds stalls. Names of
options are the vendor's; the layout of the file is ours, since the vendor's is not public.
"""

import json
from pathlib import Path
from typing import Any, Final

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit.errors import InvalidArgument, NotFound, RuntimeFault
from rdukit.files.atomic import write_reports
from rdukit.pef.file import read_pef
from rdukit_runtime.sambatune.reports import COUNTERS, stage_rows

_NONE: Final = "none"
_INSTRUMENTED: Final = tuple(name for name in COUNTERS if name.startswith("metapipe"))


def read_stages(pef: Path) -> dict[str, Any]:
    """Return the projected stages that the compile wrote next to its PEF.

    Raises:
        NotFound: the compile wrote no stages; older compiles never do.
    """
    path = pef.parent / "mac_gen" / "stages.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as cause:
        raise NotFound(f"{path} cannot be read; compile again, and keep the compile's whole folder") from cause
    return found


def counters_of(path: Path) -> dict[str, Any]:
    """Return the counters of an instrumented PEF.

    Raises:
        InvalidArgument: it was compiled with another instrumentation than there is. RuntimeFault: with none.
        NotFound: the compile's stages are not next to the PEF.
    """
    pef = read_pef(path).pef
    chosen = str(pef.metadata.get("stage_instrumentation") or _NONE)
    if chosen == _NONE:
        raise RuntimeFault(f"{path} has no counters; compile it with --stage-instrumentation={'|'.join(_INSTRUMENTED)}")
    if chosen not in _INSTRUMENTED:
        raise InvalidArgument(f"unknown --stage-instrumentation {chosen!r}; expected {', '.join(_INSTRUMENTED)}")
    counters = [chosen, *(["read_stall_cycles"] if pef.metadata.get("include_read_stall_cycles") else [])]
    return {
        "pef": pef.name,
        "arch": pef.arch,
        "clock": "projected by the cost model",
        "counters": counters,
        "stages": [
            {key: row[key] for key in ("section_id", "mac_id", "stage_id", "template_names", *counters)}
            for row in stage_rows(read_stages(path), counters)
        ],
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="read_perf_counters")
@click.option("-p", "--pef", required=True, type=click.Path(path_type=Path), help="An instrumented PEF.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="File to write; default: stdout.")
def read_perf_counters(pef: Path, target: Path | None) -> None:
    """Print the projected counters of a PEF that was compiled with --stage-instrumentation.

    Example: read_perf_counters -p out/mlp/mlp.pef --json counters.json

    Example: read_perf_counters -p out/mlp/mlp.pef
    """
    text = json.dumps(counters_of(pef), indent=1)
    if target is None:
        click.echo(text)
        return
    try:
        write_reports(target.parent, {target.name: text.encode() + b"\n"})
    except OSError as cause:
        raise InvalidArgument(f"{target} cannot be written: {cause.strerror}") from cause


def main() -> None:
    """Entry point."""
    run_command(read_perf_counters)


if __name__ == "__main__":
    main()

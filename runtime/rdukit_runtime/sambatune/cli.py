"""``sambatune``: the command. Options are the vendor's; ``--modes`` takes all words up to the next option or ``--``."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_reports
from rdukit.settings import resolve
from rdukit_runtime.sambatune.config import MODES, TuneConfig, read_config
from rdukit_runtime.settings import SAMBATUNE_DUMP_ROOT

_MODE_FLAGS: Final = ("-m", "--modes")


def spread_modes(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with ``-m`` before each word that follows it: the vendor's option takes several.

    Words up to the next option or ``--`` are modes, also the configuration: hence the ``--``.
    """
    spread: list[str] = []
    is_listing = False
    for word in arguments:
        if word in _MODE_FLAGS:
            is_listing = True
            continue
        if word.startswith("-"):
            is_listing = False
        spread += ["-m", word] if is_listing else [word]
    return spread


class GreedyModes(click.Command):
    """A command whose ``--modes`` takes several words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, after ``--modes`` was spread over its words."""
        return super().parse_args(ctx, spread_modes(args))


def _check_modes(_context: click.Context, _parameter: click.Parameter, modes: tuple[str, ...]) -> tuple[str, ...]:
    for mode in modes:
        if mode not in MODES:
            raise click.BadParameter(
                f"unknown mode {mode!r}; expected {', '.join(MODES)}, then -- before the configuration"
            )
    return tuple(dict.fromkeys(modes)) or MODES[:1]


@click.command(cls=GreedyModes, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sambatune", message=f"sambatune {__version__}, sambaflow {__version__}")
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "-m", "--modes", multiple=True, callback=_check_modes, help="Modes: benchmark (default), instrument, run."
)
@click.option("--artifact-root", type=click.Path(path_type=Path), help="Default: $DUMP_ROOT/artifact_root.")
@click.option("--compile-only", "is_compile_only", is_flag=True, help="Only compile the PEFs for the modes.")
@click.option(
    "--disable-override", is_flag=True,
    help="Let instrumented compiles change placement; no effect here, as all compiles of a program place identically.",
)  # fmt: skip
@click.pass_context
def sambatune(
    context: click.Context, /, config: Path, modes: tuple[str, ...], artifact_root: Path | None, is_compile_only: bool,
    disable_override: bool,
) -> None:  # fmt: skip
    """Compile and run the program of CONFIG, a YAML file, and report its times.

    A failed step does not stop the others; then the exit status is 1, and the last line names the failed steps.

    Example: sambatune --modes benchmark instrument -- linear_net.yaml

    Example: sambatune linear_net.yaml
    """
    try:
        text = config.read_text()
    except (OSError, UnicodeDecodeError) as cause:
        raise InvalidArgument(f"{config} cannot be read: {cause}; expected a YAML file") from cause
    found = read_config(config.name, text, os.environ)
    root = artifact_root or Path(resolve(SAMBATUNE_DUMP_ROOT)) / "artifact_root"
    if disable_override:
        click.echo("--disable-override has no effect: all compiles of a program place identically", err=True)
    failed: list[str] = []
    rows: list[dict[str, Any]] = []
    for number, (chosen, one) in enumerate(found.combinations(), 1):
        name = f"{one.name}_sweep_{number}" if found.sweep else one.name
        failures, row = _tune(replace(one, name=name), root.absolute(), modes, config, is_compile_only)
        failed += failures
        rows.append({**chosen, **row})
    if found.sweep:
        target = root / "sambatune_gen" / f"{found.name}_sweep.json"
        write_reports(target.parent, {target.name: json.dumps(rows, indent=1).encode() + b"\n"})
        click.echo(f"{target} has the figures of all {len(rows)} combinations")
    if failed:
        click.echo(f"these steps failed: {', '.join(failed)}", err=True)
        context.exit(1)


def _tune(
    config: TuneConfig, root: Path, modes: Sequence[str], path: Path, is_compile_only: bool
) -> tuple[list[str], dict[str, Any]]:
    """Tune one configuration; returns the names of steps that failed, and its row in a sweep's table."""
    from rdukit_runtime.sambatune.tune import Tuning, choose_paths, copy_config

    paths = choose_paths(root, config, datetime.now())
    tuning = Tuning(config, paths, modes, path.parent.absolute(), click.echo, is_compile_only)
    copy_config(path, paths)
    tuning.run()
    click.echo(f"reports are in {paths.reports}")
    row = {"throughput_samples_s": tuning.throughput, "reports": str(paths.reports)}
    return [result.name for result in tuning.log.failed], row


def main() -> None:
    """Entry point."""
    run_command(sambatune)


if __name__ == "__main__":
    main()

"""``rdukit doctor``."""

import json
import sys
from importlib.metadata import entry_points

import click

from rdukit.cli.commands import JSON_OPTION
from rdukit.cli.tables import print_table
from rdukit.doctor.findings import GROUP, Check, Finding, Level, Topic, exit_status, in_order, worst_of
from rdukit.errors import RdukitError

_COLOURS = {"good": "green", "warn": "yellow", "bad": "red", "unknown": "magenta"}


@click.command()
@click.option("--security", is_flag=True, help="Only what docs/security.md speaks of.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@JSON_OPTION
def doctor(security: bool, strict: bool, as_json: bool) -> None:
    """Check that this installation is as the manual says, and say what to do where it is not.

    Exits with 1 where a boundary does not hold.

    Example: rdukit doctor --security
    """
    findings = in_order([each for each in run_checks() if not security or each.topic is Topic.SECURITY])
    worst = worst_of(findings)
    if as_json:
        click.echo(json.dumps({"worst": worst, "findings": [each.as_json() for each in findings]}, indent=2))
    else:
        rows = [(each.check, each.level, each.what, each.todo) for each in findings]
        print_table(("CHECK", "LEVEL", "FOUND", "TO DO"), rows, _COLOURS)
    sys.exit(exit_status(worst, is_strict=strict))


def run_checks() -> list[Finding]:
    """What all parts' checks find; one that fails is a finding too."""
    found: list[Finding] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            check: Check = point.load()
            found += check()
        except (RdukitError, OSError) as error:
            found.append(Finding(point.name, Level.UNKNOWN, f"it could not be looked at: {error}"))
    return found

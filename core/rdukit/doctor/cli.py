"""``rdukit doctor``."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import click

from rdukit.cli.commands import JSON_OPTION
from rdukit.cli.tables import print_table
from rdukit.errors import InvalidArgument, RdukitError

#: Entry points of checks: each is a function without arguments that returns findings.
GROUP: Final = "rdukit.doctor"


class FindingLevel(StrEnum):
    """Levels of a finding, from good to bad."""

    GOOD = "good"
    #: The check failed.
    UNKNOWN = "unknown"
    #: The manual advises otherwise.
    WARN = "warn"
    #: A security boundary of the manual does not hold.
    BAD = "bad"


class Topic(StrEnum):
    """Subjects of findings."""

    SECURITY = "security"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    #: Name, such as ``home.mode``, the same in each run.
    check: str
    level: FindingLevel
    what: str
    #: The next step; empty if there is none.
    todo: str = ""
    topic: Topic = Topic.SECURITY
    #: Name of a check that this finding replaces, such as that of another machine.
    supersedes: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding as JSON values."""
        return {name: str(value) for name, value in asdict(self).items() if name != "supersedes"}


Check = Callable[[], Iterable[Finding]]

_ORDER: Final = tuple(FindingLevel)


def worst_of(findings: Iterable[Finding]) -> FindingLevel:
    """Return the worst severity; good if there are no findings."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=FindingLevel.GOOD)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings, the worst first, otherwise in the given order."""
    return sorted(findings, key=lambda finding: -_ORDER.index(finding.level))


def exit_status(worst: FindingLevel, *, is_strict: bool) -> int:
    """Return 1 if a boundary does not hold, or with ``is_strict`` if anything is less than good, otherwise 0."""
    return int(worst is FindingLevel.BAD or (is_strict and worst is not FindingLevel.GOOD))


_COLOURS = {"good": "green", "warn": "yellow", "bad": "red", "unknown": "magenta"}


@click.command()
@click.option("--security", is_flag=True, help="Run only the checks of docs/security.md.")
@click.option("--strict", is_flag=True, help="Exit with status 1 on warnings too.")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.tar.gz",
    help="Write an archive for support: findings, state, logs and settings, without secrets.",
)
@JSON_OPTION
def doctor(security: bool, strict: bool, bundle: Path | None, as_json: bool) -> None:
    """Check this installation against the manual, and print what to do.

    Exits with 1 if a boundary does not hold.

    Example: rdukit doctor --security

    Example: rdukit doctor --bundle bundle.tar.gz
    """
    if bundle is not None:
        if security or strict:
            raise InvalidArgument("--bundle contains all findings; leave out --security and --strict")
        from rdukit.doctor.bundle import write_bundle

        names = write_bundle(bundle)
        found = {"bundle": str(bundle), "files": names}
        click.echo(
            json.dumps(found) if as_json else f"{bundle}: {len(names)} files; check it for secrets before you send it"
        )
        return
    findings = in_order([each for each in run_checks() if not security or each.topic is Topic.SECURITY])
    worst = worst_of(findings)
    if as_json:
        click.echo(json.dumps({"worst": worst, "findings": [each.as_json() for each in findings]}, indent=2))
    else:
        rows = [(each.check, each.level, each.what, each.todo) for each in findings]
        print_table(("CHECK", "LEVEL", "FOUND", "TO DO"), rows, _COLOURS)
    sys.exit(exit_status(worst, is_strict=strict))


def run_checks() -> list[Finding]:
    """Run the checks of all parts; an exception in a check is also a finding."""
    found: list[Finding] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            check: Check = point.load()
            found += check()
        except (RdukitError, OSError) as error:
            found.append(Finding(point.name, FindingLevel.UNKNOWN, f"the check failed: {error}"))
    superseded = {each.supersedes for each in found}
    return [each for each in found if each.check not in superseded or each.supersedes == each.check]

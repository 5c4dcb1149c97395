"""``rdukit status``: services and programs that run on this machine. Parts report through the entry-point group
``rdukit.status``."""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION
from rdukit.cli.tables import Table, print_tables
from rdukit.errors import InvalidArgument, RdukitError, Unavailable
from rdukit.settings import home_folder

GROUP: Final = "rdukit.status"
#: Names of entry points, in the order of the output.
_ORDER: Final = ("node", "platform", "box")


@dataclass(frozen=True, slots=True)
class PartStatus:
    """State of one part of this installation."""

    #: Such as ``node`` or ``jobs``.
    part: str
    #: ``running``, ``stopped``, ``starting``, ``degraded`` or ``unknown``.
    state: str
    #: One line for people; for a stopped part, how to start it.
    text: str
    #: JSON values with the same content.
    detail: Mapping[str, object] = field(default_factory=dict)


ReportStatus = Callable[[], Iterable[PartStatus]]
#: States of a part that is started but does not serve properly.
_NOT_READY: Final = frozenset({"starting", "degraded", "unknown"})


@click.command()
@click.argument("parts", metavar="[PART]...", nargs=-1)
@TOKEN_OPTION
@JSON_OPTION
def status(parts: tuple[str, ...], as_json: bool) -> None:
    """Show the node daemon, platform, jobs and boxes that run here, and the home folder.

    Ends with status 7 if a part starts, is degraded or does not answer, or if a PART that is named (node, platform,
    box) does not run.

    Example: rdukit status platform --json

    Example: rdukit status
    """
    home = home_folder()
    found = [PartStatus("home", "running" if home.is_dir() else "stopped", _describe_home(home)), *read_status()]
    if strange := sorted({*parts} - {*_ORDER}):
        raise InvalidArgument(f"unknown part {strange[0]!r}; expected {', '.join(_ORDER)}")
    if as_json:
        shown = [{"part": one.part, "state": one.state, "text": one.text, **one.detail} for one in found]
        click.echo(json.dumps({"home": str(home), "parts": shown}, indent=2, sort_keys=True))
    else:
        print_tables([Table("", ("", ""), tuple((one.part, one.text) for one in found))])
    if not are_ready(found, parts):
        sys.exit(Unavailable.exit_status)


def are_ready(found: Iterable[PartStatus], named: Collection[str]) -> bool:
    """Return whether all started parts serve, and all named parts are started (pure)."""
    return all(one.state not in _NOT_READY and (one.state == "running" or one.part not in named) for one in found)


def read_status() -> list[PartStatus]:
    """Query all installed parts; a part that fails to answer is unknown."""
    from importlib.metadata import entry_points

    points = sorted(entry_points(group=GROUP), key=lambda point: (*_ORDER, point.name).index(point.name))
    found: list[PartStatus] = []
    for point in points:
        try:
            report: ReportStatus = point.load()
            found += report()
        except (RdukitError, OSError) as error:
            found.append(PartStatus(point.name, "unknown", str(error)))
    return found


def _describe_home(home: Path) -> str:
    return str(home) if home.is_dir() else f"{home} (not created yet)"

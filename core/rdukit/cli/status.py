"""``rdukit status``: what runs on this machine. Parts report through the entry-point group ``rdukit.status``."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION
from rdukit.cli.tables import Table, print_tables
from rdukit.errors import RdukitError
from rdukit.settings import home_folder

GROUP: Final = "rdukit.status"
#: Entry points in the order in which they are shown.
_ORDER: Final = ("node", "platform", "box")


@dataclass(frozen=True, slots=True)
class PartStatus:
    """State of one part of this installation."""

    #: Such as ``node`` or ``jobs``.
    part: str
    #: ``running``, ``stopped`` or ``unknown``.
    state: str
    #: One line for people; where it is stopped, how to start it.
    text: str
    #: The same for machines.
    detail: Mapping[str, object] = field(default_factory=dict)


ReportStatus = Callable[[], Iterable[PartStatus]]


@click.command()
@TOKEN_OPTION
@JSON_OPTION
def status(as_json: bool) -> None:
    """Show what runs here: node daemon, platform, jobs, boxes, and where the home folder is.

    Example: rdukit status --json
    """
    home = home_folder()
    found = [PartStatus("home", "running" if home.is_dir() else "stopped", _describe_home(home)), *read_status()]
    if as_json:
        parts = [{"part": one.part, "state": one.state, "text": one.text, **one.detail} for one in found]
        click.echo(json.dumps({"home": str(home), "parts": parts}, indent=2, sort_keys=True))
        return
    print_tables([Table("", ("", ""), tuple((one.part, one.text) for one in found))])


def read_status() -> list[PartStatus]:
    """Ask all installed parts; one that cannot be asked is unknown."""
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

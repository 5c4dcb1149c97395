"""Shell completion of arguments: names and ids are requested from the platform when TAB is pressed."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from rdukit.errors import RdukitError
from rdukit_platform.cli import connect

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

#: Largest number of names offered, the newest.
OFFERED: Final = 100


def complete(route: str, key: str, name: str = "id", told: tuple[str, ...] = ("name", "state")) -> Complete:
    """Return a completer that uses a list of the platform; it offers nothing if no platform answers.

    Args:
        route, key: route of the list, and its key in the answer.
        name: field that is completed. told: field shown as help, in shells that support it.
    """

    def ask(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        try:
            with connect() as client:
                found = client.get(route, limit=OFFERED)[key]
        except (RdukitError, KeyError):
            return []
        return choose(found, name, told, begun)

    return ask


def choose(found: list[Mapping[str, Any]], name: str, told: tuple[str, ...], begun: str) -> list[CompletionItem]:
    """Return the items whose name begins with ``begun``, with their help (pure)."""
    return [
        CompletionItem(str(one[name]), help=" ".join(str(one[each]) for each in told if one.get(each)))
        for one in found
        if str(one[name]).startswith(begun)
    ]


JOBS: Final = complete("/v1/jobs", "jobs")
PIPELINES: Final = complete("/v1/pipelines", "pipelines")
SWEEPS: Final = complete("/v1/sweeps", "sweeps")
ARTIFACTS: Final = complete("/v1/artifacts", "artifacts", told=("kind", "name"))
ENDPOINTS: Final = complete("/v1/endpoints", "endpoints", "name", ("state",))
EXPERTS: Final = complete("/v1/experts", "experts", "expert", ("description",))
WEBHOOKS: Final = complete("/v1/webhooks", "webhooks", told=("url",))
BOXES: Final = complete("/v1/catalog", "boxes", "name", ("title",))
NODES: Final = complete("/v1/nodes", "nodes", "name", ("state",))
SCHEDULES: Final = complete("/v1/schedules", "schedules", "name", ("cron",))

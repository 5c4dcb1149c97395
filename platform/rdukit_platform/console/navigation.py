"""Pages of the console that the navigation lists, in groups, and the page of the manual about each (pure)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from rdukit_platform.tenants.scopes import ADMIN, TOKENS


@dataclass(frozen=True, slots=True)
class NavigationPage:
    """A page with a link in the navigation. ``name`` is the ``section`` of all pages below it.

    ``manual`` names the page of the manual without its suffix: ``jobs`` is ``docs/jobs.md``.
    """

    name: str
    path: str
    manual: str
    #: Only callers with one of these scopes see the link; empty: all do.
    scopes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NavigationGroup:
    """Pages that stand together under a title."""

    title: str
    pages: tuple[NavigationPage, ...]


OVERVIEW: Final = NavigationPage("Overview", "/console/overview", "console")
GROUPS: Final = (
    NavigationGroup("Platform", (OVERVIEW,)),
    NavigationGroup(
        "Work",
        (
            NavigationPage("Jobs", "/console/", "jobs"),
            NavigationPage("Pipelines", "/console/pipelines", "pipelines"),
            NavigationPage("Sweeps", "/console/sweeps", "sweeps"),
        ),
    ),
    NavigationGroup(
        "Models",
        (
            NavigationPage("Catalog", "/console/catalog", "catalog"),
            NavigationPage("Experts", "/console/experts", "experts"),
            NavigationPage("Endpoints", "/console/endpoints", "endpoints"),
        ),
    ),
    NavigationGroup("Data", (NavigationPage("Artifacts", "/console/artifacts", "artifacts"),)),
    NavigationGroup(
        "System",
        (
            NavigationPage("Nodes", "/console/nodes", "nodes"),
            NavigationPage("Tenants", "/console/tenants", "quotas"),
            NavigationPage("Members", "/console/members", "identity"),
            NavigationPage("Tokens", "/console/tokens", "tokens", frozenset({TOKENS, ADMIN})),
            NavigationPage("Webhooks", "/console/webhooks", "webhooks"),
            NavigationPage("Audit", "/console/audit", "audit-log"),
        ),
    ),
)
_MANUALS: Final = {page.name: page.manual for group in GROUPS for page in group.pages}


def navigation_for(scopes: Collection[str]) -> list[NavigationGroup]:
    """Return the groups with the pages that a caller with ``scopes`` may open; empty groups are left out."""
    found = []
    for group in GROUPS:
        pages = tuple(page for page in group.pages if not page.scopes or page.scopes.intersection(scopes))
        if pages:
            found.append(NavigationGroup(group.title, pages))
    return found


def manual_line(section: str) -> Markup:
    """Return the line of a page that names its page of the manual; empty for a section that the manual lacks."""
    name = _MANUALS.get(section)
    if name is None:
        return Markup()
    return Markup("Manual: <code>docs/{0}.md</code>, or <code data-copy>rdukit docs {0}</code>").format(name)

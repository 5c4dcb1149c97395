"""Contents of the manual: groups of pages in their order, read from the tables of ``docs/README.md``.

That page is the only list. The site's navigation, the plain text for machines and the tests are derived from it.
"""

import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).resolve().parents[2]
#: Page with the tables, relative to the tree.
INDEX: Final = "docs/README.md"
_HEADING: Final = re.compile(r"^(##+) (.+)")
_ROW: Final = re.compile(r"^\| (?:\[([^\]]+)\]\(([^)]+)\)|`([\w-]+)`) \| (.+) \|$")
_LINK: Final = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
_FENCE: Final = re.compile(r"^ *(`{3,}|~{3,})")
_CODE: Final = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")


@dataclass(frozen=True, slots=True)
class Page:
    """Row of the contents."""

    #: Path in the tree, such as ``docs/port.md``; empty for a page that only the site has.
    source: str
    #: Path in the site without a suffix, such as ``port``.
    place: str
    #: What the page says, in a line.
    summary: str


@dataclass(frozen=True, slots=True)
class Group:
    """Pages under one heading of the contents."""

    title: str
    pages: tuple[Page, ...]


def read_groups(text: str) -> list[Group]:
    """Return the groups of the contents in their order.

    A heading of the third level joins the one above it: ``How-to guides: Serve and call models``.

    Args:
        text: Markdown of the contents.
    """
    titles: list[str] = []
    found: dict[str, list[Page]] = {}
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            titles = [*titles[: len(heading[1]) - 2], heading[2]]
        elif titles and (row := _ROW.match(line)):
            source = posixpath.normpath(posixpath.join("docs", row[2])) if row[2] else ""
            page = Page(source, site_place(source) if source else row[3], row[4])
            found.setdefault(": ".join(titles), []).append(page)
    return [Group(title, tuple(pages)) for title, pages in found.items()]


def site_place(source: str) -> str:
    """Return where a page of the tree is in the site, without a suffix: ``docs/`` is the site's root."""
    if source in {INDEX, "README.md"}:
        return "index"
    inside = source.removeprefix("docs/") if source.startswith("docs/") else posixpath.basename(source)
    return inside.removesuffix(".md")


def all_sources(groups: Iterable[Group]) -> list[str]:
    """Return the paths of all pages that the site takes from the tree: those of the contents, and all decisions."""
    listed = [page.source for group in groups for page in group.pages if page.source]
    decisions = sorted(str(path.relative_to(TREE)) for path in (TREE / "docs/decisions").glob("0*.md"))
    return [INDEX, *listed, *decisions]


def map_links(text: str, change: Callable[[str], str]) -> str:
    """Return Markdown with each link's target changed; code keeps its text."""
    lines, fence = [], ""
    for line in text.split("\n"):
        if mark := _FENCE.match(line):
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence):
                fence = ""
            lines.append(line)
        elif fence:
            lines.append(line)
        else:
            lines.append(_map_line(line, change))
    return "\n".join(lines)


def _map_line(line: str, change: Callable[[str], str]) -> str:
    """Return a line with its links changed; spans of code are hidden meanwhile, unless they are a link's text."""
    spans: list[str] = []

    def hide(found: re.Match[str]) -> str:
        spans.append(found[0])
        return f"\0{len(spans) - 1}\0"

    mapped = _LINK.sub(lambda found: found[1] + change(found[2]) + found[3], _CODE.sub(hide, line))
    return re.sub(r"\0(\d+)\0", lambda found: spans[int(found[1])], mapped)

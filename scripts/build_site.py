"""Build the manual's site: ``make site``. Nothing is fetched, every warning is an error.

The Markdown files of ``docs/`` stay plain. They are copied to a folder in which links outside of ``docs/`` lead into
the site, the contents get navigation, and references come from the program: commands, routes, Python names. Sphinx then
makes HTML with a search that needs no server. ``llms-full.txt`` is the whole manual as one plain text.
"""

import argparse
import os
import posixpath
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from manual.cli_pages import ORPHAN, cli_pages, toctree
from manual.contents import INDEX, TREE, Group, all_sources, map_links, read_groups, site_place
from manual.rest_pages import read_document, rest_pages

#: The site lies in the package, so that a wheel that is built afterwards carries it.
SITE: Final = TREE / "core/rdukit/site"
#: Sources that Sphinx reads, and what it keeps between builds.
WORK: Final = TREE / "build/site"
#: Folder with Sphinx's conf.py.
CONFIGURATION: Final = TREE / "scripts/manual"


def main() -> int:
    """Write the sources, call Sphinx; returns its status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=SITE, help="folder of the site (default: core/rdukit/site)")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of what is kept between builds")
    chosen = parser.parse_args()
    source = chosen.work / "source"
    write_sources(source)
    return run_sphinx(source, chosen.out, chosen.work / "doctrees")


def run_sphinx(source: Path, out: Path, doctrees: Path) -> int:
    """Build HTML strictly. Returns Sphinx's status: 0 if there was no warning."""
    from sphinx.cmd.build import build_main

    os.environ["PYTHONWARNINGS"] = "ignore"
    return build_main([
        "-b", "html", "-q", "-W", "--keep-going", "-c", str(CONFIGURATION), "-d", str(doctrees),
        "-D", f"html_extra_path={source / 'llms-full.txt'}", str(source), str(out),
    ])  # fmt: skip


def write_sources(folder: Path) -> None:
    """Write what Sphinx reads. A file whose text is as before keeps its time, so that only changes are built again."""
    from manual.python_pages import client_page, python_text, sdk_pages  # imports torch

    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    groups = read_groups((TREE / INDEX).read_text())
    sources = all_sources(groups)
    texts = {f"{site_place(path)}.md": site_page(path, sources, repository(project), folder) for path in sources}
    generated = cli_pages() | rest_pages(read_document())
    texts |= {f"{place}.md": text for place, text in generated.items()}
    texts |= {f"{place}.rst": text for place, text in sdk_pages().items()} | {"client.rst": client_page()}
    texts["index.md"] += navigation(groups)
    for place in decision_places(sources):
        texts[f"{place}.md"] = ORPHAN + texts[f"{place}.md"]
    texts["llms-full.txt"] = whole_text(groups, texts, python_text())
    for name, text in texts.items():
        write_changed(folder / name, text)
    for path in [*folder.rglob("*.md"), *folder.rglob("*.rst")]:
        if str(path.relative_to(folder)) not in texts:
            path.unlink()  # a page that was removed


def site_page(source: str, pages: list[str], address: str, folder: Path) -> str:
    """Return a page of the tree as the site has it; pictures and files that it links to are copied to ``folder``."""

    def change(target: str) -> str:
        return site_link(target, source, pages, lambda path: copy_file(path, folder))

    text = map_links((TREE / source).read_text(), change)
    return text.rstrip("\n") + "\n" + page_links(source, address)


def site_link(target: str, source: str, pages: list[str], copy: Callable[[str], str]) -> str:
    """Return a link's target in the site.

    Args:
        target: as the page has it, relative to it, with or without an anchor.
        source: the page's path in the tree.
        pages: paths in the tree of all pages of the site.
        copy: keeps a file that is no page in the site, and returns its place there.
    """
    path, sign, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", target):
        return target
    found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if found in pages or found == "README.md":
        place = f"{site_place(found)}.md"
    elif (TREE / found).is_file():
        place = copy(found)
    else:
        return target  # Sphinx names the page and the line
    here = posixpath.dirname(site_place(source))
    return posixpath.relpath(place, here or ".") + sign + anchor


def copy_file(path: str, folder: Path) -> str:
    """Copy a file of the tree that a page shows or links to. Returns its path in the site."""
    place = f"files/{path}"
    target = folder / place
    if not target.exists() or target.read_bytes() != (TREE / path).read_bytes():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(TREE / path, target)
    return place


def repository(project: dict[str, Any]) -> str:
    """Return the address of the project's repository, as pyproject.toml names it; empty: it names none."""
    return str(project.get("urls", {}).get("Repository", "")).rstrip("/")


def page_links(source: str, address: str) -> str:
    """Return the links of a page's end, to edit it and to report an error in it; none without a repository."""
    if not address:
        return ""
    report = f"{address}/issues/new?title={quote(f'Error in {source}')}"
    return f"\n---\n\n[Edit this page]({address}/edit/main/{source}) · [Report an error in this page]({report})\n"


def navigation(groups: list[Group]) -> str:
    """Return the blocks that put all pages into the site's navigation."""
    trees = [toctree("\n".join(page.place for page in group.pages), group.title) for group in groups]
    text = '<p>The whole manual as one plain text: <a href="llms-full.txt">llms-full.txt</a>.</p>'
    return "\n\n".join(["", text, *trees, ""])


def decision_places(sources: list[str]) -> list[str]:
    """Return the places of the decision records, which their list leads to."""
    return [site_place(path) for path in sources if re.match(r"docs/decisions/\d", path)]


def whole_text(groups: list[Group], texts: dict[str, str], names: str) -> str:
    """Return all pages in the order of the contents, each after a line with its place.

    Args:
        texts: Markdown of the pages by their files.
        names: plain text of the names of Python, which are no Markdown pages; the end.
    """
    ordered = ["index.md", *(f"{page.place}.md" for group in groups for page in group.pages)]
    rest = sorted(name for name in texts if name.endswith(".md") and name not in ordered)
    parts = [f"<!-- page: {name} -->\n\n{texts[name]}" for name in [*ordered, *rest] if name in texts]
    return (
        re.sub(r"```\{toctree\}.*?```\n?|---\norphan: true\n---\n\n", "", "\n".join(parts), flags=re.DOTALL)
        + f"\n{names}"
    )


def write_changed(path: Path, text: str) -> None:
    """Write a file if its text differs from what is there."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())

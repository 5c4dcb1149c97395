"""``rdukit docs``: the manual that is on this machine, as a site or as Markdown."""

import sys
import webbrowser
from pathlib import Path
from typing import Final

import click

import rdukit
from rdukit.errors import NotFound, all_error_classes, suggest

#: Site that ``make site`` builds, in the checkout or in a wheel that was built afterwards.
SITE: Final = Path(rdukit.__file__).parent / "site"
#: Markdown pages of a checkout.
MARKDOWN: Final = Path(rdukit.__file__).parents[2] / "docs"
#: The page that lists all others, and its name in the site.
CONTENTS: Final = "README"


@click.command()
@click.argument("page", default=CONTENTS)
@click.option("--print", "is_printed", is_flag=True, help="Print the page's Markdown.")
def docs(page: str, is_printed: bool) -> None:
    """Open a page of the manual, or the entry of an error, without a network.

    PAGE is a page's name, a command, or an error's code; without one it is the list of all pages. In a terminal the
    page of the site is opened in a browser, if there is one. The path is always printed. make site builds the site in a
    checkout, and a wheel that is built afterwards carries it; without a site the path is that of the Markdown.

    Example: rdukit docs port
    """
    found, anchor = find_page(page, list_pages())
    text, place = markdown_of(found), site_of(found)
    if is_printed:
        click.echo(text.read_text(), nl=False)
        return
    path = place if place.is_file() else text
    fragment = f"#{anchor}" if anchor else ""
    if path == place and sys.stdout.isatty():
        webbrowser.open(path.as_uri() + fragment)  # does nothing where there is no browser
    click.echo(f"{path}{fragment}")


def find_page(name: str, pages: list[str]) -> tuple[str, str]:
    """Return the page that a word means, and the heading or entry in it; empty: the page's beginning (pure).

    Args:
        name: page, command of ``rdukit`` or code of an error.
        pages: names of all pages.
    Raises:
        NotFound: no page, command or error has the name; the message has the nearest ones.
    """
    from rdukit.cli.app import ROLES

    name = name.removesuffix(".md").removesuffix(".html")
    commands = {command: page for of_role in ROLES.values() for command, page in of_role.items()}
    if name in pages:
        return name, ""
    if name in commands:
        return commands[name], ""
    if name in all_error_classes():
        return "errors", name
    hint = suggest(name, [*pages, *commands, *all_error_classes()])
    raise NotFound(
        f"the manual has no page {name!r}; expected a page that rdukit docs --print lists, a command, or an error's "
        f"code.{hint}"
    )


def list_pages() -> list[str]:
    """Return the names of the pages that are on this machine.

    Raises:
        NotFound: there is neither a site nor Markdown.
    """
    if (SITE / "index.html").is_file():
        sources = SITE / "_sources"
        names = [str(path.relative_to(sources)).partition(".")[0] for path in sources.rglob("*.txt")]
    else:
        names = [str(path.relative_to(MARKDOWN).with_suffix("")) for path in MARKDOWN.rglob("*.md")]
    if not names:
        raise NotFound(
            "this installation has no manual; build it into the wheel: make site in a checkout, then pip install .; "
            "rdukit COMMAND --help needs none"
        )
    return sorted({CONTENTS if name == "index" else name for name in names})


def site_of(page: str) -> Path:
    """Return where the site has a page, whether or not it is built."""
    return SITE / f"{'index' if page == CONTENTS else page}.html"


def markdown_of(page: str) -> Path:
    """Return the text of a page: the checkout's Markdown, otherwise what the site was built from."""
    own = MARKDOWN / f"{page}.md"
    if own.is_file():
        return own
    return next((SITE / "_sources").glob(f"{'index' if page == CONTENTS else page}.*.txt"))

"""``rdukit docs``: open the manual on this machine, as a site or as Markdown."""

import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

import rdukit
from rdukit.errors import NotFound, all_error_classes, suggest

#: The page that lists all others; ``index`` in the site.
CONTENTS: Final = "README"


@dataclass(frozen=True, slots=True)
class Manual:
    """Folders of the manual; either may be missing."""

    #: Site that ``make site`` builds, in the checkout or in a wheel that was built afterwards.
    site: Path = Path(rdukit.__file__).parent / "site"
    #: Markdown pages of a checkout.
    markdown: Path = Path(rdukit.__file__).parents[2] / "docs"

    def list_pages(self) -> list[str]:
        """Return the names of all pages, including those of a built site only, such as ``cli/job``.

        Raises:
            NotFound: there is neither a site nor Markdown.
        """
        sources = self.site / "_sources"
        built = [str(path.relative_to(sources)).partition(".")[0] for path in sources.rglob("*.txt")]
        plain = [str(path.relative_to(self.markdown).with_suffix("")) for path in self.markdown.rglob("*.md")]
        if not built and not plain:
            raise NotFound(
                "this installation has no manual; build it into the wheel: make site in a checkout, then pip install "
                ".; rdukit COMMAND --help needs none"
            )
        return sorted({CONTENTS if name == "index" else name for name in (*built, *plain)})

    def site_of(self, page: str) -> Path:
        """Return a page's path in the site, whether or not it is built."""
        return self.site / f"{'index' if page == CONTENTS else page}.html"

    def text_of(self, page: str) -> Path:
        """Return the text of a page: the checkout's Markdown, otherwise the Markdown source in the site."""
        own = self.markdown / f"{page}.md"
        if own.is_file():
            return own
        return next((self.site / "_sources").glob(f"{'index' if page == CONTENTS else page}.*.txt"))


@click.command()
@click.argument("page", default=CONTENTS)
@click.option("--print", "is_printed", is_flag=True, help="Print the page's Markdown.")
def docs(page: str, is_printed: bool) -> None:
    """Open a page of the manual, or the entry of an error, without a network.

    PAGE is a page's name, a command, or an error's code; without one it is the list of all pages. In a terminal the
    page of the site is opened in a browser, if there is one. The path is always printed. make site builds the site in a
    checkout, and a wheel that is built afterwards carries it; without a site the path is that of the Markdown.

    Example: rdukit docs port

    Example: rdukit docs no-resources
    """
    manual = Manual()
    found, anchor = find_page(page, manual.list_pages())
    if is_printed:
        click.echo(manual.text_of(found).read_text(), nl=False)
        return
    site, fragment = manual.site_of(found), f"#{anchor}" if anchor else ""
    if site.is_file() and sys.stdout.isatty():
        webbrowser.open(site.as_uri() + fragment)  # has no effect without a browser
    click.echo(f"{site if site.is_file() else manual.text_of(found)}{fragment}")


def find_page(name: str, pages: list[str]) -> tuple[str, str]:
    """Return the page for a word, and the entry in it; empty: the page's beginning (pure).

    Args:
        name: page, command of ``rdukit`` or code of an error.
        pages: names of all pages.
    Raises:
        NotFound: no page, command or error has the name; the message has the nearest ones.
    """
    from rdukit.cli.app import ROLES, TOOLS

    name = name.removesuffix(".md").removesuffix(".html")
    commands = {command: page for of_role in (*ROLES.values(), TOOLS) for command, page in of_role.items()}
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

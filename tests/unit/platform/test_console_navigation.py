"""The console's navigation: groups of pages, and the page of the manual about each."""

from pathlib import Path

from rdukit_platform.console.navigation import GROUPS, manual_line, navigation_for
from rdukit_platform.tenants.scopes import ADMIN, READ, TOKENS
from support import shows

pytestmark = shows("console")

PAGES = [page for group in GROUPS for page in group.pages]


def test_every_page_stands_once_and_its_page_of_the_manual_exists() -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    assert len({page.name for page in PAGES}) == len({page.path for page in PAGES}) == len(PAGES)
    assert [page.manual for page in PAGES if not (docs / f"{page.manual}.md").is_file()] == []


def test_only_who_may_manage_tokens_is_led_to_them() -> None:
    def names(*scopes: str) -> list[str]:
        return [page.name for group in navigation_for(scopes) for page in group.pages]

    assert "Tokens" not in names(READ)
    assert names(READ, TOKENS) == names(ADMIN) == [page.name for page in PAGES]


def test_a_section_names_its_page_of_the_manual_and_an_unknown_one_none() -> None:
    assert "docs/sweeps.md" in manual_line("Sweeps")
    assert manual_line("") == ""

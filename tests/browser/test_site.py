"""The site of the manual: it builds strictly, its search works from a folder, and axe finds no barrier in it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import shows

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright, of the test extra")
axe = pytest.importorskip("axe_playwright_python.base", reason="the browser tests need axe, of the test extra")
pytest.importorskip("sphinx", reason="the site needs the docs extra: make setup")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = Path(axe.__file__).with_name("axe.min.js").read_text()
TREE = Path(__file__).parents[2]
pytestmark = [
    shows("docs", "project"),
    pytest.mark.long,  # Sphinx computes for most of a minute
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]
WINDOWS = [(1280, 800, "light"), (1280, 800, "dark"), (400, 800, "light"), (400, 800, "dark")]
#: Words, and a page of which each finds a heading, a command, a route or a name of Python.
SEARCHES = {
    "scheduler": "scheduler.html",
    "troubleshooting symptom": "troubleshooting.html",
    "webhook deliveries": "cli/webhook.html",
    "from_torch_model_": "sdk/conversion-creation-operators.html",
    "idempotency": "rest/jobs.html",
}
PAGES = ["index", "port", "troubleshooting", "cli/webhook", "rest/jobs", "sdk/session", "client", "errors", "search"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, which fails at any warning: a page that no list has, a link or an anchor that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    script = TREE / "scripts/build_site.py"
    built = subprocess.run(
        [sys.executable, script, "--out", folder / "html", "--work", folder / "work"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def test_links_between_files_lead_somewhere(site: Path) -> None:
    """Sphinx has checked those of Markdown; these are all that the pages have."""
    missing = {
        f"{page.relative_to(site)}: {target}"
        for page in site.rglob("*.html")
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text())
        if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists()
    }
    assert missing == set()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|iframe)[^>]+src="https?://|<link[^>]+stylesheet[^>]+href="https?://')
    assert [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


def test_the_plain_text_has_every_kind_of_reference(site: Path) -> None:
    text = (site / "llms-full.txt").read_text()
    for part in ("# Start", "# rdukit webhook", "# REST: jobs", "sambaflow.samba.from_torch_model_(", "Platform("):
        assert part in text


@pytest.mark.parametrize(("words", "page"), SEARCHES.items())
def test_search_from_a_folder_finds_a_page(site: Path, browser: object, words: str, page: str) -> None:
    context = browser.new_context(offline=True)  # type: ignore[attr-defined]
    found = context.new_page()
    found.goto(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    found.wait_for_selector(f'#search-results li a[href*="{page}"]', timeout=60_000)
    context.close()


@pytest.mark.parametrize(("width", "height", "scheme"), WINDOWS)
def test_pages_fit_a_window_and_have_no_barrier(
    site: Path, browser: object, width: int, height: int, scheme: str
) -> None:
    """No violation of impact serious or critical, by axe."""
    size = {"width": width, "height": height}
    context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)  # type: ignore[attr-defined]
    page, told = context.new_page(), []
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page.evaluate(AXE)
        for rule in page.evaluate("axe.run().then(result => result.violations)"):
            if rule["impact"] in {"serious", "critical"}:
                told += [(name, rule["id"], node["html"][:160]) for node in rule["nodes"][:3]]
    context.close()
    assert told == []

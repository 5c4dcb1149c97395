"""The pages of ``sambatune_ui`` in a real Chromium: runs are compared by the keyboard, and axe finds no barrier."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import shows
from support.sambatune_runs import write_run

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright, of the test extra")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
axe = pytest.importorskip("axe_playwright_python.base", reason="the browser tests need axe, of the test extra")
AXE = Path(axe.__file__).with_name("axe.min.js").read_text()
pytestmark = [
    shows("sambatune", "sambatune_ui"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Address, user and password of a server with two runs."""
    write_run(tmp_path, "first", 64, 100.0)
    write_run(tmp_path, "second", 128, 150.0)
    command = [sys.executable, "-m", "rdukit_runtime.sambatune.ui.command", "--directory", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield dict(process.stdout.readline().strip().split(": ", 1) for _ in range(3))
        process.terminate()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_runs_are_compared_by_the_keyboard_without_a_barrier(served: dict[str, str], scheme: str) -> None:
    problems: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        credentials = {"username": served["user"], "password": served["password"]}
        page = browser.new_page(http_credentials=credentials, color_scheme=scheme, bypass_csp=True)
        page.on("request", lambda r: None if r.url.startswith(served["URL"]) else problems.append(r.url))
        page.on("pageerror", lambda error: problems.append(str(error)))

        def check_barriers() -> None:
            page.evaluate(AXE)
            found = page.evaluate("axe.run().then(result => result.violations)")
            assert [(rule["id"], node["html"][:200]) for rule in found for node in rule["nodes"]] == []

        page.goto(served["URL"])
        check_barriers()
        for name in ("first", "second"):
            page.get_by_label(f"Compare {name}").focus()
            page.keyboard.press("Space")
        page.keyboard.press("Enter")
        page.wait_for_url("**/compare?*")
        check_barriers()
        assert "0.667 times the first" in page.content()
        page.goto(served["URL"] + "runs/first")
        check_barriers()
        browser.close()
    assert problems == []

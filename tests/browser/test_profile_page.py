"""The page of a profile in a real Chromium, from its file: no request, no barrier by axe, usable by the keyboard."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit_runtime.profile.recording import ProcessRecording, TimedCall
from rdukit_runtime.profile.step import ROWS, Breakdown, BreakdownRow
from rdukit_runtime.report.advice import Advice, BoundBy, ProgramVerdict
from rdukit_runtime.report.drawings import draw_life, draw_memory
from rdukit_runtime.report.facts import ProgramFacts, SectionFacts
from rdukit_runtime.report.flame import flame_boxes
from rdukit_runtime.report.page import PagePicture, ReportPage, SourceLine, render_page
from support import shows
from support.tiers import first_short

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright, of the test extra")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
axe = pytest.importorskip("axe_playwright_python.base", reason="the browser tests need axe, of the test extra")
AXE = Path(axe.__file__).with_name("axe.min.js").read_text()
pytestmark = [
    shows("profile"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]
WINDOWS = [(1280, 800, "light"), (400, 800, "dark"), (1280, 800, "dark"), (400, 800, "light")]
HOSTILE = '"><script>document.title="taken"</script><img src="http://127.0.0.1:9/x" onerror="document.title=1">'


def example_page() -> ReportPage:
    """A program of two sections, whose second name would do harm."""
    names = ("gemm", HOSTILE)
    kept = [
        {"id": n, "name": name, "type": "fwd", "graph": "main", "kernel": "k" * 64, "form": "native"}
        for n, name in enumerate(names)
    ]
    spent = dict.fromkeys(ROWS, 0) | {BreakdownRow.TOTAL: 1000, BreakdownRow.RUN_HW: 900}
    breakdown = Breakdown(spent, 2, 1)
    stack = (("program.py", 7, "train"),)
    calls = tuple(
        TimedCall(row, "run", 100 + 500 * n, 550 + 500 * n, stack if row is BreakdownRow.SAMBA else None, 0, sections)
        for n in range(2)
        for row, sections in ((BreakdownRow.SAMBA, ()), (BreakdownRow.RUN_HW, ((0, 300), (1, 100))))
    )
    recording = ProcessRecording(
        1, 0, 0, 1200, calls, ({"name": "p", "sections": kept},), ((100, 5), (900, 9)), 0, {}, breakdown
    )
    sections = tuple(
        SectionFacts(0, n, name, "fwd", "main", "native", "k", "", 2, 600 - 400 * n, 5, 8, 8, 3)
        for n, name in enumerate(names)
    )
    facts = ProgramFacts(breakdown, 1200, sections, {}, 0, 0, None, None, "o3", "bf16", None)
    boxes, _ = flame_boxes(recording)
    return ReportPage(
        title=HOSTILE, process="process 1", facts=facts,
        verdict=ProgramVerdict(BoundBy.SECTION, "Section gemm."), notes=[],
        advice=[Advice("Slow.", "-o3", 1.5, "it fuses")], account=[("host", "rest", 300)],
        pictures=[
            PagePicture("Timeline", draw_life([recording], []), "The life."),
            PagePicture("Memory", draw_memory(recording), "The memory."),
        ],
        flame=boxes, flame_left_out=0, lines=[SourceLine(stack[0], 2, 900, "samba.session.run()")],
        environment=[("rdukit", "1")], commands=["rdukit profile -- x"], missing=[HOSTILE],
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.parametrize(("width", "height", "scheme"), first_short(WINDOWS, 2))
def test_the_file_opens_without_a_request_or_a_barrier_and_is_used_by_the_keyboard(
    browser: object, tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_page(example_page()))
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[attr-defined]
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith(("data:", path.as_uri())) else problems.append(r.url))
    page.goto(path.as_uri())
    assert problems == []
    assert page.title().startswith("section bound: ")
    assert page.locator("img").evaluate_all("all => all.every(image => image.naturalWidth > 0)")
    spare = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert spare == 0, f"{spare} pixels wider than the window"
    times = page.locator("#sections ~ .scroll tbody tr td:nth-child(7)")
    page.get_by_role("button", name="host time").focus()
    page.keyboard.press("Enter")
    assert [float(each) for each in times.evaluate_all("all => all.map(cell => cell.dataset.n)")] == [600, 200]
    page.keyboard.press("Enter")
    assert [float(each) for each in times.evaluate_all("all => all.map(cell => cell.dataset.n)")] == [200, 600]
    page.locator(".flame button").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert page.inner_text("#flame-said").startswith("gemm: ")
    page.keyboard.press("Enter")
    assert page.locator(".flame button:not([hidden])").count() < page.locator(".flame button").count()
    page.keyboard.press("Escape")
    assert page.locator(".flame button[hidden]").count() == 0
    page.evaluate(AXE)
    found = page.evaluate("axe.run().then(result => result.violations)")
    assert [(rule["id"], node["html"][:200]) for rule in found for node in rule["nodes"]] == []
    context.close()

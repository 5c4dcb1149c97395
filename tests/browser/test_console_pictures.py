"""The console in a real Chromium: it loads nothing foreign, renews itself, fits its window, has no barrier by axe.

Pictures are written to the folder that ``RDUKIT_PICTURES`` names, for people to look at.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.snd import SndClient
from rdukit_platform.api.context import Platform
from rdukit_platform.catalog.experts import deprecate_expert
from rdukit_platform.db.migrate import migrate
from rdukit_platform.gateway.routes import PERMISSIONS
from rdukit_platform.settings import checked_home
from rdukit_platform.tenants.service import find_tenant
from rdukit_platform.tenants.tokens import ensure_first_token
from support import shows
from support.platform.gateway import Example, open_known_platform, serving
from support.tiers import first_short

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright, of the test extra")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
axe = pytest.importorskip("axe_playwright_python.base", reason="the browser tests need axe, of the test extra")
AXE = Path(axe.__file__).with_name("axe.min.js").read_text()
pytestmark = [
    shows("console", "catalog", "endpoints", "sweeps", "nodes", "bundles"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]

WAITER = """
import sys
from pathlib import Path
from rdukit.snd import SndClient
SndClient(Path(sys.argv[1])).acquire("big", 48, 1 << 40, wait_s=600)
"""
WINDOWS = {
    "desk": (1280, 800, "light"), "night": (1280, 800, "dark"), "hand": (400, 800, "light"),
    "night-hand": (400, 800, "dark"),
}  # fmt: skip
COUNT_LINES = """cell => {
    const range = document.createRange(); range.selectNodeContents(cell.firstChild);
    return range.getClientRects().length
}"""
IS_SEEN_WHEN_LONG = """label => {
    label.textContent = "12.5 k"; label.scrollIntoView();
    const box = label.getBoundingClientRect();
    return document.elementFromPoint(box.left + 2, box.top + box.height / 2) === label
}"""
#: Pages that are reached without an id.
PLAIN_PAGES = sorted(
    path for method, _, path in (route.partition(" ") for route in PERMISSIONS)
    if method == "GET" and path.startswith("/console/") and not re.search(r"\{|/parts/|/login|/callback", path)
)  # fmt: skip


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    """A platform with a node daemon, jobs in every state, and tiles that are held."""
    folder = tempfile.mkdtemp(prefix="rdk", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", folder)
        home = checked_home()
        opened = open_known_platform(home)
        migrate(opened.database)
        ensure_first_token(opened.database, home, time.time())
        command = [str(Path(sys.executable).with_name("rdukit")), "node", "start", "--platform", "SN30-8"]
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert node.stdout is not None
        node.stdout.readline()
        yield opened
        node.terminate()
        node.communicate()
        opened.database.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def example(platform: Platform) -> Example:
    with platform.database.read() as session:
        tenant = find_tenant(session, "default")
        assert tenant is not None
        tenant_id = tenant.id
    return Example(platform.database, platform.store, tenant_id, time.time())


@pytest.fixture(scope="module")
def jobs(example: Example) -> dict[str, str]:
    """Jobs in every state, and two versions of an expert, of which the first is deprecated."""
    jobs = example.fill()
    long = "Reads handwritten digits, " + "and much that is no digit at all, " * 8 + "with_a_word_that_" * 9
    example.promote(example.run_pipeline()[1])
    with example.database.write() as session:
        deprecate_expert(session, example.tenant_id, "digits:1", "trained on " + "one_very_long_path/" * 20, 3.0)
    example.promote(example.run_pipeline()[1], description=long)
    example.serve("read", "digits:2")
    return jobs


@pytest.fixture(scope="module")
def address(platform: Platform) -> Iterator[str]:
    with serving(platform) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Visit:
    """A logged-in browser window that remembers what went wrong in it."""

    def __init__(self, browser: object, address: str, platform: Platform, window: str) -> None:
        width, height, scheme = WINDOWS[window]
        self.window, self.address = window, address
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[attr-defined]
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in {"error", "warning"} else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda r: None if r.url.startswith(address) else self.problems.append(r.url))
        self.page.goto(f"{address}/console/")
        self.page.fill("#token", platform.home.token_file.read_text().strip())
        self.page.click("button.primary")
        self.page.wait_for_selector("nav")

    def open(self, path: str, picture: str) -> None:
        """Open a page, look that it fits the window, and take its picture."""
        self.page.goto(self.address + path)
        spare = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert spare == 0, f"{path} is {spare} pixels wider than the {self.window} window"
        self.check_barriers(path)
        if folder := os.environ.get("RDUKIT_PICTURES"):
            self.page.screenshot(path=f"{folder}/{picture}-{self.window}.png", full_page=True)

    def check_barriers(self, path: str) -> None:
        """Look for what axe knows as barriers: WCAG 2 A and AA, and its best practices."""
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(AXE)
        found = self.page.evaluate("axe.run().then(result => result.violations)")
        told = [(rule["id"], node["html"][:200], node["failureSummary"]) for rule in found for node in rule["nodes"]]
        assert told == [], f"{path} in the {self.window} window"

    def colour(self, selector: str) -> str:
        """Background colour of an element, as the browser paints it."""
        return str(self.page.eval_on_selector(selector, "e => getComputedStyle(e).backgroundColor"))


@pytest.fixture(params=first_short(["desk", "night", "hand"]))
def visit(
    request: pytest.FixtureRequest, browser: object, address: str, platform: Platform, jobs: dict[str, str]
) -> Iterator[Visit]:
    visit = Visit(browser, address, platform, request.param)
    yield visit
    visit.context.close()
    assert visit.problems == []


@pytest.mark.parametrize("visit", first_short(list(WINDOWS)), indirect=True)
def test_every_page_fits_the_window_and_axe_finds_no_barrier(visit: Visit, jobs: dict[str, str]) -> None:
    """Each page is looked at wide and narrow, light and dark, in two of the four windows; its neighbours in the
    others.
    """
    named = ("", "pipelines", "artifacts", "nodes", "catalog", "catalog/logreg", "catalog/gpt2/run/train",
             "catalog/logreg/pipeline", "catalog/logreg/sweep/train", "experts?deprecated=true",
             "experts/digits:2", "experts/digits:1", "endpoints", "endpoints/read", "endpoints/read/revision",
             "new/endpoint?expert=digits:2")  # fmt: skip
    visit.page.goto(visit.address + f"/console/jobs/{jobs['succeeded']}")
    artifact = str(visit.page.locator('a[href^="/console/artifacts/art-"]').last.get_attribute("href"))
    pages = {f"/console/{name}": re.sub("[/:?=]", "-", name) or "jobs" for name in named}
    pages |= {path: path.removeprefix("/console/").replace("/", "-") or "jobs" for path in PLAIN_PAGES}
    pages |= {artifact: "artifact"} | {f"/console/jobs/{job}": f"job-{state}" for state, job in jobs.items()}
    is_first = visit.window in {"desk", "night-hand"}
    for path, picture in list(pages.items())[0 if is_first else 1 :: 2]:
        visit.open(path, picture)
        if path == artifact:
            assert visit.page.locator("svg.lineage a").count() == 4, "two artifacts, and the jobs that made them"
        if picture.startswith("job-"):
            assert visit.page.inner_text(".head .pill") == picture.removeprefix("job-")


def test_the_pages_of_runs_side_by_side_fit_the_window(visit: Visit, jobs: dict[str, str]) -> None:
    visit.open(f"/console/compare?ids={jobs['succeeded']}", "compare-choice")
    assert visit.page.locator("input:checked").count() == 1
    visit.page.check(f"input[value={jobs['running']}]")
    visit.page.click("button.primary")
    chosen = f"/console/compare?ids={jobs['succeeded']},{jobs['running']},{jobs['failed']}"
    visit.open(chosen, "compare")
    assert visit.page.locator("svg.curve path.line").count() == 2


def test_the_pages_of_sweeps_fit_the_window(visit: Visit, jobs: dict[str, str], example: Example) -> None:
    sweep = example.sweep()
    visit.open("/console/sweeps", "sweeps")
    visit.open(f"/console/sweeps/{sweep}", "sweep")
    assert visit.page.locator("svg.parallel path.line").count() == 6
    assert visit.page.inner_text(".head .pill") == "running"


def test_a_drain_is_asked_about_before_it_begins(visit: Visit, platform: Platform) -> None:
    visit.open("/console/nodes", "nodes-drain")
    asked: list[str] = []
    visit.page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    visit.page.get_by_role("button", name="Drain").click()
    assert asked and asked[0].startswith("Drain this part?")
    with SndClient(platform.home.snd_socket) as administrator:
        state = str(administrator.status())
    assert "CORDON" not in state and "DRAIN" not in state


def test_an_endpoint_is_scaled_by_the_keyboard_and_asked_about_before_it_is_deleted(
    visit: Visit, example: Example
) -> None:
    name = f"small-{visit.window}"
    example.serve(name, "digits:2")
    visit.open(f"/console/endpoints/{name}", "endpoint-small")
    visit.page.get_by_label("replicas").focus()
    visit.page.keyboard.press("Control+A")
    visit.page.keyboard.type("0")
    visit.page.keyboard.press("Enter")
    playwright.expect(visit.page.locator("dl.facts")).to_contain_text("0 wanted")
    visit.page.once("dialog", lambda dialog: dialog.dismiss())
    visit.page.get_by_role("button", name="Delete it").click()
    assert visit.page.url.endswith(f"/console/endpoints/{name}")
    visit.page.once("dialog", lambda dialog: dialog.accept())
    visit.page.get_by_role("button", name="Delete it").click()
    visit.page.wait_for_url("**/console/endpoints")
    assert visit.page.get_by_role("link", name=name).count() == 0


def test_an_expert_of_a_bundle_and_another_beside_it_are_chosen(visit: Visit, example: Example) -> None:
    name = f"chat-{visit.window}"
    example.serve_bundle(name, "digits:1")
    visit.open(f"/console/endpoints/{name}", "endpoint-bundle")
    assert visit.page.get_by_role("cell", name="adapter of poet").count() == 1
    visit.open(f"/console/endpoints/{name}/playground", "playground-bundle")
    visit.page.get_by_label("Message").fill("Hello")
    visit.page.get_by_label("Expert").select_option("clerk")
    visit.page.get_by_label("Compare with").select_option(f"{name}/coder")
    visit.page.get_by_role("button", name="Send").click()
    playwright.expect(visit.page.locator("section.assistant .error")).to_have_count(2)
    told = visit.page.locator("section.assistant")
    assert told.all_inner_texts() == [
        f"{name}/{model}\n\nendpoint '{name}' has no replicas; start some with: rdukit endpoint update {name} "
        "--replicas 1" for model in ("clerk", "coder")
    ]  # fmt: skip
    assert visit.page.get_by_label("Expert").input_value() == "clerk"
    assert visit.page.get_by_label("Compare with").input_value() == f"{name}/coder"


def test_a_box_is_run_by_the_keyboard_and_a_wrong_value_is_told_at_its_field(visit: Visit) -> None:
    visit.open("/console/catalog/logreg/run/compile", "run-compile")
    visit.page.get_by_label("name", exact=True).fill("by hand")
    visit.page.get_by_label("priority").fill("1000")
    visit.page.keyboard.press("Enter")
    told = visit.page.locator("#priority-error")
    told.wait_for()
    assert "expected -100 to 100" in told.inner_text()
    assert visit.page.get_by_label("name", exact=True).input_value() == "by hand"
    assert visit.page.evaluate("document.activeElement.id") == "problems"
    visit.problems.clear()  # Chromium notes each answer that is an error
    visit.page.get_by_label("priority").fill("1")
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_url("**/console/jobs/job-*")
    assert visit.page.inner_text("h1") == "by hand"


def test_a_sweep_is_begun_by_the_keyboard(visit: Visit) -> None:
    visit.open("/console/catalog/logreg/sweep/compile", "sweep-form-compile")
    visit.page.locator("#try-batch_size").fill("16,17")
    visit.page.keyboard.press("Enter")
    told = visit.page.locator("#try-batch_size-error")
    told.wait_for()
    assert "is 17; expected one of 16, 32" in told.inner_text()
    visit.check_barriers("a sweep that is refused")
    visit.problems.clear()  # Chromium notes each answer that is an error
    visit.page.locator("#try-batch_size").fill("16,32")
    visit.page.locator("#objective").select_option("sections")
    visit.page.locator("#max_trials").press("Enter")
    visit.page.wait_for_url("**/console/sweeps/sweep-*")
    assert "2 at once, by grid" in visit.page.inner_text("dl.facts")


def test_ids_of_the_audit_log_and_labels_of_curves_are_whole(visit: Visit, jobs: dict[str, str]) -> None:
    visit.open("/console/audit", "audit")
    who = visit.page.locator("td:nth-child(3)").first
    assert who.evaluate(COUNT_LINES) == 1
    visit.page.goto(f"{visit.address}/console/jobs/{jobs['succeeded']}")
    label = visit.page.locator("svg.curve text[text-anchor=end]").first
    assert label.evaluate(IS_SEEN_WHEN_LONG)


def test_light_and_dark_follow_the_system(visit: Visit) -> None:
    visit.open("/console/", "jobs")
    red, green, blue = (int(n) for n in visit.colour("body").removeprefix("rgb(").removesuffix(")").split(","))
    assert (red + green + blue > 600) == (visit.window != "night")


def test_tiles_have_the_colour_of_their_holder(visit: Visit, platform: Platform) -> None:
    with (
        SndClient(platform.home.snd_socket) as one,
        SndClient(platform.home.snd_socket) as two,
    ):
        one.acquire("train", 3, 1 << 30, tenant="default")
        two.acquire("serve", 8, 8 << 30, tenant="lab")
        visit.open("/console/nodes", "nodes")
        assert visit.page.locator(".tile").count() == 64
        assert visit.page.locator(".tile.free").count() == 64 - 11
        colours = {visit.colour(f".swatch.c{i}"): visit.page.locator(f".tile.c{i}").count() for i in (0, 1)}
        assert sorted(colours.values()) == [3, 8]
        # In one call, as the page replaces its tiles again and again.
        sides = "tile => { const { width, height } = tile.getBoundingClientRect(); return width - height; }"
        assert abs(visit.page.locator(".tile").first.evaluate(sides)) < 1
    playwright.expect(visit.page.locator(".tile.free")).to_have_count(64, timeout=8000)


def test_what_is_broken_is_marked_and_says_what_to_do(visit: Visit, platform: Platform) -> None:
    broken = [
        {"class": "tile-excluded", "component": "/NODE/XRDU_0/RDU_1/TILE_3"},
        {"class": "ddr-uncorrectable", "component": "/NODE/XRDU_1/RDU_0/DDRCH_2"},
        {"class": "rdu-removed", "component": "/NODE/XRDU_2/RDU_1"},
    ]
    with SndClient(platform.home.snd_socket) as holder, SndClient(platform.home.snd_socket) as administrator:
        holder.acquire("train", 3, 1 << 30, tenant="default")
        administrator.call("inject", events=broken)
        waiter = subprocess.Popen([sys.executable, "-c", WAITER, str(platform.home.snd_socket)])
        try:
            while not administrator.status()["waiting"]:
                assert waiter.poll() is None
                time.sleep(0.05)
            visit.open("/console/nodes", "nodes-broken")
            assert visit.page.inner_text(".head .pill >> nth=0") == "DEGRADED"
            assert visit.page.locator(".tile.bad").count() == 1
            assert visit.page.locator(".tile.dark").count() == 8
            assert visit.page.locator(".faults li").count() == 3
            assert visit.page.inner_text(".faults li >> nth=0").count("To do:") == 1
            assert "big" in visit.page.inner_text("text=Waiting for tiles >> xpath=following-sibling::*[1]")
        finally:
            waiter.kill()
            waiter.wait()
            for rdu in administrator.status()["rdus"]:
                administrator.call("repair", component=rdu["comp_name"])
    playwright.expect(visit.page.locator(".faults li")).to_have_count(0, timeout=8000)
    playwright.expect(visit.page.locator(".tile.free")).to_have_count(64, timeout=8000)


def test_a_running_job_renews_itself_without_a_reload(visit: Visit, jobs: dict[str, str], example: Example) -> None:
    job = example.start_training(steps=100)
    visit.open(f"/console/jobs/{job}", "job-live")
    visit.page.evaluate("window.same = true")
    example.advance(job, step=1111, loss=0.125)
    visit.page.wait_for_selector("text=1111 of 1250", timeout=8000)
    visit.page.wait_for_selector("pre.log >> text=step 1111 of 1250", timeout=8000)
    assert visit.page.evaluate("window.same") is True
    visit.page.on("dialog", lambda dialog: dialog.accept())
    visit.page.click("text=Cancel")
    visit.page.wait_for_selector(".pill.off >> text=cancelled", timeout=8000)


@pytest.mark.parametrize("visit", ["desk"], indirect=True)
def test_commands_and_ids_are_copied_by_the_keyboard(visit: Visit, jobs: dict[str, str]) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.open(f"/console/jobs/{jobs['succeeded']}", "job-copy")
    for name, text in (
        (f"Copy {jobs['succeeded']}", jobs["succeeded"]),
        (f"Copy rdukit job clone {jobs['succeeded']}", f"rdukit job clone {jobs['succeeded']}"),
    ):
        button = visit.page.get_by_role("button", name=name, exact=True)
        button.focus()
        visit.page.keyboard.press("Enter")
        playwright.expect(button).to_have_text("Copied")
        playwright.expect(visit.page.locator("#said")).to_have_text("Copied")
        assert visit.page.evaluate("navigator.clipboard.readText()") == text


def test_a_platform_that_is_away_is_said_so(browser: object, platform: Platform, jobs: dict[str, str]) -> None:
    with serving(platform) as address:
        visit = Visit(browser, address, platform, "desk")
        visit.open("/console/", "jobs")
        lost = visit.page.locator("#lost")
        playwright.expect(lost).to_be_hidden()
    playwright.expect(lost).to_be_visible(timeout=10_000)
    assert "does not answer; this page may be outdated" in lost.inner_text()
    assert visit.page.locator(f'a[href="/console/jobs/{jobs["running"]}"]').count(), "what was there can still be read"
    visit.context.close()


def test_the_rest_manual_lists_the_routes_without_a_network(visit: Visit) -> None:
    visit.page.goto(f"{visit.address}/docs")
    visit.page.locator(".opblock").first.wait_for()
    described = visit.page.request.get(f"{visit.address}/openapi.json").json()["paths"]
    paths = visit.page.locator(".opblock-summary-path").evaluate_all("all => all.map(each => each.dataset.path)")
    assert "/v1/pipelines" in paths and sorted(paths) == sorted(path for path, ways in described.items() for _ in ways)
    if folder := os.environ.get("RDUKIT_PICTURES"):
        visit.page.screenshot(path=f"{folder}/docs-{visit.window}.png")

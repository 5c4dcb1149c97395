"""The console over a real database: who may see what, and that every page is whole."""

import html
import io
import re
import tempfile
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from shutil import rmtree

import httpx
import pytest
from PIL import Image
from sqlalchemy import select

from rdukit_platform.api.context import Platform
from rdukit_platform.catalog.experts import deprecate_expert
from rdukit_platform.console.access import COOKIE
from rdukit_platform.console.routes import STATIC
from rdukit_platform.db.models import JobRow, TokenRow
from rdukit_platform.settings import Home, checked_home
from rdukit_platform.tenants.scopes import READ
from rdukit_platform.tenants.service import create_tenant, find_tenant
from rdukit_platform.tenants.tokens import create_token, ensure_first_token
from support import shows
from support.platform.database import place_database
from support.platform.gateway import Example, job_state, open_known_platform, serving

pytestmark = shows("console", "catalog", "experts", "artifacts", "pipelines", "sweeps")

VOID = {"meta", "link", "input", "br", "hr", "img", "rect", "line", "circle", "path"}


class Tags(HTMLParser):
    """Collects what is wrong with a page's tags, its links and anything inline."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: set[str] = set()
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.wrong += [f"<{tag} {name}>" for name in names if name == "style" or name.startswith("on")]
        if tag in {"script", "link"} and not (names.get("src") or names.get("href") or "").startswith("/console/"):
            self.wrong.append(f"<{tag}> that is not the console's own file")
        if tag == "a" and (names.get("href") or "").startswith("/console/"):
            self.links.add(str(names["href"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")


def check_page(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert tags.wrong == []
    assert tags.open == []
    return tags


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    folder = tempfile.mkdtemp(prefix="rdk", dir="/tmp")
    monkeypatch.setenv("RDUKIT_HOME", folder)
    home: Home = checked_home()
    place_database(home.folder)
    opened = open_known_platform(home)
    ensure_first_token(opened.database, home, time.time())
    yield opened
    opened.database.close()
    rmtree(folder)


@pytest.fixture
def example(platform: Platform) -> Example:
    with platform.database.read() as session:
        tenant = find_tenant(session, "default")
        assert tenant is not None
        tenant_id = tenant.id
    return Example(platform.database, platform.store, tenant_id, time.time())


@pytest.fixture
def jobs(example: Example) -> dict[str, str]:
    return example.fill()


@pytest.fixture
def client(platform: Platform) -> Iterator[httpx.Client]:
    """A browser without JavaScript, at the gateway's real socket."""
    with (
        serving(platform) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=60.0) as client,
    ):
        yield client


def log_in(client: httpx.Client, token: str) -> None:
    answer = client.post("/console/login", data={"token": token, "next": "/console/nodes"}, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/console/nodes"


def first_token(platform: Platform) -> str:
    return platform.home.token_file.read_text().strip()


def other_token(platform: Platform, scopes: list[str]) -> str:
    with platform.database.write() as session:
        tenant = find_tenant(session, "other") or create_tenant(session, "other", time.time())
        return create_token(session, tenant.id, "t", scopes, time.time())[1]


def test_without_a_session_every_page_leads_to_the_login_and_back(client: httpx.Client, platform: Platform) -> None:
    for path in ("/console/", "/console/nodes", "/console/jobs/job-1", "/console/artifacts"):
        answer = client.get(path, follow_redirects=False)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/console/login?next={path}"
    renewed = client.get("/console/parts/jobs", headers={"HX-Request": "true"})
    assert (renewed.status_code, renewed.headers["HX-Redirect"]) == (401, "/console/login")


def test_a_wrong_token_is_refused_and_the_right_one_gives_a_safe_cookie(
    client: httpx.Client, platform: Platform
) -> None:
    refused = client.post("/console/login", data={"token": "rdk_wrong"})
    assert refused.status_code == 401
    assert "This token is not valid" in refused.text
    answer = client.post("/console/login", data={"token": f" {first_token(platform)}\n"}, follow_redirects=False)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert first_token(platform).lower() not in cookie
    assert (platform.home.folder / "console.key").stat().st_mode & 0o777 == 0o600


def test_logging_out_and_revoking_the_token_end_the_session(client: httpx.Client, platform: Platform) -> None:
    log_in(client, first_token(platform))
    assert client.get("/console/", follow_redirects=False).status_code == 200
    kept = client.cookies[COOKIE]
    client.post("/console/logout")
    assert client.get("/console/", follow_redirects=False).status_code == 303
    stolen = client.get("/console/", headers={"Cookie": f"{COOKIE}={kept}"}, follow_redirects=False)
    assert stolen.status_code == 303, "the server ended it, whoever has its cookie"
    log_in(client, first_token(platform))
    assert client.get("/console/", follow_redirects=False).status_code == 200, "the token itself goes on"
    with platform.database.write() as session:
        for row in session.scalars(select(TokenRow)):
            row.revoked_at = time.time()
    assert client.get("/console/", follow_redirects=False).status_code == 303


def test_a_forged_cookie_is_no_session(client: httpx.Client, platform: Platform) -> None:
    log_in(client, first_token(platform))
    genuine = client.cookies[COOKIE]
    client.cookies.clear()
    for cookie, status in ((genuine[:-4] + "0000", 303), (genuine, 200)):
        answer = client.get("/console/", headers={"Cookie": f"{COOKIE}={cookie}"}, follow_redirects=False)
        assert answer.status_code == status


@pytest.mark.long
def test_every_link_leads_to_a_whole_page_with_strict_headers(
    client: httpx.Client, platform: Platform, jobs: dict[str, str], example: Example
) -> None:
    example.promote(jobs["succeeded"])
    sweep = example.sweep()
    log_in(client, first_token(platform))
    seen: set[str] = set()
    pending = {"/console/", *(f"/console/jobs/{job}" for job in jobs.values())}
    while pending:
        path = pending.pop()
        seen.add(path)
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        pending |= check_page(answer.text).links - seen
    assert any(path.startswith("/console/artifacts/art-") for path in seen)
    assert any(path.startswith("/console/pipelines/pipe-") for path in seen)
    assert any(path.startswith("/console/catalog/") for path in seen)
    assert "/console/experts/digits:1" in seen
    assert f"/console/sweeps/{sweep}" in seen
    assert any(path.startswith("/console/compare?ids=") for path in seen)


def test_the_catalog_is_searched_narrowed_and_compared_without_a_script(
    client: httpx.Client, platform: Platform, example: Example, jobs: dict[str, str]
) -> None:
    log_in(client, first_token(platform))
    example.promote(example.run_pipeline()[1])
    with example.database.write() as session:
        deprecate_expert(session, example.tenant_id, "digits:1", "<b>old</b>", 3.0)
    example.promote(jobs["succeeded"])
    found = client.get("/console/catalog", params={"search": "digits", "task": "classification"}).text
    check_page(found)
    assert 'value="expert/digits:2"' in found and 'value="box/logreg"' in found
    assert 'value="expert/digits:1"' not in found and 'value="box/lenet"' not in found
    assert 'value="expert/digits:1"' in client.get("/console/catalog?search=digits&deprecated=true").text
    first = re.findall(r'name="entry" value="([^"]*)"', client.get("/console/catalog?sort=metric.accuracy").text)[0]
    assert first.startswith(("expert/", "box/", "checkpoint/"))
    seen, path = set[str](), "/console/catalog?kind=model"
    while path:
        text = client.get(path).text
        on_page = re.findall(r'name="entry" value="([^"]*)"', text)
        assert on_page and not seen & set(on_page)
        seen |= set(on_page)
        more = re.search(r'<a href="([^"]*)">More</a>', text)
        path = html.unescape(more[1]) if more else ""
    assert "model/gpt2/medium" in seen and f"Models {len(seen)}" in text
    side = client.get("/console/entries/compare", params={"entry": ["expert/digits:2", "logreg", "gpt2/medium"]}).text
    check_page(side)
    assert "7,850" in side and "355 M" in side and side.count('<span class="tag">best</span>') == 1
    assert "&lt;b&gt;old" in client.get("/console/entries/compare?entry=digits:1&entry=digits:2").text
    alone = client.get("/console/entries/compare?entry=gpt2")
    assert alone.status_code == 200 and 'name="entry" value="gpt2"' in alone.text
    for wrong in ("entry=gpt2&entry=nothing", "&".join(f"entry=llama/{n}" for n in range(5))):
        answer = client.get(f"/console/entries/compare?{wrong}")
        assert answer.status_code >= 400 and "legal" in answer.text
        check_page(answer.text)
    assert client.get("/console/catalog?sort=nonsense").status_code == 400
    assert "Nothing is found" in client.get("/console/catalog?search=%3Cscript%3E").text


def test_an_empty_platform_says_what_to_do_next(client: httpx.Client, platform: Platform) -> None:
    log_in(client, first_token(platform))
    assert "No jobs yet" in client.get("/console/").text
    assert "No artifacts yet" in client.get("/console/artifacts").text
    assert "rdukit expert promote JOB --name NAME" in client.get("/console/experts").text
    assert "No pipelines yet" in client.get("/console/pipelines").text
    assert "node daemon does not answer" in client.get("/console/nodes").text


def test_the_job_page_tells_the_whole_story(client: httpx.Client, platform: Platform, jobs: dict[str, str]) -> None:
    log_in(client, first_token(platform))
    done = client.get(f"/console/jobs/{jobs['succeeded']}").text
    for word in (
        "91.5 %",
        "projected",
        "Training loss",
        "checkpoint",
        "XRDU_0/RDU_1 tiles 0–1",
        "worker-1",
        "Completed",
        f"rdukit job clone {jobs['succeeded']}",
    ):
        assert word in done
    assert "hx-get" not in done
    running = client.get(f"/console/jobs/{jobs['running']}").text
    assert "640 of 1250" in running
    assert "checkpoint &lt;step-500&gt; written" in running
    assert "Cancel" in running
    assert "2 tiles, of which 0 are free" in client.get(f"/console/jobs/{jobs['queued']}").text
    assert "batch_size is 33; legal: one of 16, 32, 64" in client.get(f"/console/jobs/{jobs['failed']}").text


def test_a_training_says_how_to_promote_it_and_then_as_what_it_was(
    client: httpx.Client, platform: Platform, jobs: dict[str, str], example: Example
) -> None:
    log_in(client, first_token(platform))
    job = f"/console/jobs/{jobs['succeeded']}"
    hint = f"rdukit expert promote {jobs['succeeded']} --name NAME"
    assert hint in client.get(job).text
    for other in ("running", "failed"):
        assert "rdukit expert promote" not in client.get(f"/console/jobs/{jobs[other]}").text
    example.promote(jobs["succeeded"])
    promoted = client.get(job).text
    assert hint not in promoted
    assert "/console/experts/digits:1" in promoted
    found = re.search(r"/console/artifacts/art-\w+\">[^<]* checkpoint<", promoted)
    assert found is not None
    assert "/console/experts/digits:1" in client.get(found[0].split('"')[0]).text


def test_experts_are_searched_and_tell_their_figures_and_what_they_were_made_from(
    client: httpx.Client, platform: Platform, jobs: dict[str, str], example: Example
) -> None:
    example.promote(jobs["succeeded"], description="Reads <b>digits</b>.")
    example.promote(example.run_pipeline()[1])
    example.promote(example.run_pipeline()[1], name="letters", description="")
    with platform.database.write() as session:
        deprecate_expert(session, example.tenant_id, "digits:1", "digits:2 is better", time.time())
    log_in(client, first_token(platform))
    cards = client.get("/console/experts").text
    assert [name in cards for name in ("digits:1<", "digits:2<", "letters:1<")] == [False, True, True]
    assert "91.5 %" in cards and "emulated" not in cards.partition("<main")[2].partition("<footer")[0]
    found = client.get("/console/experts", params={"search": '"><b> digits', "deprecated": "true"}).text
    check_page(found)
    assert "No expert has these words" in found
    found = client.get("/console/experts", params={"search": "READS", "deprecated": "true"}).text
    assert [name in found for name in ("digits:1<", "digits:2<", "letters:1<")] == [True, True, False]
    assert "Reads &lt;b&gt;digits" in found and "deprecated</span>" in found
    old = client.get("/console/experts/digits:1").text
    check_page(old)
    for word in (
        "digits:2 is better", "91.5 %", "projected", jobs["succeeded"], "rdukit job submit logreg infer --input",
        "/console/experts/digits:2", "rdukit artifact get art-", "Made from",
    ):  # fmt: skip
        assert word in old
    assert "/deprecate" not in old
    assert 'action="/console/experts/digits:2/deprecate"' in client.get("/console/experts/digits").text
    assert client.get("/console/experts/digits:3").status_code == 404
    client.post("/console/logout")
    log_in(client, other_token(platform, [READ]))
    assert "No experts yet" in client.get("/console/experts?deprecated=true").text
    assert "No experts yet" in client.get("/console/experts").text
    assert client.get("/console/experts/digits:2").status_code == 404


def test_filters_show_jobs_of_one_state_and_refuse_states_that_are_none(
    client: httpx.Client, platform: Platform, jobs: dict[str, str]
) -> None:
    log_in(client, first_token(platform))
    failed = client.get("/console/?state=failed").text
    assert jobs["failed"] in failed
    assert jobs["running"] not in failed
    found = client.get(f"/console/?q={jobs['failed']}").text
    assert f"/console/jobs/{jobs['failed']}" in found and jobs["running"] not in found
    assert f'href="/console/?state=failed&amp;q={jobs["failed"]}"' in found and f'value="{jobs["failed"]}"' in found
    nothing = client.get("/console/?q=%3Cb%3Enothing&state=failed").text
    assert "No job that is failed has all of “&lt;b&gt;nothing”" in nothing
    refused = client.get("/console/?state=flying")
    assert refused.status_code == 400
    assert "no job state is called" in refused.text


def test_a_part_that_has_not_changed_is_not_sent_again(
    client: httpx.Client, platform: Platform, jobs: dict[str, str]
) -> None:
    log_in(client, first_token(platform))
    page = client.get(f"/console/jobs/{jobs['running']}").text
    found = re.search(r'hx-get="(/console/jobs/[^"]+/log\?seen=[0-9a-f]+)"', page)
    assert found is not None
    assert client.get(found[1]).status_code == 204
    assert client.get(found[1].split("?")[0]).status_code == 200


def test_an_artifacts_page_draws_its_lineage_with_links_and_says_what_needs_it(
    client: httpx.Client, platform: Platform, jobs: dict[str, str], example: Example
) -> None:
    example.promote(jobs["succeeded"])
    log_in(client, first_token(platform))
    paths = re.findall(r"/console/artifacts/art-\w+", client.get(f"/console/jobs/{jobs['succeeded']}").text)
    pages = [client.get(path).text for path in dict.fromkeys(paths)]
    assert all('<svg xmlns="http://www.w3.org/2000/svg" class="lineage"' in page for page in pages)
    assert all(f'<a href="/console/jobs/{jobs["succeeded"]}"><g class="job"' in page for page in pages)
    assert any("Needed by</dt><dd>expert " in page for page in pages)
    assert re.search(r"\d+ with [\d.]+ KiB, kept by their content", client.get("/console/artifacts").text)


def test_another_tenants_things_are_not_found(client: httpx.Client, platform: Platform, jobs: dict[str, str]) -> None:
    log_in(client, first_token(platform))
    artifact = re.search(r"/console/artifacts/art-\w+", client.get(f"/console/jobs/{jobs['succeeded']}").text)
    assert artifact is not None
    client.post("/console/logout")
    log_in(client, other_token(platform, [READ]))
    assert "No jobs yet" in client.get("/console/").text
    for path in (f"/console/jobs/{jobs['running']}", f"/console/jobs/{jobs['running']}/log", artifact[0]):
        assert client.get(path).status_code == 404


def test_cancelling_ends_the_job_and_needs_scope_and_our_own_form(
    client: httpx.Client, platform: Platform, jobs: dict[str, str]
) -> None:
    path = f"/console/jobs/{jobs['running']}/cancel"
    log_in(client, first_token(platform))
    for headers in ({"Origin": "http://elsewhere"}, {"Sec-Fetch-Site": "cross-site"}):
        assert client.post(path, headers=headers).status_code == 403
    assert job_state(platform.database, jobs["running"]) == "running"
    answer = client.post(path, headers={"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"})
    assert answer.status_code == 200
    assert "Cancelled by a user" in answer.text
    assert job_state(platform.database, jobs["running"]) == "cancelled"
    assert client.post(f"/console/jobs/{jobs['succeeded']}/cancel").status_code == 409
    with platform.database.write() as session:
        tenant = find_tenant(session, "default")
        assert tenant is not None
        reader = create_token(session, tenant.id, "reader", [READ], time.time())[1]
    client.post("/console/logout")
    log_in(client, reader)
    assert client.post(f"/console/jobs/{jobs['queued']}/cancel").status_code == 403
    assert "Cancel</button>" not in client.get(f"/console/jobs/{jobs['queued']}").text


def test_buttons_pause_resume_promote_and_end_a_pipeline(
    client: httpx.Client, platform: Platform, jobs: dict[str, str], example: Example
) -> None:
    log_in(client, first_token(platform))
    queued, done = jobs["queued"], jobs["succeeded"]
    page = client.post(f"/console/jobs/{queued}/pause").text
    check_page(page)
    assert job_state(platform.database, queued) == "paused" and "Resume</button>" in page
    assert "Pause</button>" in client.post(f"/console/jobs/{queued}/resume").text
    assert job_state(platform.database, queued) == "queued"
    assert client.post(f"/console/jobs/{done}/pause").status_code == 409
    page = client.get(f"/console/jobs/{done}").text
    assert f'action="/console/jobs/{done}/promote"' in page and "Pause</button>" not in page
    refused = client.post(f"/console/jobs/{done}/promote", data={"name": "No Name"})
    assert refused.status_code == 400 and "legal names: up to 63 of a-z" in html.unescape(refused.text)
    promoted = client.post(f"/console/jobs/{done}/promote", data={"name": "digits", "description": "reads"})
    assert promoted.url.path == "/console/experts/digits:1" and "reads" in promoted.text
    _, pipeline = example.fan_out()
    assert "Cancel all jobs of this pipeline" in client.get(f"/console/pipelines/{pipeline}").text
    ended = client.post(f"/console/pipelines/{pipeline}/cancel").text
    assert "Cancel all jobs of this pipeline" not in ended and "Cancelled" in ended


def test_a_sweeps_page_shows_its_trials_and_cancels_them(
    client: httpx.Client, platform: Platform, jobs: dict[str, str], example: Example
) -> None:
    sweep = example.sweep()
    log_in(client, first_token(platform))
    page = client.get(f"/console/sweeps/{sweep}").text
    for word in ("maximize accuracy", "0.85", "trial 5", "above 1.626, the median of 4 trials", "Compare the best"):
        assert word in page
    listed = client.get("/console/sweeps").text
    assert 'hx-get="/console/parts/sweeps?seen=' in listed, "the list renews itself while a sweep runs"
    answer = client.post(f"/console/sweeps/{sweep}/cancel", headers={"Origin": str(client.base_url).rstrip("/")})
    assert answer.status_code in {200, 303}
    assert "Cancel this sweep" not in client.get(f"/console/sweeps/{sweep}").text
    again = client.get("/console/parts/sweeps", params={"seen": "other"}).text
    assert f"/console/sweeps/{sweep}" in again and "hx-get" not in again
    log_in(client, other_token(platform, [READ]))
    assert client.get(f"/console/sweeps/{sweep}").status_code == 404
    assert client.get(f"/console/compare?ids={jobs['succeeded']},{jobs['running']}").status_code == 404


def test_a_pipelines_page_shows_what_comes_after_what_what_was_cached_and_fan_outs_together(
    client: httpx.Client, platform: Platform, example: Example
) -> None:
    first, pipeline = example.fan_out()
    log_in(client, first_token(platform))
    text = client.get(f"/console/pipelines/{pipeline}").text
    check_page(text)
    assert re.search(rf'cached</span> from <a class="mono" href="/console/jobs/{first}">', text)
    assert "2 jobs: 1 succeeded, 1 queued" in text
    assert len(re.findall(r'data-label="after ">compile<', text)) == 2


def test_the_gateways_address_leads_to_the_console(client: httpx.Client) -> None:
    answer = client.get("/")
    assert (answer.status_code, answer.url.path) == (200, "/console/login")


def test_a_path_that_is_no_page_is_answered_with_one(client: httpx.Client) -> None:
    answer = client.get("/console/nosuch")
    assert answer.status_code == 404
    check_page(answer.text)
    assert "the console has no page /console/nosuch" in answer.text


def test_only_the_consoles_own_files_are_served(client: httpx.Client) -> None:
    for name in STATIC.iterdir():
        assert client.get(f"/console/static/{name.name}").status_code == 200
    for path in ("/console/static/../access.py", "/console/static/%2e%2e%2faccess.py", "/console/static/none.css"):
        assert client.get(path).status_code == 404


def upload(client: httpx.Client, token: str, name: str, content: bytes) -> str:
    answer = client.post(
        "/v1/artifacts", headers={"Authorization": f"Bearer {token}"}, data={"kind": "file", "name": name},
        files={"files": (name, content)},
    ).raise_for_status()  # fmt: skip
    return str(answer.json()["id"])


def test_a_picture_among_the_results_is_shown_and_nothing_else_as_one(
    client: httpx.Client, platform: Platform, jobs: dict[str, str]
) -> None:
    made = io.BytesIO()
    Image.new("RGB", (8, 4), "red").save(made, "png")
    token = first_token(platform)
    picture = upload(client, token, "picture.png", made.getvalue())
    forged = upload(client, token, "forged.png", b"<script>alert(1)</script>")
    with platform.database.write() as session:
        row = session.get(JobRow, jobs["succeeded"])
        assert row is not None
        row.outputs = {**row.outputs, "picture": picture}
    log_in(client, token)
    path = f"/console/artifacts/{picture}/picture"
    for page in (f"/console/jobs/{jobs['succeeded']}", f"/console/artifacts/{picture}"):
        text = client.get(page).text
        check_page(text)
        assert f'src="{path}"' in text
    answer = client.get(path)
    assert (answer.headers["content-type"], answer.content) == ("image/png", made.getvalue())
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get(f"/console/artifacts/{forged}/picture").status_code == 404
    other = upload(client, token, "weights.bin", made.getvalue())
    assert "/picture" not in client.get(f"/console/artifacts/{other}").text
    assert client.get(f"/console/artifacts/{other}/picture").status_code == 404
    client.cookies.clear()
    log_in(client, other_token(platform, [READ]))
    assert client.get(path).status_code == 404

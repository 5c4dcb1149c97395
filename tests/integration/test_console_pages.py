"""The console's pages of jobs, artifacts, pipelines and sweeps over a real database: every page is complete."""

import html
import io
import re
import time
from collections.abc import Iterator

import httpx
import pytest
from PIL import Image

from rdukit_platform.api.context import Platform
from rdukit_platform.db.models import JobRow
from rdukit_platform.tenants.scopes import READ
from rdukit_platform.tenants.service import find_tenant
from rdukit_platform.tenants.tokens import create_token
from support import shows
from support.platform.console import browser, check_page, console_platform, example_of, first_token, log_in, other_token
from support.platform.gateway import Example, job_state

pytestmark = shows("console", "artifacts", "pipelines", "sweeps")


@pytest.fixture
def platform() -> Iterator[Platform]:
    with console_platform() as opened:
        yield opened


@pytest.fixture
def example(platform: Platform) -> Example:
    return example_of(platform)


@pytest.fixture
def jobs(example: Example) -> dict[str, str]:
    return example.fill()


@pytest.fixture
def client(platform: Platform) -> Iterator[httpx.Client]:
    with browser(platform) as opened:
        yield opened


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
    assert "batch_size is 33; expected one of 16, 32, 64" in client.get(f"/console/jobs/{jobs['failed']}").text


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
    of_box = client.get("/console/?box=logreg&state=failed").text
    assert jobs["failed"] in of_box and jobs["running"] not in of_box and 'name="box" value="logreg"' in of_box
    assert 'href="/console/?state=running&amp;box=logreg"' in of_box
    assert 'hx-get="/console/parts/jobs?state=failed&amp;box=logreg&amp;seen=' in of_box
    assert "No job of box log that is failed exists" in client.get("/console/?box=log&state=failed").text
    assert client.get("/console/?box=logreg:new").status_code == 400
    refused = client.get("/console/?state=flying")
    assert refused.status_code == 400
    assert "unknown job state" in refused.text


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
    assert re.search(r"\d+ with [\d.]+ KiB, stored by content", client.get("/console/artifacts").text)


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
    assert refused.status_code == 400 and "expected a name of up to 63 of a-z" in html.unescape(refused.text)
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

"""The console's pages of the catalog and of experts: search, comparison, promotion."""

import html
import re
import time
from collections.abc import Iterator

import httpx
import pytest

from rdukit_platform.api.context import Platform
from rdukit_platform.catalog.experts import deprecate_expert
from rdukit_platform.tenants.scopes import READ
from support import shows
from support.platform.console import browser, check_page, console_platform, example_of, first_token, log_in, other_token
from support.platform.gateway import Example

pytestmark = shows("console", "catalog", "experts")


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
        assert answer.status_code >= 400 and "expected" in answer.text
        check_page(answer.text)
    assert client.get("/console/catalog?sort=nonsense").status_code == 400
    assert "Nothing is found" in client.get("/console/catalog?search=%3Cscript%3E").text


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

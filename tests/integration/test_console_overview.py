"""The console's overview and navigation over a real database."""

import re
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import select

from rdukit_platform.api.context import Platform
from rdukit_platform.console.navigation import GROUPS
from rdukit_platform.console.utilisation import HOUR_S, read_node_utilisation
from rdukit_platform.db.attempts import AttemptPartRow
from rdukit_platform.db.models import AttemptRow, EndpointReplicaRow, JobRow
from rdukit_platform.tenants.scopes import READ
from support import shows
from support.platform.console import browser, check_page, console_platform, example_of, first_token, log_in, other_token

pytestmark = shows("console")


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with console_platform() as opened:
        yield opened


@pytest.fixture(scope="module")
def jobs(platform: Platform) -> dict[str, str]:
    example = example_of(platform)
    jobs = example.fill()
    example.promote(jobs["succeeded"])
    example.serve("read", "digits:1")
    return jobs


@pytest.fixture
def client(platform: Platform) -> Iterator[httpx.Client]:
    with browser(platform) as opened:
        yield opened


def test_the_overview_answers_what_runs_what_waits_and_why_and_what_failed(
    client: httpx.Client, platform: Platform, jobs: dict[str, str]
) -> None:
    log_in(client, first_token(platform))
    text = client.get("/console/overview").text
    links = check_page(text).links
    assert {f"/console/jobs/{jobs[state]}" for state in ("running", "queued", "retrying", "failed")} <= links
    assert {"/console/endpoints/read", "/console/nodes", "/console/?state=queued"} <= links
    assert "2 tiles, of which 0 are free; XRDU_0 has the next 4" in text
    assert "batch_size is 33; expected one of 16, 32, 64" in text
    assert "<b>0 of 1</b><span>endpoints as wanted</span>" in text
    assert "no quota" in text
    assert 'aria-label="Tiles in use by hours before now' in text
    assert "No job" not in text


def test_a_new_tenants_overview_shows_the_first_command_and_nothing_of_others(
    client: httpx.Client, platform: Platform, jobs: dict[str, str]
) -> None:
    log_in(client, other_token(platform, [READ]))
    text = client.get("/console/overview").text
    check_page(text)
    assert "rdukit job submit logreg compile --wait" in text
    assert "No tile was in use." in text
    assert not any(job in text for job in jobs.values())
    assert "/console/endpoints/read" not in text


def test_the_overview_renews_itself(client: httpx.Client, platform: Platform, jobs: dict[str, str]) -> None:
    log_in(client, first_token(platform))
    found = re.search(r'hx-get="(/console/parts/overview)\?seen=[0-9a-f]+"', client.get("/console/overview").text)
    assert found is not None
    part = client.get(found[1])
    assert part.status_code == 200
    assert f"/console/jobs/{jobs['running']}" in check_page(part.text).links


@pytest.mark.parametrize("address", ["/", "/console"])
def test_the_address_without_a_page_leads_to_the_overview_also_through_the_login(
    address: str, client: httpx.Client, platform: Platform
) -> None:
    login = client.get(address)
    assert str(login.url).endswith("/console/login?next=/console/overview")
    log_in(client, first_token(platform))
    assert str(client.get(address).url).endswith("/console/overview")


def test_every_page_of_the_navigation_is_current_on_itself_and_names_its_page_of_the_manual(
    client: httpx.Client, platform: Platform, jobs: dict[str, str]
) -> None:
    log_in(client, first_token(platform))
    for entry in [entry for group in GROUPS for entry in group.pages]:
        text = client.get(entry.path).text
        assert f'href="{entry.path}" aria-current="page">{entry.name}</a>' in text, entry
        assert f"docs/{entry.manual}.md" in text, entry
        assert all(f'role="group" aria-label="{group.title}"' in text for group in GROUPS)


def test_tiles_in_use_on_a_node_are_those_of_attempts_parts_and_replicas(
    platform: Platform, jobs: dict[str, str]
) -> None:
    now = 2e9
    with platform.database.write() as session:
        job = session.get_one(JobRow, jobs["succeeded"])
        times = {"started_at": now - HOUR_S, "ended_at": now - HOUR_S / 2, "published_at": now - HOUR_S}
        attempt = AttemptRow(
            id="att-util", job_id=job.id, number=90, token="t", node="blade-1", tiles=["a", "b"], **times
        )
        session.add(attempt)
        session.flush()
        session.add(AttemptPartRow(
            id="atp-util", attempt_id="att-util", number=1, members=1, token="t", node="blade-2", tiles=["c"],
            published_at=now,
        ))  # fmt: skip
        replica = session.scalars(select(EndpointReplicaRow)).first()
        assert replica is not None
        replica.node, replica.tiles, replica.claimed_at, replica.ended_at = "blade-2", ["d"] * 4, now - HOUR_S, None
    with platform.database.read() as session:
        first, second, third = (read_node_utilisation(session, f"blade-{number}", now) for number in (1, 2, 3))
    assert (first.most, first.mean) == (2, pytest.approx(2 / 48))
    assert (second.most, second.mean) == (5, pytest.approx((4 + 0.5) / 24))
    assert third.curve is None and first.curve is not None


def test_the_page_of_nodes_draws_the_last_day(client: httpx.Client, platform: Platform, jobs: dict[str, str]) -> None:
    log_in(client, first_token(platform))
    text = client.get("/console/nodes").text
    check_page(text)
    assert "Tiles in use on " in text

"""The stack with its profile ``postgres``: jobs are kept in PostgreSQL, also when the server is killed under them."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from compose_stack import PATIENCE_S, SERVICES, Engine, connect, find_compose, follow, is_over, read_events

from support import shows

PASSWORD = "a secret/of@this:test"

pytestmark = [shows("containers", "jobs"), pytest.mark.timeout(1200), pytest.mark.second_stack, pytest.mark.long]


@pytest.fixture(scope="module")
def stack(engine_environment: dict[str, str], images: dict[str, str], postgres_image: str) -> Iterator[Engine]:
    found = find_compose(engine_environment, "rdukit-postgres", shift=10)
    found.environment.update(
        COMPOSE_PROFILES="postgres", RDUKIT_POSTGRES_IMAGE=postgres_image, RDUKIT_DATABASE_PASSWORD=PASSWORD,
        RDUKIT_DATABASE_URL="postgresql+psycopg://rdukit:a%20secret%2Fof%40this%3Atest@database:5432/rdukit",
    )  # fmt: skip
    try:
        start(found)
        yield found
    finally:
        found.up("down", "--volumes", "--timeout", "10")


def start(stack: Engine) -> None:
    """Bring all up, healthy."""
    stack.up("up", "--detach", "--wait", "--no-build", "--wait-timeout", str(PATIENCE_S), timeout_s=PATIENCE_S + 60)


@pytest.fixture(scope="module")
def gateway(stack: Engine) -> Iterator[httpx.Client]:
    with connect(stack) as client:
        yield client


def is_begun(job: dict[str, Any]) -> bool:
    """Whether a job runs, or has ended already."""
    return job["state"] == "running" or is_over(job)


def rows(stack: Engine, table: str) -> int:
    """How many rows a table of the platform has, as the server says."""
    command = ["psql", "-U", "rdukit", "-d", "rdukit", "-At", "-c", f"select count(*) from {table}"]
    return int(stack.execute("database", *command))


def test_a_job_survives_the_death_of_its_database_and_is_there_after_down_and_up(
    stack: Engine, gateway: httpx.Client
) -> None:
    assert len(stack.up("ps", "--quiet").split()) == len(SERVICES) + 1
    before = stack.inspect("database")["State"]
    made = gateway.post("/v1/jobs", json={"box": "logreg", "verb": "preprocess"}).raise_for_status()
    job = made.json()["id"]
    assert follow(gateway, job, is_begun)["state"] == "running", "its database is to be killed in the middle"
    stack.kill(before)
    done = follow(gateway, job, is_over)
    assert done["state"] == "succeeded", done
    states = [event["data"]["to"] for event in read_events(gateway, job) if event["kind"] == "state"]
    assert states.count("succeeded") == 1, states
    assert stack.inspect("database")["State"]["StartedAt"] != before["StartedAt"]
    assert rows(stack, "jobs") == 1
    stack.up("down", "--timeout", "10")
    start(stack)
    assert follow(gateway, job, is_over) == done
    assert rows(stack, "jobs") == 1

"""A database server that is gone without a word is away after a bound; what one refuses is the request's fault."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.exc import DataError

from rdukit_platform.db import engine
from rdukit_platform.db.engine import Database, is_reachable
from rdukit_platform.gateway.middleware import BodyLimitMiddleware, add_error_handlers
from rdukit_platform.scheduler.lease import SchedulerLease
from support import FakeClock, shows

pytestmark = shows("operations", "scheduler")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database behind a socket that takes connections and says nothing."""
    monkeypatch.setattr(engine, "CONNECT_S", 2)  # the least that libpq knows
    with socket.create_server(("127.0.0.1", 0)) as server:
        database = Database(f"postgresql+psycopg://rdukit@127.0.0.1:{server.getsockname()[1]}/rdukit")
        yield database
        database.close()


def test_a_server_that_says_nothing_is_away_after_a_bound(silent: Database) -> None:
    began = time.monotonic()
    assert not is_reachable(silent)
    assert time.monotonic() - began < 30


def test_a_scheduler_ends_though_its_database_is_away(silent: Database, caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    lease = SchedulerLease(silent, "scheduler@here:1", 5.0, FakeClock())
    assert not lease.wait(stop, 0.01, stop.set)
    lease.give_back()
    assert "lease not looked at" in caplog.text
    assert "end not written down service=scheduler@here:1" in caplog.text


async def test_a_gateway_says_that_its_database_is_away(silent: Database) -> None:
    app = FastAPI()
    add_error_handlers(app)

    @app.get("/jobs")
    def jobs() -> None:
        with silent.read() as session:
            session.connection()

    # Who sends a body is asked before any route.
    app.add_middleware(BodyLimitMiddleware, platform=SimpleNamespace(database=silent, clock=FakeClock()))
    headers = {"Authorization": "Bearer rdk_something"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers
    ) as client:
        for answer in (await client.get("/jobs"), await client.post("/v1/jobs", json={})):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
            assert "the database does not answer" in answer.json()["error"]["message"]


async def test_a_value_that_a_server_cannot_store_is_the_requests_fault() -> None:
    app = FastAPI()
    add_error_handlers(app)

    @app.get("/jobs")
    def jobs() -> None:
        # PostgreSQL's answer to a text with NUL; SQLite stores one.
        raise DataError("SELECT 1", {}, Exception("PostgreSQL text fields cannot contain NUL (0x00) bytes"))

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        answer = await client.get("/jobs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid-argument")
    assert "the character NUL" in answer.json()["error"]["message"]


async def test_a_database_all_of_whose_connections_are_waited_for_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app = FastAPI()
    add_error_handlers(app)

    @app.get("/jobs")
    def jobs() -> None:
        with database.read() as session:
            session.connection()

    with closing(Database(f"sqlite:///{tmp_path / 'db.sqlite'}")) as database, ExitStack() as others:
        monkeypatch.setattr(database.engine.pool, "_timeout", 0.01)
        for _ in range(40):
            others.enter_context(database.read()).connection()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            answer = await client.get("/jobs")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")

"""What the client makes of answers that are none yet.

Where requests are limited, work that is under way waits as it is told, and a first request is refused at once.
"""

import gzip
from collections.abc import Sequence

import httpx
import pytest

from rdukit.errors import InvalidArgument, Overloaded, RdukitError, Unavailable
from rdukit_platform.client import http
from rdukit_platform.client.http import MAX_RATE_WAITS, ApiClient
from support import shows

pytestmark = shows("python-client")

OK = httpx.Response(200, json={"id": "x"})


def limited(seconds: str | None = "7") -> httpx.Response:
    headers = {} if seconds is None else {"Retry-After": seconds}
    return httpx.Response(429, json={"error": {"code": "overloaded", "message": "too many"}}, headers=headers)


def ask(answers: Sequence[httpx.Response], requests: int) -> tuple[list[float], list[httpx.Response]]:
    """Send requests that are answered so. Returns how long the client paused, and the answers that are left."""
    left, pauses = list(answers), list[float]()
    transport = httpx.MockTransport(lambda _: left.pop(0))
    with ApiClient("http://gateway", "t", transport, pauses.append) as client:
        for _ in range(requests):
            assert client.post("/v1/jobs") == {"id": "x"}
    return pauses, left


def test_work_under_way_waits_until_it_may_go_on() -> None:
    assert ask([OK, limited(), limited("60"), OK], requests=2) == ([7.0, 60.0], [])


def test_a_first_request_is_refused_at_once() -> None:
    with pytest.raises(Overloaded, match="too many"):
        ask([limited(), OK], requests=1)


@pytest.mark.parametrize("seconds", [None, "3600", "-1", "Sat, 28 Nov 2026 10:00:00 GMT", "soon"])
def test_work_does_not_wait_without_a_short_time_to_wait_for(seconds: str | None) -> None:
    with pytest.raises(Overloaded, match="too many"):
        ask([OK, limited(seconds), OK], requests=2)


def test_work_that_is_refused_again_and_again_ends() -> None:
    with pytest.raises(Overloaded, match="too many"):
        ask([OK, *[limited()] * (MAX_RATE_WAITS + 1), OK], requests=2)


@pytest.mark.parametrize("status", [200, 503])
def test_parts_that_are_away_are_read_from_the_health_of_a_platform(status: int) -> None:
    health = {"status": "degraded", "parts": {"database": False, "broker": True}}
    with ApiClient("http://gateway", "t", httpx.MockTransport(lambda _: httpx.Response(status, json=health))) as client:
        assert client.read_health() == health


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(503, text="no upstream"), Unavailable),
        (httpx.Response(503, json=["no", "object"]), RdukitError),
        (httpx.Response(503, json={"error": {"code": "unavailable", "message": "m"}}), Unavailable),
        (httpx.Response(200, json={"status": "of something else"}), Unavailable),
    ],
)
def test_what_is_no_health_is_an_error(answer: httpx.Response, error: type[RdukitError]) -> None:
    with ApiClient("http://gateway", "t", httpx.MockTransport(lambda _: answer)) as client, pytest.raises(error):
        client.read_health()


def test_a_packed_answer_is_refused_and_not_unpacked() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["accept-encoding"])
        packed = httpx.ByteStream(gzip.compress(b" " * (1 << 20)))
        return httpx.Response(400, headers={"content-encoding": "gzip"}, stream=packed)

    with ApiClient("http://gateway", "t", httpx.MockTransport(answer)) as client:
        for ask in (lambda: client.get("/v1/me"), lambda: list(client.lines("/v1/jobs/job-1/logs"))):
            with pytest.raises(Unavailable, match="compressed"):
                ask()
    assert seen == ["identity", "identity"]


def test_a_long_answer_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 100)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=b"{" + b" " * 100 + b"}"))
    with ApiClient("http://gateway", "t", transport) as client, pytest.raises(Unavailable, match="more than 100 bytes"):
        client.get("/v1/me")


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_number_that_json_lacks_is_refused_by_its_place_and_nothing_is_sent(number: float) -> None:
    with ApiClient("http://gateway", "t", httpx.MockTransport(lambda request: OK)) as client:
        with pytest.raises(InvalidArgument, match=r"^parameters\.rates\.1 is (inf|nan); expected a finite number"):
            client.post("/v1/jobs", {"parameters": {"rates": [1, number]}})
        assert client.post("/v1/jobs", {"parameters": {"rates": [1, 2.5]}}) == {"id": "x"}

"""Where requests are limited: work that is under way waits as it is told, a first request is refused at once."""

from collections.abc import Sequence

import httpx
import pytest

from rdukit.errors import Overloaded
from rdukit_platform.client.http import MAX_RATE_WAITS, ApiClient

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

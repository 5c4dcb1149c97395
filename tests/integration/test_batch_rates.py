"""Rate limits: what counts as how many requests. Without a broker, as a gateway counts that lost it."""

import pytest

from rdukit.errors import InvalidArgument, Overloaded
from rdukit_platform.api.rates import RETRY_AFTER, Rates
from rdukit_platform.tenants.service import Caller
from support import shows

pytestmark = shows("jobs")

NOWHERE = "redis+socket:///nowhere/valkey.sock"


def caller(token: str) -> Caller:
    return Caller("ten-1", "lab", frozenset({"write"}), token)


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> Rates:
    monkeypatch.setenv("RDUKIT_GATEWAY_TOKEN_RATE", "10")
    monkeypatch.setenv("RDUKIT_GATEWAY_TENANT_RATE", "15")
    return Rates(NOWHERE)


def test_a_batch_counts_as_many_requests_as_it_has_jobs(rates: Rates) -> None:
    one, other = caller("tok-1"), caller("tok-2")
    rates.check(one)
    rates.check_batch(one, 8)
    rates.check(one)
    with pytest.raises(Overloaded, match=r"this token may send 10 requests.* the 3 jobs of the batch") as refused:
        rates.check_batch(one, 3)
    assert 1 <= refused.value.detail[RETRY_AFTER] <= 60
    rates.check(one)  # what was refused was not counted
    with pytest.raises(Overloaded, match="this token sent 10 requests within a minute"):
        rates.check(one)
    rates.check(other)
    with pytest.raises(Overloaded, match=r"this tenant may send 15 requests per minute \(gateway.tenant_rate\)"):
        rates.check_batch(other, 9)


def test_a_batch_that_never_could_be_sent_is_told_how_many_could(rates: Rates) -> None:
    rates.check(caller("tok-1"))
    with pytest.raises(InvalidArgument, match=r"the batch has 11 jobs.*token_rate.*send at most 10 in one batch"):
        rates.check_batch(caller("tok-1"), 11)


def test_without_limits_any_batch_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TENANT"):
        monkeypatch.delenv(f"RDUKIT_GATEWAY_{name}_RATE", raising=False)
    Rates(NOWHERE).check_batch(caller("tok-1"), 1000)

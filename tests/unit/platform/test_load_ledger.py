"""CallerLoad by tenant and token: of late and since the start, the heaviest first, of a bounded size."""

from rdukit_platform.api.load_ledger import MAX_TENANTS, MAX_TOKENS, OTHERS, SHOWN, STRANGERS, CallerLoad, LoadLedger
from rdukit_platform.tenants.service import Caller
from support import shows

pytestmark = shows("tenants")


def caller(tenant: str, token: str = "tok-1") -> Caller:
    return Caller(f"id-{tenant}", tenant, frozenset({"read"}), token)


def test_the_heaviest_token_comes_first_and_strangers_have_none() -> None:
    ledger = LoadLedger()
    ledger.note(caller("alice", "tok-a"), CallerLoad(1, 10, 20, 0.1), 5.0)
    ledger.note(caller("mallory", "tok-m"), CallerLoad(1, 1 << 30, 0, 3.0), 6.0)
    ledger.note(caller("alice", "tok-a"), CallerLoad(1, 10, 20, 0.1), 65.0)
    ledger.note(None, CallerLoad(1), 66.0)
    found = list(ledger.heaviest(70.0))
    assert found[:2] == [
        (("mallory", "tok-m"), CallerLoad(1, 1 << 30, 0, 3.0)), (("alice", "tok-a"), CallerLoad(2, 20, 40, 0.2)),
    ]  # fmt: skip
    assert found[2][0] == (STRANGERS, "")


def test_what_is_over_a_minute_ago_is_no_load_of_late_and_stays_in_the_sum() -> None:
    ledger = LoadLedger()
    ledger.note(caller("alice"), CallerLoad(1), 5.0)
    assert [owner for owner, _ in ledger.heaviest(119.0)] == [("alice", "tok-1")]
    assert list(ledger.heaviest(121.0)) == []
    assert ledger.by_tenant() == {"alice": CallerLoad(1)}


def test_any_number_of_tenants_and_tokens_takes_so_much_memory_at_most() -> None:
    ledger = LoadLedger()
    for number in range(3 * MAX_TOKENS):
        ledger.note(caller(f"t{number}", f"tok-{number}"), CallerLoad(1), 5.0)
    sums = ledger.by_tenant()
    assert len(sums) == MAX_TENANTS + 1 and sums[OTHERS].requests == 3 * MAX_TOKENS - MAX_TENANTS
    assert len(ledger._now) <= MAX_TOKENS + 1
    assert len(list(ledger.heaviest(6.0))) == SHOWN

"""What becomes a row of the audit log, and which rows go when it is full."""

from pathlib import Path

import pytest
from sqlalchemy import select

from rdukit.errors import InvalidArgument, PermissionDenied
from rdukit_platform.api.audit import check_choices
from rdukit_platform.audit.service import (
    Act,
    AuditOutcome,
    AuditRecord,
    is_security_code,
    list_entries,
    plan_pruning,
    printable,
    prune,
    prune_by_settings,
    record,
)
from rdukit_platform.audit.writer import ROWS_OF_ALL, ROWS_OF_ONE, SOURCES, WINDOW_S, AuditWriter, Flood, network
from rdukit_platform.db.models import AuditRow
from support import FakeClock, shows
from support.platform.processes import fresh_database

pytestmark = shows("audit", "security", "tokens", "settings", "audit-log")


def test_a_mistyped_action_is_refused_with_the_nearest() -> None:
    check_choices("token.create", "done")
    with pytest.raises(
        InvalidArgument, match=r"action is 'token\.creat'; expected request, .*Did you mean 'token\.create'"
    ):
        check_choices("token.creat", None)
    with pytest.raises(InvalidArgument, match=r"outcome is 'refusd'; expected done, refused\. Did you mean 'refused'"):
        check_choices(None, "refusd")


def refusal(
    at: float, address: str = "10.0.0.1", reason: str = "unauthenticated", actor: str = "nobody"
) -> AuditRecord:
    return AuditRecord(at, Act.REQUEST, AuditOutcome.REFUSED, actor, None, "GET /v1/jobs", reason, "", address)


@pytest.mark.long
def test_a_million_refusals_of_one_address_are_few_rows_and_none_is_forgotten() -> None:
    flood = Flood()
    at_once = [row for k in range(1_000_000) if (row := flood.note(refusal(k * 1e-5)))]
    assert len(at_once) == ROWS_OF_ONE
    assert flood.is_counting
    assert flood.due(WINDOW_S - 1) == []
    (counted,) = flood.due(WINDOW_S)
    assert len(at_once) + counted.count == 1_000_000
    assert not flood.is_counting


def test_refusals_of_many_addresses_are_bounded_too_and_none_is_forgotten() -> None:
    flood = Flood()
    addresses = [f"10.{k >> 16}.{(k >> 8) & 255}.{k & 255}" for k in range(20_000)]
    at_once = [row for address in addresses for _ in range(3) if (row := flood.note(refusal(1.0, address)))]
    later = flood.due(1.0 + WINDOW_S)
    assert len(at_once) == ROWS_OF_ALL
    assert len(later) <= SOURCES + 1
    assert sum(row.count for row in at_once + later) == 60_000


def test_other_reasons_addresses_and_callers_are_not_hidden_by_a_flood() -> None:
    flood = Flood()
    for _ in range(1000):
        flood.note(refusal(1.0))
    assert flood.note(refusal(2.0, "10.0.0.2")) is not None
    assert flood.note(refusal(2.0, reason="permission-denied")) is not None
    assert flood.note(refusal(2.0, actor="tok-1")) is not None
    assert flood.note(refusal(2.0)) is None
    assert flood.note(refusal(2.0 + WINDOW_S)) is None, "the window's end is told by due"
    assert len(flood.due(2.0 + WINDOW_S)) == 1
    assert flood.note(refusal(3.0 + WINDOW_S)) is not None


@pytest.mark.parametrize(
    ("one", "other", "is_one"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "", True),
    ],
)
def test_a_network_of_ipv6_is_one_address(one: str, other: str, is_one: bool) -> None:
    assert (network(one) == network(other)) is is_one


def test_what_controls_a_terminal_is_not_recorded() -> None:
    assert printable("a\x1b[2Jb\nc") == "a�[2Jb�c"
    assert printable("x" * 300) == "x" * 255 + "…"
    assert printable("ü") == "ü"


def test_a_refusal_of_permission_is_one_of_security_and_a_full_disk_is_not() -> None:
    assert is_security_code(PermissionDenied.code)
    assert not is_security_code("disk-full")
    assert not is_security_code(None)


@pytest.mark.parametrize(
    ("counts", "keep", "gone"),
    [
        ({("a", "done"): 5, ("b", "done"): 5}, 10, {}),
        ({("a", "done"): 90, ("b", "done"): 5}, 50, {("a", "done"): 45}),
        ({("a", "done"): 90, ("b", "done"): 80, (None, "refused"): 10}, 100, {("a", "done"): 45, ("b", "done"): 35}),
        ({("a", "done"): 3, ("b", "done"): 3}, 1, {("a", "done"): 3, ("b", "done"): 3}),
        ({("a", "done"): 3}, 0, {("a", "done"): 3}),
    ],
)
def test_the_largest_group_loses_first(
    counts: dict[tuple[str | None, str], int], keep: int, gone: dict[tuple[str | None, str], int]
) -> None:
    assert plan_pruning(counts, keep) == gone
    assert sum(counts.values()) - sum(gone.values()) <= keep


def test_a_flood_pushes_out_its_own_rows_only(tmp_path: Path) -> None:
    with fresh_database(tmp_path) as database:
        with database.write() as session:
            record(session, AuditRecord(1.0, Act.CREATE_TOKEN, tenant_id="ten-a"))
            for k in range(2500):
                record(session, refusal(2.0 + k))
        assert prune(database, 3000.0, 1e6, 100) == 2401
        with database.read() as session:
            rows = session.scalars(select(AuditRow).order_by(AuditRow.created_at)).all()
        assert [row.action for row in rows][:2] == ["token.create", "request"]
        assert rows[1].created_at == 2.0 + 2401, "the oldest went"
        assert prune(database, 2600.0, 100.0, 1000) == 98, "what is older than the age goes, whoever's it is"


def test_the_housekeeping_takes_its_limits_from_the_settings_and_leaves_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_AUDIT_KEEP_ROWS", "3")
    monkeypatch.setenv("RDUKIT_AUDIT_KEEP_DAYS", "10")
    with fresh_database(tmp_path) as database:
        now = 100 * 86400.0
        with database.write() as session:
            for day in (80.0, 91.0, 92.0, 93.0, 94.0):
                record(session, refusal(day * 86400))
        prune_by_settings(database, now)
        with database.read() as session:
            rows = session.scalars(select(AuditRow).order_by(AuditRow.created_at)).all()
        assert [row.created_at / 86400 for row in rows] == [92.0, 93.0, 94.0, 100.0]
        assert (rows[-1].action, rows[-1].actor, rows[-1].detail) == ("audit.prune", "scheduler", "2 old entries")


def test_pages_of_entries_are_of_one_tenant_and_newest_first(tmp_path: Path) -> None:
    with fresh_database(tmp_path) as database:
        with database.write() as session:
            for k in range(5):
                record(session, AuditRecord(float(k), Act.LOGIN, tenant_id="ten-a"))
                record(session, AuditRecord(float(k), Act.LOGIN, tenant_id="ten-b"))
        with database.read() as session:
            first, cursor = list_entries(session, "ten-a", limit=3)
            rest, end = list_entries(session, "ten-a", limit=3, cursor=cursor)
        assert [row.created_at for row in first + rest] == [4.0, 3.0, 2.0, 1.0, 0.0]
        assert {row.tenant_id for row in first + rest} == {"ten-a"}
        assert end is None


def test_the_writer_keeps_rows_while_the_database_is_away_and_counts_at_its_end(tmp_path: Path) -> None:
    clock = FakeClock()
    with fresh_database(tmp_path) as database:
        writer = AuditWriter(database, clock)
        for _ in range(100):
            writer.note(refusal(clock.now()))
        writer.close()
        with database.read() as session:
            rows = session.scalars(select(AuditRow)).all()
        assert len(rows) == ROWS_OF_ONE + 1
        assert sum(row.count for row in rows) == 100

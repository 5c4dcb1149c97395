"""Messages to webhooks: written with the change they tell, taken once, tried again, given up, and kept for a while."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, IllegalValue, InvalidArgument, NotFound
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import AuditRow, DeliveryRow, WebhookRow
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.jobs.service import cancel_job, get_job, submit_job
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.webhooks import service
from rdukit_platform.webhooks.outbox import find_due_tenants, prune, record_try, take_due
from rdukit_platform.webhooks.states import FIRST_PAUSE_S, LONGEST_PAUSE_S, DeliveryState, FailureLimit, pause_s
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("webhooks")

DAY_S = 86400.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as database:
        yield database


def hooked_tenant(database: Database, name: str = "lab", events: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return a new tenant with a webhook."""
    with database.write() as session:
        tenant = create_tenant(session, name, 0.0)
        return tenant.id, service.create_webhook(session, tenant.id, "https://example.org/x", events, 0.0).id


def cancelled_job(session: Session, tenant: str, now: float) -> str:
    job = submit_job(session, counter_boxes(), tenant, JobRequest(box="counter", verb="preprocess"), now)
    cancel_job(session, job, now)
    return job.id


def test_a_message_is_written_with_the_change_that_it_tells_or_not_at_all(database: Database) -> None:
    tenant, hook = hooked_tenant(database)
    other, _ = hooked_tenant(database, "other", ("job.failed",))

    def change_and_break() -> None:
        with database.write() as session:
            cancelled_job(session, tenant, 1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_break()
    with database.write() as session:
        told = cancelled_job(session, tenant, 2.0)
        cancelled_job(session, other, 2.0)
    with database.read() as session:
        (message,) = session.scalars(select(DeliveryRow)).all()
        job = get_job(session, tenant, told)
    assert (message.webhook_id, message.event, message.tenant_id) == (hook, "job.cancelled", tenant)
    assert message.body["type"] == "job.cancelled" and message.body["timestamp"] == "1970-01-01T00:00:02+00:00"
    data = message.body["data"]
    assert isinstance(data, dict)
    assert (data["id"], data["state"], data["reason"]) == (told, "cancelled", job.reason)


def test_a_message_is_taken_by_one_and_due_again_if_that_one_dies(database: Database) -> None:
    tenant, _ = hooked_tenant(database)
    with database.write() as session:
        cancelled_job(session, tenant, 1.0)
        assert find_due_tenants(session, 1.0) == [tenant]
        (taken,) = take_due(session, tenant, 10, 1.0, hold_s=40.0)
    with database.write() as session:
        assert find_due_tenants(session, 2.0) == [] and take_due(session, tenant, 10, 2.0, 40.0) == []
        assert [each.id for each in take_due(session, tenant, 10, 42.0, 40.0)] == [taken.id]


def test_failures_are_tried_again_for_a_day_then_given_up_and_can_be_delivered_after_all(database: Database) -> None:
    tenant, hook = hooked_tenant(database)
    now, tries = 1.0, 0
    with database.write() as session:
        cancelled_job(session, tenant, now)
    while True:
        with database.write() as session:
            taken = take_due(session, tenant, 1, now, 40.0)
            if not taken:
                break
            state = record_try(session, taken[0].id, 500, "the receiver answered 500", now, 0.5)
            tries += 1
            now = session.get_one(DeliveryRow, taken[0].id).due_at
    assert state is DeliveryState.DEAD
    assert 8 < tries < 20 and DAY_S - LONGEST_PAUSE_S < now - LONGEST_PAUSE_S <= DAY_S + 1
    with database.write() as session:
        webhook = service.get_webhook(session, tenant, hook)
        (dead,) = service.list_deliveries(session, webhook, "dead", 50, None)[0]
        assert (dead.attempts, dead.status, dead.error) == (tries, 500, "the receiver answered 500")
        service.redeliver(session, webhook, dead, now)
        (taken_again,) = take_due(session, tenant, 1, now, 40.0)
        assert record_try(session, taken_again.id, 204, "", now, 0.5) is DeliveryState.DELIVERED
        assert record_try(session, taken_again.id, 500, "late", now, 0.5) is DeliveryState.DELIVERED


def test_pauses_grow_up_to_some_hours_and_differ() -> None:
    assert pause_s(1, 0.5) == FIRST_PAUSE_S and pause_s(2, 0.5) == 3 * FIRST_PAUSE_S
    assert pause_s(50, 0.5) == LONGEST_PAUSE_S
    assert pause_s(3, 0.0) < pause_s(3, 0.5) < pause_s(3, 1.0)


def test_a_webhook_that_fails_often_and_for_long_is_disabled_and_says_why(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_WEBHOOK_MAX_FAILURES", "3")
    monkeypatch.setenv("RDUKIT_WEBHOOK_FAILING_HOURS", "1")
    tenant, hook = hooked_tenant(database)
    with database.write() as session:
        cancelled_job(session, tenant, 1.0)
        (first,) = take_due(session, tenant, 1, 1.0, 40.0)
        for now in (2.0, 3.0, 4.0, 5.0):  # often, but not for long
            record_try(session, first.id, 500, "the receiver answered 500", now, 0.5)
        record_try(session, first.id, 204, "", 6.0, 0.5)
        assert service.get_webhook(session, tenant, hook).failures == 0
        waiting, tried = cancelled_job(session, tenant, 7.0), cancelled_job(session, tenant, 8.0)
    with database.write() as session:
        rows = {row.body["data"]["id"]: row for row in session.scalars(select(DeliveryRow)).all()}  # type: ignore[index]
        for now in (10.0, 20.0):
            record_try(session, rows[tried].id, 0, "no answer", now, 0.5)
        assert record_try(session, rows[tried].id, 503, "the receiver answered 503", 3611.0, 0.5) is DeliveryState.DEAD
        webhook = service.get_webhook(session, tenant, hook)
        assert webhook.disabled_at == 3611.0 and webhook.disabled_reason is not None
        assert webhook.disabled_reason.startswith("its last 3 attempts failed, over 1 h")
        assert webhook.disabled_reason.endswith("the last one: the receiver answered 503")
        assert (rows[waiting].state, rows[waiting].error) == ("dead", "the webhook is disabled")
        (entry,) = session.scalars(select(AuditRow).where(AuditRow.action == "webhook.disable")).all()
        assert (entry.actor, entry.target, entry.tenant_id) == ("scheduler", hook, tenant)
        for refused in (
            lambda: service.add_test(session, webhook, 1.0),
            lambda: service.redeliver(session, webhook, rows[tried], 1.0),
        ):
            with pytest.raises(Conflict, match=f"rdukit webhook enable {hook}"):
                refused()


def test_a_disabled_webhook_is_told_nothing_until_it_is_enabled(database: Database) -> None:
    tenant, hook = hooked_tenant(database)
    with database.write() as session:
        webhook = service.get_webhook(session, tenant, hook)
        service.disable_webhook(session, webhook, "the receiver moves", 1.0)
        service.disable_webhook(session, webhook, "again", 2.0)
        assert (webhook.disabled_at, webhook.disabled_reason) == (1.0, "the receiver moves")
        cancelled_job(session, tenant, 3.0)
        assert session.scalars(select(DeliveryRow)).all() == []
        late = service.new_delivery(hook, tenant, "job.failed", {}, 3.0)  # of a change that did not see it
        session.add(late)
        session.flush()
        assert take_due(session, tenant, 10, 4.0, 40.0) == [] and late.state == "dead"
        service.enable_webhook(session, webhook)
        told = cancelled_job(session, tenant, 5.0)
        assert [each.body["data"]["id"] for each in take_due(session, tenant, 10, 5.0, 40.0)] == [told]  # type: ignore[index]


def test_only_many_failures_over_a_long_time_pass_the_limit() -> None:
    limit = FailureLimit(3, 60.0)
    assert [limit.is_passed(tries, 0.0, now) for tries, now in ((2, 99.0), (9, 59.0), (3, 60.0))] == [
        False,
        False,
        True,
    ]
    assert not FailureLimit(0, 60.0).is_passed(999, 0.0, 1e9)


def test_for_a_while_messages_are_signed_with_the_old_secret_too(database: Database) -> None:
    tenant, hook = hooked_tenant(database)
    with database.write() as session:
        cancelled_job(session, tenant, 1.0)
        webhook = service.get_webhook(session, tenant, hook)
        old = webhook.secret
        service.rotate_secret(session, webhook, 100.0, now=1.0)
        assert take_due(session, tenant, 1, 2.0, 40.0)[0].secrets == (webhook.secret, old)
        assert take_due(session, tenant, 1, 102.0, 40.0)[0].secrets == (webhook.secret,)


def test_what_is_removed_is_told_nothing_and_goes_after_a_while(database: Database) -> None:
    tenant, hook = hooked_tenant(database)
    with database.write() as session:
        cancelled_job(session, tenant, 1.0)
        service.remove_webhook(session, service.get_webhook(session, tenant, hook), 2.0)
        cancelled_job(session, tenant, 3.0)
        assert take_due(session, tenant, 10, 4.0, 40.0) == []
        with pytest.raises(NotFound):
            service.get_webhook(session, tenant, hook)
        row = session.get_one(WebhookRow, hook)
        assert row.secret == ""
        prune(session, 1.0)
        assert session.get(WebhookRow, hook) is not None
        prune(session, 5.0)
        session.expire_all()
        assert session.get(WebhookRow, hook) is None


def test_ended_messages_are_kept_for_a_while_and_pending_ones_for_good(database: Database) -> None:
    tenant, _ = hooked_tenant(database)
    with database.write() as session:
        cancelled_job(session, tenant, 1.0)
        (done,) = take_due(session, tenant, 1, 1.0, 40.0)
        record_try(session, done.id, 200, "", 2.0, 0.5)
        cancelled_job(session, tenant, 3.0)
        assert (prune(session, 2.0), prune(session, 10.0)) == (0, 1)
        assert len(session.scalars(select(DeliveryRow)).all()) == 1


def test_what_no_webhook_may_be_is_refused(database: Database) -> None:
    tenant, _ = hooked_tenant(database)
    with database.write() as session:
        with pytest.raises(InvalidArgument, match="http://HOST"):
            service.create_webhook(session, tenant, "file:///etc/passwd", (), 0.0)
        with pytest.raises(InvalidArgument, match="user name"):
            service.create_webhook(session, tenant, "https://me:word@example.org", (), 0.0)
        with pytest.raises(IllegalValue, match=r"Did you mean 'job\.failed'"):
            service.create_webhook(session, tenant, "https://example.org", ("job.fail",), 0.0)
        for _ in range(service.MAX_WEBHOOKS - 1):
            service.create_webhook(session, tenant, "https://example.org", (), 0.0)
        with pytest.raises(Conflict, match="which is the limit"):
            service.create_webhook(session, tenant, "https://example.org", (), 0.0)

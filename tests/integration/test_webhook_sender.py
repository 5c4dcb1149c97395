"""The thread that sends webhooks also removes messages that have been kept long enough."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.http.webhooks import AddressRefused, find_address
from rdukit.interfaces import SystemClock
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import DeliveryRow
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.jobs.service import cancel_job, submit_job
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.webhooks import service
from rdukit_platform.webhooks.dispatcher import WebhookSender
from rdukit_platform.webhooks.outbox import record_try
from support import shows, wait_until
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("webhook", "webhooks")

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


def test_how_long_a_message_is_tried_and_kept_are_settings(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_WEBHOOK_RETRY_S", "3600")
    monkeypatch.setenv("RDUKIT_WEBHOOK_KEEP_DAYS", "0.5")
    tenant, _ = hooked_tenant(database)
    yesterday = SystemClock().now() - DAY_S
    with database.write() as session:
        cancelled_job(session, tenant, yesterday)
        (row,) = session.scalars(select(DeliveryRow)).all()
        assert row.give_up_at == yesterday + 3600
        record_try(session, row.id, 204, "", yesterday, 0.5)
    with closing(WebhookSender(database, SystemClock())) as sender:
        sender.start()
        wait_until(lambda: not _messages(database))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f000001", "2130706433", "::1", "169.254.169.254"])
async def test_without_the_setting_no_webhook_reaches_this_machine(host: str) -> None:
    with pytest.raises(AddressRefused, match="not at a public address"):
        await find_address(host, 80)


def _messages(database: Database) -> int:
    with database.read() as session:
        return len(session.scalars(select(DeliveryRow)).all())

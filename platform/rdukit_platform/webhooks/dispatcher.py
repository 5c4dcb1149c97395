"""Delivery of webhooks: a thread of the scheduler that posts the outbox's messages, a few per tenant at a time.

Several dispatchers share the work: taking a message postpones its due time.
"""

import asyncio
import logging
import random
import threading
from collections import Counter
from contextlib import suppress
from typing import Final

from sqlalchemy.exc import DBAPIError

from rdukit.http.addresses import parse_networks
from rdukit.http.webhooks import headers_of, post_webhook
from rdukit.interfaces import Clock
from rdukit.settings import resolve
from rdukit.strict_json import json_text
from rdukit_platform.db.engine import Database
from rdukit_platform.webhooks.outbox import Taken, find_due_tenants, prune, record_try, take_due
from rdukit_platform.webhooks.settings import WEBHOOK_KEEP_DAYS, WEBHOOK_NETWORKS, WEBHOOK_TIMEOUT_S

logger = logging.getLogger(__name__)

#: Concurrent posts per tenant and in total: a slow receiver delays its own tenant only.
TENANT_POSTS: Final = 4
ALL_POSTS: Final = 256
POLL_S: Final = 0.5
PRUNE_S: Final = 3600.0
DAY_S: Final = 86400.0
#: Seconds beyond a post's timeout within which its outcome is written.
MARGIN_S: Final = 30.0
#: Seconds that open posts have at shutdown; unfinished ones are sent again later.
STOP_S: Final = 1.0


class WebhookSender:
    """Sender of a platform's webhook messages."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)
        #: Posts under way, by tenant.
        self._busy: Counter[str] = Counter()
        self._posts: set[asyncio.Task[None]] = set()
        self._pruned_at = float("-inf")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop, after a short wait for open posts."""
        self._stop.set()
        self._thread.join(STOP_S + POLL_S + 1.0)

    def _run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        while not self._stop.is_set():
            taken: list[Taken] = []
            try:
                taken = await asyncio.to_thread(self._take)
            except DBAPIError as error:
                logger.warning("webhooks wait: the database does not answer error=%s", error)
            for message in taken:
                post = asyncio.create_task(self._deliver(message))
                self._posts.add(post)
                post.add_done_callback(self._posts.discard)
            if not taken:
                await asyncio.sleep(POLL_S)
        if self._posts:
            _, late = await asyncio.wait(self._posts, timeout=STOP_S)
            for post in late:
                post.cancel()

    def _take(self) -> list[Taken]:
        now = self._clock.now()
        if self._clock.monotonic() - self._pruned_at > PRUNE_S:
            self._pruned_at = self._clock.monotonic()
            with self._database.write() as session:
                prune(session, now - resolve(WEBHOOK_KEEP_DAYS) * DAY_S)
        with self._database.read() as session:
            tenants = [each for each in find_due_tenants(session, now) if self._busy[each] < TENANT_POSTS]
        if not tenants or self._busy.total() >= ALL_POSTS:
            return []
        taken: list[Taken] = []
        with self._database.write() as session:
            for tenant in tenants:
                free = min(TENANT_POSTS - self._busy[tenant], ALL_POSTS - self._busy.total() - len(taken))
                if free > 0:
                    taken += take_due(session, tenant, free, now, resolve(WEBHOOK_TIMEOUT_S) + MARGIN_S)
        self._busy.update(message.tenant_id for message in taken)
        return taken

    async def _deliver(self, message: Taken) -> None:
        try:
            body = json_text(message.body).encode()
            headers = headers_of(message.id, int(self._clock.now()), body, message.secrets)
            headers["user-agent"] = "rdukit-webhooks"
            status, error = await post_webhook(
                message.url, headers, body, resolve(WEBHOOK_TIMEOUT_S),
                allowed=parse_networks(resolve(WEBHOOK_NETWORKS)),
            )  # fmt: skip
            with suppress(DBAPIError):  # it is due again, then
                state = await asyncio.to_thread(self._record, message, status, error)
                logger.info(
                    "webhook tried webhook=%s delivery=%s status=%d state=%s",
                    message.webhook_id, message.id, status, state,
                )  # fmt: skip
        except Exception:
            logger.exception("webhook broke delivery=%s", message.id)
        finally:
            self._busy[message.tenant_id] -= 1

    def _record(self, message: Taken, status: int, error: str) -> str:
        with self._database.write() as session:
            return str(record_try(session, message.id, status, error, self._clock.now(), random.random()))

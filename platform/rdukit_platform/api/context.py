"""Open platform as one value for routes and console, and the polling of its event streams."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

from rdukit.errors import Overloaded
from rdukit.interfaces import Clock, SystemClock
from rdukit.settings import resolve
from rdukit_platform.api.bodies import Bodies
from rdukit_platform.api.content_threads import ContentThreads
from rdukit_platform.api.load_ledger import LoadLedger
from rdukit_platform.api.rates import Rates
from rdukit_platform.api.turns import Turns
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.artifacts.stores.opening import open_store
from rdukit_platform.audit.writer import AuditWriter
from rdukit_platform.catalog.catalog import Catalog
from rdukit_platform.db.engine import Database
from rdukit_platform.identity.issuer import Issuer
from rdukit_platform.jobs.broker import Notifier
from rdukit_platform.jobs.listing import JobCounts
from rdukit_platform.settings import MAX_STREAMS, Home

#: Shortest and longest seconds between polls of a stream; the shortest follows a change of the job's state.
FIRST_POLL_S: Final = 0.025
POLL_S: Final = 0.2
#: Number of a tenant's streams from which on each polls less often.
BRISK_STREAMS: Final = 20
#: Largest number of concurrent polls of all tenants, so that requests do not queue behind them.
LOOKS: Final = 4


class Followers:
    """Counts of open streams per tenant in this process."""

    def __init__(self) -> None:
        self._streams: dict[str, int] = {}
        self.looks: Final = anyio.CapacityLimiter(LOOKS)

    @contextmanager
    def following(self, tenant_id: str) -> Iterator[None]:
        """Count a stream of the tenant while the block lasts."""
        self._streams[tenant_id] = self._streams.get(tenant_id, 0) + 1
        try:
            yield
        finally:
            self._streams[tenant_id] -= 1
            if not self._streams[tenant_id]:
                del self._streams[tenant_id]

    def check(self, tenant_id: str) -> None:
        """Raise ``Overloaded`` if the tenant may not follow one more."""
        if self._streams.get(tenant_id, 0) >= (most := resolve(MAX_STREAMS)):
            raise Overloaded(f"{most} streams are already open (gateway.max_streams); close some, or poll for events")

    def pause_s(self, tenant_id: str, looks: int) -> float:
        """Return the seconds until a stream of the tenant polls again, after ``looks`` polls since the last change."""
        pause_s = min(FIRST_POLL_S * 2.0 ** min(looks, 16), POLL_S)
        return pause_s * max(1.0, self._streams.get(tenant_id, 0) / BRISK_STREAMS)


@dataclass(frozen=True, slots=True)
class Platform:
    """The parts of a running platform, for one process."""

    home: Home
    database: Database
    store: BlobStore
    catalog: Catalog
    notifier: Notifier
    clock: Clock
    audit: AuditWriter
    rates: Rates
    issuer: Issuer
    followers: Followers = field(default_factory=Followers)
    counts: JobCounts = field(default_factory=JobCounts)
    turns: Turns = field(default_factory=Turns)
    load: LoadLedger = field(default_factory=LoadLedger)
    bodies: Bodies = field(default_factory=Bodies)
    content_threads: ContentThreads = field(default_factory=ContentThreads)


def open_platform(home: Home) -> Platform:
    """Open the parts that the settings name; nothing is started."""
    database, clock = Database.of_home(home), SystemClock()
    return Platform(
        home=home,
        database=database,
        store=open_store(home),
        catalog=Catalog(),
        notifier=Notifier(home.broker_url()),
        clock=clock,
        audit=AuditWriter(database, clock),
        rates=Rates(home.broker_url()),
        issuer=Issuer(clock),
    )

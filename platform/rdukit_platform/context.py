"""What the gateway's routes and the console need of the platform, in one value."""

from dataclasses import dataclass, field

from rdukit.interfaces import Clock, SystemClock
from rdukit_platform.artifacts.store import Store
from rdukit_platform.audit.writer import AuditWriter
from rdukit_platform.broker import Waker
from rdukit_platform.catalog.catalog import Catalog
from rdukit_platform.db.engine import Database
from rdukit_platform.jobs.followers import Followers
from rdukit_platform.settings import Home


@dataclass(frozen=True, slots=True)
class Platform:
    """The parts of one running platform, as seen by one process."""

    home: Home
    database: Database
    store: Store
    catalog: Catalog
    waker: Waker
    clock: Clock
    audit: AuditWriter
    followers: Followers = field(default_factory=Followers)


def open_platform(home: Home) -> Platform:
    """Open the parts that the settings name; nothing is started."""
    database, clock = Database.of_home(home), SystemClock()
    return Platform(
        home=home,
        database=database,
        store=Store(home.artifacts),
        catalog=Catalog(),
        waker=Waker(home.broker_url()),
        clock=clock,
        audit=AuditWriter(database, clock),
    )

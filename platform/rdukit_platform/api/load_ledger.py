"""Load of this gateway: requests, bytes and seconds by tenant and token, recent and since its start."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rdukit_platform.tenants.service import Caller

#: Seconds per window; recent load is that of the current and the previous window.
WINDOW_S: Final = 60.0
#: Largest number of tenants counted by name, and of tokens per minute; further ones are counted together.
MAX_TENANTS: Final = 200
MAX_TOKENS: Final = 2000
#: Number of tokens shown, the heaviest first.
SHOWN: Final = 20
STRANGERS: Final = "strangers"
OTHERS: Final = "others"


@dataclass(slots=True)
class CallerLoad:
    """Load by one owner. ``seconds``: time until answers began, summed over requests."""

    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0

    def add(self, other: "CallerLoad") -> None:
        """Add another load."""
        self.requests += other.requests
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.seconds += other.seconds


#: Tenant and token; strangers and others have no token.
Owner = tuple[str, str]


class LoadLedger:
    """The load of one process. Thread-safe, and bounded in size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By tenant, since the process started.
        self._tenants: dict[str, CallerLoad] = {}
        #: Number of the current minute, and load by owner in it and in the previous one.
        self._minute = 0
        self._now: dict[Owner, CallerLoad] = {}
        self._before: dict[Owner, CallerLoad] = {}

    def note(self, caller: Caller | None, load: CallerLoad, now_s: float) -> None:
        """Count a request that was answered."""
        tenant = STRANGERS if caller is None else caller.tenant_name
        owner = tenant, "" if caller is None else caller.token_id
        with self._lock:
            self._turn(now_s)
            name = tenant if tenant in self._tenants or len(self._tenants) < MAX_TENANTS else OTHERS
            self._tenants.setdefault(name, CallerLoad()).add(load)
            known = owner in self._now or len(self._now) < MAX_TOKENS
            self._now.setdefault(owner if known else (OTHERS, ""), CallerLoad()).add(load)

    def by_tenant(self) -> dict[str, CallerLoad]:
        """Return the load of each tenant since the process started."""
        with self._lock:
            return {name: CallerLoad(each.requests, each.bytes_in, each.bytes_out, each.seconds)
                    for name, each in self._tenants.items()}  # fmt: skip

    def heaviest(self, now_s: float) -> Iterator[tuple[Owner, CallerLoad]]:
        """Yield the recent load of the heaviest owners by seconds, bytes or requests, heaviest first."""
        with self._lock:
            self._turn(now_s)
            found: dict[Owner, CallerLoad] = {}
            for minute in (self._now, self._before):
                for owner, load in minute.items():
                    found.setdefault(owner, CallerLoad()).add(load)
        yield from sorted(found.items(), key=lambda one: weight(one[1]), reverse=True)[:SHOWN]

    def _turn(self, now_s: float) -> None:
        minute = int(now_s // WINDOW_S)
        if minute != self._minute:
            self._before = self._now if minute == self._minute + 1 else {}
            self._now, self._minute = {}, minute


def weight(load: CallerLoad) -> float:
    """Return how heavy a load is, in seconds: a request counts a millisecond, and 10 MB as much as 100 ms (pure)."""
    return load.seconds + load.requests * 1e-3 + (load.bytes_in + load.bytes_out) * 1e-8

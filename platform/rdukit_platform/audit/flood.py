"""Many refusals alike become few rows (pure: time is an argument).

Whoever knocks a million times gets a handful of rows and a number a minute, whether from one address or from many.
"""

import ipaddress
from dataclasses import dataclass, replace
from typing import Final

from rdukit_platform.audit.acts import Entry

WINDOW_S: Final = 60.0
#: Rows a minute for one address, actor and reason; what comes beyond is one more row with a count.
ROWS_OF_ONE: Final = 10
#: Rows a minute in all; beyond, each is counted only.
ROWS_OF_ALL: Final = 500
#: Addresses that are told apart at once; beyond, the rest are one.
SOURCES: Final = 500
#: The address of those that are not told apart.
MANY: Final = "many"


@dataclass(slots=True)
class _Window:
    """What came of one source since ``began``."""

    began: float
    written: int = 0
    #: The last of those that were counted only, with their number; ``None``: there is none.
    counted: Entry | None = None


class Flood:
    """Decides which refusals are rows at once, and which are counted."""

    def __init__(self) -> None:
        #: Those of the last ``WINDOW_S``, at most ``SOURCES`` and one for each reason.
        self._windows: dict[tuple[str, str, str], _Window] = {}
        self._all = _Window(float("-inf"))

    @property
    def is_counting(self) -> bool:
        """Whether ``due`` will have rows later."""
        return any(window.counted for window in self._windows.values())

    def note(self, entry: Entry) -> Entry | None:
        """``entry`` if it is to be a row now; ``None``: it was counted."""
        if entry.at - self._all.began >= WINDOW_S:
            self._all = _Window(entry.at)
        key = (network(entry.address), entry.actor, entry.reason)
        if key not in self._windows and len(self._windows) >= SOURCES:
            entry = replace(entry, address=MANY, target="", actor="")
            key = (MANY, "", entry.reason)
        window = self._windows.setdefault(key, _Window(entry.at))
        if window.written < ROWS_OF_ONE and self._all.written < ROWS_OF_ALL:
            window.written += 1
            self._all.written += 1
            return entry
        before = window.counted.count if window.counted else 0
        window.counted = replace(entry, count=before + entry.count)
        return None

    def due(self, now: float, *, is_end: bool = False) -> list[Entry]:
        """The rows of windows that have ended, with how many each stands for; at the end those of all windows."""
        ended = [key for key, window in self._windows.items() if is_end or now - window.began >= WINDOW_S]
        return [row for key in ended if (row := self._windows.pop(key).counted) is not None]


def network(address: str) -> str:
    """What counts as one address: of IPv6 the network of 64 bits, which one caller has as a whole."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False).network_address)
    return address

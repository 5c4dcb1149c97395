"""The leases of a daemon that ended, for the one that follows: their programs compute on, and attach to them again.

One file that only the daemon's user may read, because it has the leases' tokens; written before a grant is answered.
"""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rdukit_node.daemon.connections import Peer
from rdukit_node.leases.accounting import Totals
from rdukit_node.leases.allocator import Lease, LeaseId, Request

logger = logging.getLogger(__name__)

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class KeptLease:
    """A lease, and what else the daemon knows of it."""

    lease: Lease
    peer: Peer
    command: str | None
    #: Processes that held it, where they could be seen.
    pids: tuple[int, ...]
    #: What holders had counted that left before, and what all had counted when this was written.
    former: Totals
    totals: Totals
    #: Body of the error that ended its use, if its hardware failed.
    failure: dict[str, Any] | None = None
    #: Mode of the socket of its own, if it has one.
    socket_mode: int | None = None


class LeaseFile:
    """Where leases are kept."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._written = b""

    def write(self, leases: Sequence[KeptLease]) -> None:
        """Replace what is there. A disk that takes nothing is said in the log: the leases end with this daemon then."""
        try:
            body = {"version": _VERSION, "leases": [asdict(each) for each in leases]}
            data = json.dumps(body).encode()
            if data == self._written:
                return
            # Renamed, and not flushed to the disk: it has to outlive this process, not the machine, whose programs end.
            new = self.path.with_name(self.path.name + ".new")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            new.replace(self.path)
            self._written = data
        except OSError as error:
            logger.error("event=leases-not-kept path=%s reason=%s", self.path, error)

    def read(self) -> list[KeptLease]:
        """The leases of the daemon before; what is not legal is left out."""
        try:
            rows = json.loads(self.path.read_bytes())["leases"]
            return [_kept(row) for row in rows]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.error("event=leases-lost path=%s reason=%s", self.path, error)
            return []


def _kept(row: dict[str, Any]) -> KeptLease:
    lease = row["lease"]
    return KeptLease(
        Lease(
            LeaseId(lease["id"]), lease["token"], Request(**lease["request"]), tuple(lease["tiles"]),
            tuple((int(rdu), int(count)) for rdu, count in lease["memory"]), float(lease["granted_at"]),
        ),
        Peer(**row["peer"]), row["command"], tuple(row["pids"]), Totals(**row["former"]), Totals(**row["totals"]),
        row["failure"], row.get("socket_mode"),
    )  # fmt: skip

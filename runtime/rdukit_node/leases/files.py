"""Files of leases that outlive a daemon: ``leases.json`` for the next daemon, and a socket folder for each lease.

The leases file has the leases' tokens, so only the daemon's user may read it. The file is written before a grant is
answered.

A lease's socket is ``<lease id>/snd.sock``; only that lease can be used on it. A box's container or fence gets the
folder, not the socket: the next daemon creates a new socket there, which a bind mount of the old one would hide.

Source: ours.
"""

import contextlib
import json
import logging
import os
import shutil
import socket
import zlib
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.files.home import make_folder
from rdukit.http.unix_sockets import listen_at
from rdukit_node.daemon.connections import Peer
from rdukit_node.leases.accounting import LINK_COUNTERS, UsageTotals
from rdukit_node.leases.allocator import Lease, LeaseId, LeaseRequest

logger = logging.getLogger(__name__)

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class KeptLease:
    """A lease, with the daemon's other data about it."""

    lease: Lease
    peer: Peer
    command: str | None
    #: Processes that held it, if they are visible.
    pids: tuple[int, ...]
    #: Counters of holders that had left, and of all holders at the time of writing.
    former: UsageTotals
    totals: UsageTotals
    #: Body of the error that ended its use, if its hardware failed.
    failure: dict[str, Any] | None = None
    #: Mode of the socket of its own, if it has one.
    socket_mode: int | None = None


def encode(leases: Sequence[KeptLease]) -> bytes:
    """Return the content of a leases file, with a checksum of the leases."""
    rows = [asdict(each) for each in leases]
    return json.dumps({"version": _VERSION, "sum": _sum_of(rows), "leases": rows}).encode()


def _sum_of(rows: object) -> int:
    return zlib.crc32(json.dumps(rows).encode())


class LeaseFile:
    """The file that keeps leases for the next daemon."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        #: Data of the error that reports a damaged file; empty if it was whole.
        self.damage: dict[str, object] = {}
        self._written = b""

    def write(self, data: bytes) -> None:
        """Replace the file by ``data`` (see ``encode``). If the disk refuses it, the log reports that the leases will
        end with this daemon.
        """
        try:
            if data == self._written:
                return
            # Renamed, but not synced: the file must survive this process, but not a restart of the machine.
            new = self.path.with_name(self.path.name + ".new")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            new.replace(self.path)
            self._written = data
        except OSError as error:
            logger.error("event=leases-not-kept path=%s reason=%s", self.path, error)

    def read(self) -> list[KeptLease]:
        """Return the leases of the previous daemon. A damaged file is renamed and gives no leases; ``damage`` has the
        report.
        """
        try:
            found = json.loads(self.path.read_bytes())
            if found.get("sum", _sum_of(found["leases"])) != _sum_of(found["leases"]):  # earlier versions lack it
                raise ValueError("the leases do not match their stored checksum")
            return [_kept(row) for row in found["leases"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            aside = self.path.with_name(f"{self.path.name}.damaged")
            with contextlib.suppress(OSError):
                self.path.replace(aside)
            logger.error("event=leases-lost path=%s set-aside=%s reason=%s", self.path, aside, error)
            self.damage = {"set_aside": str(aside), "reason": str(error)[:300]}
            return []


def _kept(row: dict[str, Any]) -> KeptLease:
    lease = row["lease"]
    return KeptLease(
        Lease(
            LeaseId(lease["id"]), lease["token"], LeaseRequest(**lease["request"]), tuple(lease["tiles"]),
            tuple((int(rdu), int(count)) for rdu, count in lease["memory"]), float(lease["granted_at"]),
        ),
        Peer(**row["peer"]), row["command"], tuple(row["pids"]), _totals(row["former"]), _totals(row["totals"]),
        row["failure"], row.get("socket_mode"),
    )  # fmt: skip


def _totals(row: dict[str, Any]) -> UsageTotals:
    return UsageTotals(**{**row, **{name: tuple(row.get(name, ())) for name in LINK_COUNTERS}})


NAME: Final = "snd.sock"
#: Largest number of connections per lease, so that a job cannot use all connections of the daemon.
MAX_CONNECTIONS: Final = 32


class LeaseSockets:
    """The sockets of leases that have one, as files. Every method may wait for the disk."""

    def __init__(self, folder: Path) -> None:
        """``folder``: of this daemon alone."""
        self._folder = folder.absolute()

    def path(self, lease: LeaseId) -> Path:
        """Return the path of a lease's socket."""
        return self._folder / lease / NAME

    def clear(self, wanted: Collection[LeaseId]) -> None:
        """Remove a killed daemon's files of leases other than ``wanted``."""
        for folder in self._folder.glob("*"):
            if folder.name not in wanted:
                _remove(folder)

    def listen(self, lease: LeaseId, mode: int) -> socket.socket:
        """Return a listener for a lease, at a socket of this mode.

        Raises:
            InvalidArgument: its folder or its socket cannot be made.
        """
        folder = self._folder / lease
        try:
            make_folder(self._folder)
            self._folder.chmod(0o711)
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700 if mode == 0o600 else 0o711)
        except OSError as cause:
            raise InvalidArgument(
                f"the folder {folder} for a lease's socket cannot be created: {cause.strerror}"
            ) from cause
        listener = listen_at(self.path(lease), mode, is_ours=True)
        listener.setblocking(False)
        return listener

    def remove(self, lease: LeaseId, is_kept: bool = False) -> None:
        """Remove a lease's socket; also its folder, unless that is kept for the next daemon."""
        if is_kept:
            with contextlib.suppress(OSError):
                self.path(lease).unlink(missing_ok=True)
        else:
            _remove(self._folder / lease)


def _remove(folder: Path) -> None:
    """Remove a folder with any contents; links are not followed."""
    try:
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("event=lease-socket-left folder=%s reason=%s", folder, error)

"""Sockets of leases' own: who computes under a lease reaches the daemon by one on which only that lease can be used.

Each is ``<lease id>/snd.sock`` under one folder. The lease's folder, not the socket, is what a box's container or fence
is given: the daemon's next process makes a new socket there, which a bind mount of the old one would not show.

Source: ours.
"""

import contextlib
import logging
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.files.home import make_folder
from rdukit.http.unix_sockets import listen_at
from rdukit_node.leases.allocator import LeaseId

logger = logging.getLogger(__name__)

NAME: Final = "snd.sock"
#: Connections at once of one lease: one job cannot take all that the daemon has.
MAX_CONNECTIONS: Final = 32


class LeaseSockets:
    """The listening sockets of the active leases that have one."""

    def __init__(self, folder: Path) -> None:
        """``folder``: of this daemon alone."""
        self._folder = folder.absolute()
        self._listeners: dict[LeaseId, socket.socket] = {}

    def path(self, lease: LeaseId) -> Path:
        """Where a lease's socket is."""
        return self._folder / lease / NAME

    def clear(self, wanted: Mapping[LeaseId, int]) -> None:
        """Remove what a killed daemon left of other leases than ``wanted``."""
        for folder in self._folder.glob("*"):
            if folder.name not in wanted:
                _remove(folder)

    def sync(
        self, wanted: Mapping[LeaseId, int], add: Callable[[LeaseId, socket.socket], object],
        remove: Callable[[socket.socket], object],
    ) -> dict[LeaseId, InvalidArgument]:  # fmt: skip
        """Listen for the ``wanted`` leases, at sockets of these modes, and for no other.

        Args:
            add: takes a new listener. remove: is told of one that is about to close.
        Returns:
            Why some could not be made.
        """
        for lease in [lease for lease in self._listeners if lease not in wanted]:
            listener = self._listeners.pop(lease)
            remove(listener)
            listener.close()
            _remove(self._folder / lease)
        failed: dict[LeaseId, InvalidArgument] = {}
        for lease in [lease for lease in wanted if lease not in self._listeners]:
            try:
                listener = self._listen(lease, wanted[lease])
            except InvalidArgument as error:
                logger.error("event=no-lease-socket lease=%s reason=%s", lease, error.message)
                failed[lease] = error
                continue
            self._listeners[lease] = listener
            add(lease, listener)
        return failed

    def close(self, kept: Mapping[LeaseId, int]) -> None:
        """Listen no more; the folders of ``kept`` leases stay for the next daemon."""
        for lease, listener in self._listeners.items():
            listener.close()
            with contextlib.suppress(OSError):
                self.path(lease).unlink(missing_ok=True)
            if lease not in kept:
                _remove(self._folder / lease)
        self._listeners.clear()

    def _listen(self, lease: LeaseId, mode: int) -> socket.socket:
        folder = self._folder / lease
        try:
            make_folder(self._folder)
            self._folder.chmod(0o711)
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700 if mode == 0o600 else 0o711)
        except OSError as cause:
            raise InvalidArgument(
                f"the folder {folder} of a lease's socket cannot be made: {cause.strerror}"
            ) from cause
        listener = listen_at(self.path(lease), mode, is_ours=True)
        listener.setblocking(False)
        return listener


def _remove(folder: Path) -> None:
    """Whatever somebody put there: no links are followed."""
    try:
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("event=lease-socket-left folder=%s reason=%s", folder, error)

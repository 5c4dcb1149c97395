"""Files of leases, written in a thread of their own, so that the daemon's own thread never waits for the disk.

``leases.json`` has the active leases for the next daemon. The thread also creates leases' own sockets, and passes them
to the daemon's loop once they listen.

Source: ours.
"""

import functools
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.daemon.disk_thread import DiskThread
from rdukit_node.leases.allocator import LeaseId
from rdukit_node.leases.files import LeaseFile, LeaseSockets, encode

logger = logging.getLogger(__name__)

#: Seconds that shutdown waits for the disk.
_CLOSE_S: Final = 10.0

AddListener = Callable[[LeaseId, socket.socket], object]


class LeaseKeeper:
    """Keeps the lease files of one daemon. All methods belong to the daemon's own thread."""

    def __init__(self, file: LeaseFile | None = None, sockets: LeaseSockets | None = None) -> None:
        """
        Args:
            file: stores the leases' holders; without it leases end with the process. sockets: the leases' own sockets;
                without it leases have no sockets.
        """
        self._file, self._sockets = file, sockets
        self._kept_changes = -1
        #: Sockets that the loop listens at, and the reasons for missing ones.
        self.listeners: Final[dict[LeaseId, socket.socket]] = {}
        self.failures: Final[dict[LeaseId, InvalidArgument]] = {}
        #: Leases whose socket the thread is creating.
        self._in_making: Final[set[LeaseId]] = set()
        #: Work for the thread, oldest first, and sockets that it has created.
        self._jobs: Final[deque[Callable[[], object]]] = deque()
        self._made: Final[deque[tuple[LeaseId, socket.socket | InvalidArgument]]] = deque()
        self.thread: Final = DiskThread("leases", self._work)

    @property
    def has_sockets(self) -> bool:
        """True if leases can have sockets of their own."""
        return self._sockets is not None

    def path(self, lease: LeaseId) -> str:
        """Return the path of a lease's socket."""
        assert self._sockets is not None
        return str(self._sockets.path(lease))

    def begin(self, daemon: NodeDaemon) -> None:
        """Remove remains of a killed daemon, and listen for the leases that it kept."""
        if (sockets := self._sockets) is not None:
            wanted = frozenset(daemon.lease_sockets)
            self._jobs.append(lambda: sockets.clear(wanted))
        self.keep(daemon, lambda _: None)

    def keep(self, daemon: NodeDaemon, remove: Callable[[socket.socket], object]) -> int:
        """Let the thread store the leases' holders, if they have changed.

        Args:
            remove: called with each listener before it closes.
        Returns:
            The request's number: it is written once ``thread.done`` has reached it. 0: nothing has changed.
        """
        if daemon.lease_changes == self._kept_changes:
            return 0
        self._kept_changes = daemon.lease_changes
        if self._file is None and self._sockets is None:
            return 0
        if (file := self._file) is not None:
            data = encode(daemon.kept_leases())
            self._jobs.append(lambda: file.write(data))
        if (sockets := self._sockets) is not None:
            self._sync_sockets(sockets, daemon.lease_sockets, remove)
        return self.thread.request()

    def settle(self, daemon: NodeDaemon, add: AddListener) -> None:
        """Take over the sockets that the thread has created. ``add`` is called with each new listener."""
        while self._made:
            lease, made = self._made.popleft()
            self._in_making.discard(lease)
            if isinstance(made, InvalidArgument):
                self.failures[lease] = made
            elif lease in daemon.lease_sockets:
                self.listeners[lease] = made
                add(lease, made)
            else:  # it ended meanwhile
                made.close()
                self._forget(lease)
                self.thread.request()

    def close(self, daemon: NodeDaemon, now: float) -> None:
        """End the daemon's leases, except those stored for the next daemon, and stop listening."""
        if (file := self._file) is not None:
            data = encode(daemon.kept_leases())
            self._jobs.append(lambda: file.write(data))
            daemon.leave(now)
        else:
            daemon.stop(now)
        kept = daemon.lease_sockets
        for lease, listener in self.listeners.items():
            listener.close()
            self._forget(lease, lease in kept)
        self.listeners.clear()
        self.thread.request()
        if not self.thread.stop(lambda: None, _CLOSE_S):
            logger.error("event=leases-not-kept reason=the disk has not answered for %.0f s", self.thread.busy_s)

    def _sync_sockets(
        self, sockets: LeaseSockets, wanted: dict[LeaseId, int], remove: Callable[[socket.socket], object]
    ) -> None:
        """Listen for exactly the ``wanted`` leases, at sockets of these modes."""
        for lease in [lease for lease in self.listeners if lease not in wanted]:
            listener = self.listeners.pop(lease)
            remove(listener)
            listener.close()
            self._forget(lease)
        for lease in [lease for lease in self.failures if lease not in wanted]:
            del self.failures[lease]
        for lease, mode in wanted.items():
            if lease not in self.listeners and lease not in self.failures and lease not in self._in_making:
                self._in_making.add(lease)
                self._jobs.append(functools.partial(self._make, sockets, lease, mode))

    def _forget(self, lease: LeaseId, is_kept: bool = False) -> None:
        if (sockets := self._sockets) is not None:
            self._jobs.append(functools.partial(sockets.remove, lease, is_kept))

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _make(self, sockets: LeaseSockets, lease: LeaseId, mode: int) -> None:
        try:
            self._made.append((lease, sockets.listen(lease, mode)))
        except InvalidArgument as error:
            logger.error("event=no-lease-socket lease=%s reason=%s", lease, error.message)
            self._made.append((lease, error))

    def _work(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

"""A lease that a process holds for another one that computes under it, as a platform's worker does for a job's box.

Its connection to the node daemon is watched by a thread: when the daemon was restarted it attaches to the lease again,
as programs do by themselves. Without, the tiles of a box that has not attached yet would be granted to somebody else.
"""

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.closable import Closable
from rdukit.errors import RdukitError, Unavailable
from rdukit.settings import SND_REATTACH_S, resolve
from rdukit.snd import SndClient

logger = logging.getLogger(__name__)

#: Between two tries to find a daemon that is away.
RETRY_S: Final = 0.1
#: How long an end waits for a daemon that is there.
_END_S: Final = 10.0


def connect_patiently(path: Path, timeout_s: float = 10.0) -> SndClient:
    """Connect to a daemon that is known to be there, and may just be starting again.

    Raises:
        Unavailable: it did not come back within ``snd.reattach_s``, or this user may not connect.
    """
    until = time.monotonic() + resolve(SND_REATTACH_S)
    while True:
        try:
            return SndClient(path, timeout_s)
        except Unavailable as error:
            if isinstance(error.__cause__, PermissionError) or time.monotonic() >= until:
                raise
        time.sleep(RETRY_S)


class HeldLease(Closable):
    """A lease until ``close``, also of a daemon that is restarted meanwhile."""

    def __init__(self, client: SndClient, lease: Mapping[str, Any]) -> None:
        """Take over ``client``, which holds ``lease``.

        Raises:
            RdukitError: the daemon ended, and the lease with it.
        """
        self.id: Final = str(lease["id"])
        self._client = client
        self._token = str(lease["token"])
        if "keep" in client.call("hello").get("features", ()):
            client.call("keep", lease=self.id)
        self._is_over = False
        #: Closing the second wakes whoever waits for the first.
        self._woken, self._wake = socket.socketpair()
        #: The only one that uses the connection from now on.
        self._thread = threading.Thread(target=self._hold, name="lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the lease for all its holders. A daemon that is away hears of it when it comes back."""
        if not self._is_over:
            self._is_over = True
            self._wake.close()
            self._thread.join(_END_S if self._client.is_alive else 0)

    def _hold(self) -> None:
        try:
            while True:
                while self._client.is_alive and not self._is_over:
                    self._wait(self._client.fileno(), None)
                if not self._client.is_alive and not self._return():
                    return
                if self._is_over:
                    with contextlib.suppress(Unavailable):  # restarted just now: once more
                        self._client.release(self.id)
                        return
        except RdukitError as error:
            logger.info("event=lease-not-ended lease=%s reason=%s", self.id, error)
        finally:
            self._client.close()
            self._woken.close()

    def _return(self) -> bool:
        """Attach again. False: the lease has ended, or nobody wants it any more and its daemon stays away."""
        until = float("inf")
        while True:
            try:
                self._client.reconnect()
                self._client.call("reattach", lease=self.id, token=self._token, regions=[])
                logger.info("event=reattach lease=%s", self.id)
                return True
            except Unavailable:
                pass
            except RdukitError as error:
                logger.info("event=lease-lost lease=%s reason=%s", self.id, error)
                return False
            if self._is_over:
                until = min(until, time.monotonic() + resolve(SND_REATTACH_S))
                if time.monotonic() >= until:
                    return False
                time.sleep(RETRY_S)
            else:
                self._wait(-1, RETRY_S)

    def _wait(self, descriptor: int, seconds: float | None) -> None:
        """For the connection's end, for ``close``, or for so long."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if descriptor >= 0:
            poll.register(descriptor, select.POLLRDHUP)
        poll.poll(None if seconds is None else seconds * 1000)

"""Client of the node daemon ``snd``, and leases that outlive the daemon's restarts.

The wire has one JSON object a line over a UNIX socket; memory is passed as a descriptor. Request ``{"op": …, …}``,
answer ``{"ok": true, …}`` or ``{"ok": false, "error": {code, message, detail}}``. A lease lives as long as a connection
that holds it; when the last one closes, by ``close`` or because its process died, the daemon frees the lease.
``docs/design/wire.md`` lists the operations.
"""

import contextlib
import json
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, RdukitError, Unavailable, error_from_body
from rdukit.http.unix_sockets import SocketPath
from rdukit.interfaces import Closable
from rdukit.settings import SND_REATTACH_S, home_folder, resolve

PROTOCOL_VERSION: Final = 1
_MAX_LINE: Final = 1 << 20
#: Programs that this process starts must not inherit received descriptors.
_RECEIVE_FLAGS: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def default_socket() -> Path:
    """Return ``$RDUKIT_HOME/run/snd.sock``."""
    return home_folder() / "run" / "snd.sock"


class SndClient(Closable):
    """A connection to a node daemon; only one thread at a time may use it."""

    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        """Connect.

        Raises:
            Unavailable: no daemon listens at ``path``.
        """
        self.path = path
        self._timeout_s = timeout_s
        self._answer_timeout_s: float | None = timeout_s
        self._pending = b""
        self._connect()

    def reconnect(self) -> None:
        """Connect again to the daemon that serves the path now. Raises: as the constructor."""
        self.close()
        self._pending = b""
        self._connect()

    def wait_for_answers(self, timeout_s: float | None) -> None:
        """Set the timeout of each answer, also after ``reconnect``; ``None``: wait as long as the daemon lives.

        After a timeout, a holder of a lease closes its connection, and the daemon ends the lease when it notices.
        """
        self._answer_timeout_s = timeout_s
        self._socket.settimeout(timeout_s)

    @property
    def answer_timeout_s(self) -> float | None:
        """Seconds that a call waits for its answer; ``None``: as long as the daemon lives."""
        return self._answer_timeout_s

    def fileno(self) -> int:
        """Return the connection's descriptor; -1: it is closed."""
        return self._socket.fileno()

    def _connect(self) -> None:
        path, timeout_s = self.path, self._timeout_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A busy daemon's queue of connections may be full. A socket with Python's timeout then fails at once; a socket
        # with the kernel's timeout waits.
        seconds, rest = divmod(max(timeout_s, 0.001), 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))
        try:
            with SocketPath(path) as short:
                self._socket.connect(short.text)
            self._socket.settimeout(self._answer_timeout_s)
        except (OSError, InvalidArgument) as cause:
            self._socket.close()
            if isinstance(cause, PermissionError):
                raise Unavailable(
                    f"this user may not connect to the node daemon at {path}; run as its user, or start it with "
                    "RDUKIT_SND_SOCKET_MODE=666"
                ) from cause
            reason = getattr(cause, "strerror", None) or cause
            raise Unavailable(
                f"no node daemon answers at {path} ({reason}); start one with: rdukit node start"
            ) from cause

    def call(self, op: str, **arguments: object) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            RdukitError: the daemon refused; the error's code selects the class.
            Unavailable: the connection broke or timed out.
        """
        return self.call_with_fd(op, **arguments)[0]

    def call_with_fd(self, op: str, **arguments: object) -> tuple[dict[str, Any], int | None]:
        """Send one request; the answer may carry a file descriptor, which the caller then owns."""
        line = json.dumps({"op": op, "protocol": PROTOCOL_VERSION, **arguments}).encode() + b"\n"
        descriptors: list[int] = []
        try:
            self._socket.sendall(line)
            while b"\n" not in self._pending:
                data, received, _, _ = socket.recv_fds(self._socket, 65536, 4, _RECEIVE_FLAGS)
                descriptors += received
                if not data or len(self._pending) > _MAX_LINE:
                    raise Unavailable(f"the node daemon at {self.path} closed the connection during {op!r}")
                self._pending += data
            answer_line, self._pending = self._pending.split(b"\n", 1)
            answer: dict[str, Any] = json.loads(answer_line)
        except (OSError, ValueError) as cause:
            # A late answer would be read as that of the next request, so this connection cannot be used again.
            self.close()
            _close_all(descriptors)
            raise Unavailable(f"the node daemon at {self.path} does not answer {op!r}: {cause}") from cause
        except BaseException:
            self.close()
            _close_all(descriptors)
            raise
        if not answer.get("ok"):
            _close_all(descriptors)
            raise error_from_body(answer)
        _close_all(descriptors[1:])
        return answer, (descriptors[0] if descriptors else None)

    def acquire(
        self, application: str, tiles: int, memory_bytes: int, wait_s: float = 0.0, **more: object
    ) -> dict[str, Any]:
        """Lease ``tiles`` contiguous tiles and ``memory_bytes`` of device memory; return the lease.

        Args:
            wait_s: seconds to wait in the daemon's queue if they are not free; for daemons with the feature ``wait``.
        Raises:
            NoResources: they are not free; the message says what would fit.
        """
        if wait_s > 0:
            more["wait_s"] = wait_s
        patience = self._socket.gettimeout()
        self._socket.settimeout(None if patience is None else patience + wait_s)
        try:
            answer = self.call("acquire", application=application, tiles=tiles, memory_bytes=memory_bytes, **more)
        finally:
            if self._socket.fileno() >= 0:
                self._socket.settimeout(patience)
        lease: dict[str, Any] = answer["lease"]
        return lease

    def attach(self, lease_id: str, token: str) -> dict[str, Any]:
        """Hold an existing lease also on this connection; return the lease."""
        lease: dict[str, Any] = self.call("attach", lease=lease_id, token=token)["lease"]
        return lease

    def own_socket(self, lease_id: str, mode: str = "600") -> Path:
        """Return the path of a socket on which only this lease can be used; its folder has no other files.

        Args:
            mode: of the socket, ``600``, ``660`` or ``666``; for callers who are not the daemon's user it is ``666``.
        Raises:
            Unavailable: the daemon has an earlier version without such sockets.
        """
        if "socket" not in self.call("hello").get("features", ()):
            raise Unavailable(f"the node daemon at {self.path} creates no sockets for leases; update and restart it")
        return Path(self.call("socket", lease=lease_id, mode=mode)["socket"])

    def release(self, lease_id: str) -> None:
        """End a lease now, for all its holders."""
        self.call("release", lease=lease_id)

    def status(self) -> Mapping[str, Any]:
        """Return the node's platform, tiles, leases and memory."""
        return self.call("status")

    @property
    def is_alive(self) -> bool:
        """Return whether the daemon holds its end of the connection; costs one system call."""
        try:
            # MSG_DONTWAIT alone is not enough: a Python socket with a timeout would still wait.
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0) or self._socket.recv(1, socket.MSG_PEEK) != b""
        except (OSError, ValueError):  # closed here, or reset
            return False

    def close(self) -> None:
        """Close the connection; leases that only it held end."""
        self._socket.close()


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


logger = logging.getLogger(__name__)

#: Seconds between two attempts to reach a daemon.
RETRY_S: Final = 0.1
#: Seconds that the end of a lease waits for a reachable daemon.
_END_S: Final = 10.0


def connect_patiently(path: Path, timeout_s: float = 10.0) -> SndClient:
    """Connect to a daemon that should run, but may be restarting.

    Raises:
        Unavailable: the daemon did not return within ``snd.reattach_s``, or this user may not connect.
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
    """A lease that one process holds for another, as a platform's worker does for a job's box, until ``close``.

    A thread watches the connection and reattaches to the lease after a restart of the daemon, as programs themselves
    do. Otherwise the daemon would grant the tiles to others before the box has reattached.
    """

    def __init__(self, client: SndClient, lease: Mapping[str, Any]) -> None:
        """Take over ``client``, which holds ``lease``.

        Raises:
            RdukitError: the daemon and the lease have ended.
        """
        self.id: Final = str(lease["id"])
        self._client = client
        self._token = str(lease["token"])
        if "keep" in client.call("hello").get("features", ()):
            client.call("keep", lease=self.id)
        # A daemon may start slowly under load, and a timeout would end the lease.
        client.wait_for_answers(None)
        self._is_over = False
        #: Closing the second wakes the thread that waits for the first.
        self._woken, self._wake = socket.socketpair()
        #: The only thread that uses the connection from now on.
        self._thread = threading.Thread(target=self._hold, name="lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the lease for all its holders. An unreachable daemon learns of it when it returns."""
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
        """Reattach. Return False if the lease has ended, or if it is closed and the daemon stays unreachable."""
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
        """Wait for the connection's end, for ``close``, or for ``seconds``."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if descriptor >= 0:
            poll.register(descriptor, select.POLLRDHUP)
        poll.poll(None if seconds is None else seconds * 1000)

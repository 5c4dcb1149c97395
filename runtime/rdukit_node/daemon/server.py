"""The node daemon's shell: a UNIX socket, memory descriptors, signals and the clock around ``daemon.NodeDaemon``.

One thread and a selector. A connection is read only while nothing is waiting to be sent to it, so a client that does
not read its answers stops only itself.
"""

import contextlib
import fcntl
import functools
import json
import logging
import os
import pwd
import resource
import secrets
import selectors
import signal
import socket
import stat
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rdukit.errors import Conflict, InvalidArgument, RdukitError, Unavailable
from rdukit.files.home import make_folder
from rdukit.interfaces import Clock
from rdukit_node.daemon.connections import HolderPage, PageGrant, Peer, Response, SocketGrant
from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.daemon.database_writer import DatabaseWriter
from rdukit_node.daemon.protocol import MAX_REQUEST_BYTES, error_body
from rdukit_node.leases.allocator import LeaseId
from rdukit_node.leases.files import MAX_CONNECTIONS, LeaseFile, LeaseSockets
from rdukit_node.leases.memory import create_region, map_region
from rdukit_node.status_page import PAGE_BYTES, StatusPage

logger = logging.getLogger(__name__)

#: Read at once from one connection; bounds how long one talkative client delays the others.
_READ_BYTES: Final = 8192
#: Connections at once, and descriptors that stay free for everything else.
_MAX_CONNECTIONS: Final = 512
_SPARE_DESCRIPTORS: Final = 64
_MAX_SOCKET_PATH: Final = 107
_JSON: Final = json.JSONEncoder(separators=(",", ":"))
#: Connections that wait to be accepted: clients come in bursts, and a longer line costs nothing.
_BACKLOG: Final = 1024
#: Two readings of clocks are never of the same instant; what is more than this is a step.
_CLOCK_TOLERANCE_S: Final = 0.01
#: Maintenance may be years away; the kernel counts the milliseconds of a wait in 32 bits.
_LONGEST_WAIT_S: Final = 3600.0


@dataclass(slots=True)
class _Peer:
    """A connection's buffers."""

    number: int
    socket: socket.socket
    #: The lease whose own socket it came by.
    lease: LeaseId | None = None
    inbox: bytearray = field(default_factory=bytearray)
    #: Rest of an answer that the socket did not take yet.
    outbox: bytes = b""
    #: Goes with the first byte of ``outbox``; owned here until sent.
    descriptor: int | None = None
    #: The present line is too long: it was answered, and its rest is thrown away.
    is_discarding: bool = False
    #: Its last request waits in the daemon's queue; no further line is read meanwhile.
    is_waiting: bool = False


def new_identity() -> tuple[str, str]:
    """Return a lease id and a secret token."""
    return f"lease-{secrets.token_hex(6)}", secrets.token_urlsafe(24)


def new_uuid() -> str:
    """Return an id of an error or a fault."""
    return str(uuid.uuid4())


@contextlib.contextmanager
def listening(path: Path, mode: int = 0o600) -> Iterator[socket.socket]:
    """Listen at the UNIX socket ``path`` within the block, by default for this user only; then remove it.

    A lock file beside it, which the kernel unlocks when its process dies, tells a daemon that runs from the socket that
    a dead one left.

    Raises:
        Conflict: a daemon serves this socket already, or the path is something else.
        InvalidArgument: the path is too long for a UNIX socket, or not usable.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise InvalidArgument(f"socket path {path} is longer than {_MAX_SOCKET_PATH} bytes; use --socket with another")
    try:
        make_folder(path.parent)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as cause:
        raise InvalidArgument(f"cannot listen at {path}: {cause}; use --socket with a folder of yours") from cause
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    identity: tuple[int, int] | None = None
    try:
        _lock(lock, path)
        _remove_stale(path)
        former = os.umask(~mode & 0o777)
        try:
            server.bind(str(path))
        except OSError as cause:
            raise InvalidArgument(f"cannot listen at {path}: {cause}; use --socket with another path") from cause
        finally:
            os.umask(former)
        identity = _identity_of(path)
        server.listen(_BACKLOG)
        server.setblocking(False)
        yield server
    finally:
        server.close()
        if identity is not None and _identity_of(path) == identity:  # not somebody else's new file
            path.unlink(missing_ok=True)
        os.close(lock)


class SndServer:
    """Serves one ``NodeDaemon`` on one listening socket until it is told to stop."""

    def __init__(
        self,
        daemon: NodeDaemon,
        listener: socket.socket,
        clock: Clock,
        journal: DatabaseWriter | None = None,
        lease_file: LeaseFile | None = None,
        lease_sockets: LeaseSockets | None = None,
    ) -> None:
        """
        Args:
            journal: writes down what the daemon decides; without one nothing of that outlives the process.
            lease_file: where it is kept who holds what; without one leases end with the process.
            lease_sockets: leases' own; without them none has one.
        """
        self._lease_file = lease_file
        self._lease_sockets = lease_sockets
        self._kept_changes = self._served_changes = -1
        self.daemon: Final = daemon
        self._journal = journal
        self._listener = listener
        self._clock = clock
        #: Of the wall clock above the monotonic one, when the daemon was told last.
        self._clock_offset = clock.now() - clock.monotonic()
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}
        self._next_number = 1
        self._stop_reason: str | None = None
        #: Descriptors of ours in the selector, besides the listener's and the peers'.
        self._watched: list[int] = []
        self._handles_signals = False
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_connections = max(1, min(_MAX_CONNECTIONS, soft_limit - _SPARE_DESCRIPTORS))
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, None))

    def stop_on_signals(self) -> None:
        """End ``serve`` on SIGTERM and SIGINT. Only in the main thread."""
        receiver, sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # the wake-up descriptor carries it into the loop
        self._handles_signals = True
        self._watched += [receiver, sender]
        self._selector.register(receiver, selectors.EVENT_READ, lambda: self._on_signal(receiver))

    def stop_with_parent(self) -> None:
        """End ``serve`` with the parent process."""
        descriptor = os.pidfd_open(os.getppid())
        self._watched.append(descriptor)
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self.stop("its parent process ended"))

    def serve(self) -> str:
        """Serve until stopped; every lease has ended then. Returns why it stopped."""
        try:
            if self._lease_sockets is not None:
                self._lease_sockets.clear(self.daemon.lease_sockets)
                self._serve_leases()
            while self._stop_reason is None:
                for key, _ in self._selector.select(self._patience(self._now())):
                    callback: Callable[[], None] = key.data
                    callback()
                now = self._now()
                due = self.daemon.next_deadline()
                if due is not None and due <= now:
                    self.daemon.tick(now)
                self._send_ready()
                self._keep_leases()
                self._serve_leases()
                if self._journal is not None:
                    self._journal.write(now, must=False)
        finally:
            if self._lease_file is None:
                self.daemon.stop(self._now())
            else:
                self._lease_file.write(self.daemon.kept_leases())
                self.daemon.leave(self._now())
            if self._lease_sockets is not None:
                self._lease_sockets.close(self.daemon.lease_sockets)
            if self._journal is not None:
                self._journal.close(self._now())
            for peer in list(self._peers.values()):
                self._close(peer)
            self._selector.close()
            if self._handles_signals:
                signal.set_wakeup_fd(-1)
            for descriptor in self._watched:
                os.close(descriptor)
        return self._stop_reason

    def _now(self) -> float:
        """Return the wall clock's time. The daemon has been told if somebody set that clock."""
        now = self._clock.now()
        offset = now - self._clock.monotonic()
        step = offset - self._clock_offset
        if abs(step) > _CLOCK_TOLERANCE_S:
            logger.warning("event=clock-step seconds=%.3f", step)
            self._clock_offset = offset
            self.daemon.clock_stepped(step)
            if self._journal is not None:
                self._journal.clock_stepped(step)
        return now

    def _keep_leases(self) -> None:
        """Write down who holds what, if that is not what it was."""
        if self._lease_file is not None and self.daemon.lease_changes != self._kept_changes:
            self._kept_changes = self.daemon.lease_changes
            self._lease_file.write(self.daemon.kept_leases())

    def _serve_leases(self) -> dict[LeaseId, InvalidArgument]:
        """Listen for the leases that have a socket of their own. Returns why some could not be made."""
        if self._lease_sockets is None or self.daemon.lease_changes == self._served_changes:
            return {}
        self._served_changes = self.daemon.lease_changes

        def add(lease: LeaseId, listener: socket.socket) -> None:
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, lease))

        return self._lease_sockets.sync(self.daemon.lease_sockets, add, self._selector.unregister)

    def _patience(self, now: float) -> float | None:
        """Return seconds until something is due; ``None``: nothing is."""
        due = self.daemon.next_deadline()
        pause = None if self._journal is None else self._journal.due_in(now)
        if due is None:
            return pause
        wait = min(max(0.0, due - now), _LONGEST_WAIT_S)
        return wait if pause is None else min(wait, pause)

    def _send_ready(self) -> None:
        """Send the answers of requests that waited."""
        for number, answer in self.daemon.take_ready():
            peer = self._peers.get(number)
            if peer is not None:
                peer.is_waiting = False
                self._answer(peer, answer)
                self._work(peer)

    def stop(self, reason: str) -> None:
        """End ``serve`` after what it does at present. Only in its thread, or if something wakes it."""
        self._stop_reason = reason

    def _on_signal(self, receiver: int) -> None:
        wanted = [n for n in os.read(receiver, 64) if n in (signal.SIGTERM, signal.SIGINT)]
        if wanted:
            self.stop(signal.Signals(wanted[0]).name)

    def _accept(self, listener: socket.socket, lease: LeaseId | None) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # the client left again, or there are no descriptors: others go on
            logger.warning("event=accept-failed error=%s", error)
            return
        connection.setblocking(False)
        full = self._why_full(lease)
        if full is not None:
            with contextlib.suppress(OSError):
                connection.send(_encode(error_body(full)))
            connection.close()
            return
        peer = _Peer(self._next_number, connection, lease)
        self._next_number += 1
        self._peers[peer.number] = peer
        self.daemon.connected(peer.number, _peer_of(connection), lease)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(peer))

    def _why_full(self, lease: LeaseId | None) -> Unavailable | None:
        if len(self._peers) >= self._max_connections:
            return Unavailable(f"the node daemon has {self._max_connections} connections already; try again later")
        if lease is not None and sum(peer.lease == lease for peer in self._peers.values()) >= MAX_CONNECTIONS:
            return Unavailable(f"lease {lease} has {MAX_CONNECTIONS} connections already; close one first")
        return None

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._close(peer)
            return
        peer.inbox += data
        self._work(peer)

    def _work(self, peer: _Peer) -> None:
        """Answer the complete lines that have come in, as long as the client takes the answers."""
        while not peer.outbox and not peer.is_waiting and peer.number in self._peers:
            end = peer.inbox.find(b"\n")
            if end < 0:
                self._check_length(peer)
                return
            line = bytes(peer.inbox[:end])
            del peer.inbox[: end + 1]
            if peer.is_discarding:
                peer.is_discarding = False
                continue
            if len(line) > MAX_REQUEST_BYTES:
                self._refuse_length(peer)
                continue
            answer = self.daemon.handle(peer.number, line, self._now())
            if answer is None:
                peer.is_waiting = True
            else:
                self._answer(peer, answer)

    def _check_length(self, peer: _Peer) -> None:
        if peer.is_discarding:
            peer.inbox.clear()
        elif len(peer.inbox) > MAX_REQUEST_BYTES:
            peer.is_discarding = True
            peer.inbox.clear()
            self._refuse_length(peer)

    def _refuse_length(self, peer: _Peer) -> None:
        too_long = InvalidArgument(f"the request is longer than {MAX_REQUEST_BYTES} bytes; legal: a shorter line")
        self._send(peer, _encode(error_body(too_long)), None)

    def _answer(self, peer: _Peer, answer: Response) -> None:
        self._keep_leases()
        if answer.is_durable and self._journal is not None:
            self._journal.write(self._now())
        grant = answer.grant
        if grant is None:
            self._send(peer, _encode(answer.body), None)
            return
        try:
            if isinstance(grant, SocketGrant):
                self._send(peer, _encode({**answer.body, "socket": str(self._open_socket(grant.lease))}), None)
                return
            if isinstance(grant, PageGrant):
                descriptor, page = _create_page()
                self.daemon.page_created(peer.number, grant, page)
            else:
                descriptor = create_region(grant.name, grant.bytes)
        except RdukitError as error:
            self.daemon.creation_failed(peer.number, grant)
            self._send(peer, _encode(error_body(error)), None)
            return
        self._send(peer, _encode(answer.body), descriptor)

    def _open_socket(self, lease: LeaseId) -> Path:
        if self._lease_sockets is None:
            raise InvalidArgument("this node daemon has no folder for leases' sockets")
        failed = self._serve_leases().get(lease)
        if failed is not None:
            raise failed
        return self._lease_sockets.path(lease)

    def _send(self, peer: _Peer, data: bytes, descriptor: int | None) -> None:
        peer.outbox, peer.descriptor = data, descriptor
        self._flush(peer)
        if peer.outbox and peer.number in self._peers:
            self._selector.modify(peer.socket, selectors.EVENT_WRITE, lambda: self._resume(peer))

    def _resume(self, peer: _Peer) -> None:
        self._flush(peer)
        if not peer.outbox and peer.number in self._peers:
            self._selector.modify(peer.socket, selectors.EVENT_READ, lambda: self._read(peer))
            self._work(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            if peer.descriptor is not None:
                sent = socket.send_fds(peer.socket, [peer.outbox], [peer.descriptor])
                os.close(peer.descriptor)
                peer.descriptor = None
            else:
                sent = peer.socket.send(peer.outbox)
            peer.outbox = peer.outbox[sent:]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the client is gone, or the kernel holds too many descriptors in flight for us
            self._close(peer)

    def _close(self, peer: _Peer) -> None:
        if self._peers.pop(peer.number, None) is None:
            return
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.descriptor is not None:
            os.close(peer.descriptor)
            peer.descriptor = None
        self.daemon.disconnected(peer.number, self._now())


def _encode(body: object) -> bytes:
    return _JSON.encode(body).encode() + b"\n"


def _create_page() -> tuple[int, HolderPage]:
    descriptor = create_region("status-page", PAGE_BYTES)
    try:
        return descriptor, StatusPage(map_region(descriptor, PAGE_BYTES))
    except RdukitError:
        os.close(descriptor)
        raise


def _peer_of(connection: socket.socket) -> Peer:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    # pid 0: a process in a namespace that cannot be seen from here
    return Peer(pid or None, uid, _user_name(uid), uid in (0, os.geteuid()))


@functools.lru_cache(maxsize=256)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _lock(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as cause:
        pid = os.pread(lock, 32, 0).decode(errors="replace").strip()
        raise Conflict(
            f"a node daemon{f' (process {pid})' if pid else ''} serves {path} already; use it, stop it, or start this "
            "one with another --socket",
            socket=str(path),
        ) from cause
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Conflict(f"{path} exists and is not a socket; move it away or use another --socket")
    logger.warning("event=stale-socket path=%s", path)
    path.unlink()


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino

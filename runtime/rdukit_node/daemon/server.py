"""The node daemon's shell: a UNIX socket, memory descriptors, signals and the clock around ``daemon.NodeDaemon``.

One thread and a selector. A connection is read only while its answers are sent, so a client that does not read them
stops only itself. Users take turns, so endless requests of one user do not block others. Other threads wait for disks;
an answer that promises durability waits for them, but only briefly.
"""

import contextlib
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
import struct
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from rdukit.errors import InvalidArgument, RdukitError, Unavailable
from rdukit.interfaces import Clock
from rdukit.settings import resolve
from rdukit_node.daemon.admission import ConnectionLimits, OpenConnection, admit
from rdukit_node.daemon.connections import HolderPage, PageGrant, Peer, Response, SocketGrant
from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.daemon.database_writer import DatabaseWriter
from rdukit_node.daemon.disk_thread import DiskThread
from rdukit_node.daemon.lease_keeper import LeaseKeeper
from rdukit_node.daemon.protocol import MAX_REQUEST_BYTES, error_body
from rdukit_node.leases.allocator import LeaseId
from rdukit_node.leases.files import MAX_CONNECTIONS as LEASE_CONNECTIONS
from rdukit_node.leases.memory import create_region, map_region
from rdukit_node.settings import SND_USER_CONNECTIONS
from rdukit_node.status_page import PAGE_BYTES, StatusPage

logger = logging.getLogger(__name__)

#: Bytes per read of a connection, which bounds the delay that one client causes to others.
_READ_BYTES: Final = 8192
#: Largest number of connections, and number of descriptors that stay free for other uses.
_MAX_CONNECTIONS: Final = 512
_SPARE_DESCRIPTORS: Final = 64
_JSON: Final = json.JSONEncoder(separators=(",", ":"))
#: Difference in seconds between two clocks' readings above which the wall clock was set.
_CLOCK_TOLERANCE_S: Final = 0.01
#: Seconds that an answer waits for the disk; then it reports unwritten rows.
_WRITE_S: Final = 0.3
#: Seconds of answering before new connections and data are checked.
_ROUND_S: Final = 0.02
#: Seconds between log lines about too many connections.
_TELL_FULL_S: Final = 60.0
#: Maintenance may be years away; the kernel counts the milliseconds of a wait in 32 bits.
_LONGEST_WAIT_S: Final = 3600.0


@dataclass(slots=True)
class _Peer:
    """A connection's buffers."""

    number: int
    socket: socket.socket
    uid: int | None
    #: Lease whose own socket it uses.
    lease: LeaseId | None
    #: Monotonic time of its last request, initially of its start.
    active_at: float
    inbox: bytearray = field(default_factory=bytearray)
    #: Rest of an answer that the socket has not accepted yet.
    outbox: bytes = b""
    #: Sent with the first byte of ``outbox``; owned here until then.
    descriptor: int | None = None
    #: The present line is too long: it was answered, and its rest is discarded.
    is_discarding: bool = False
    #: Its last request waits in the daemon's queue, or its answer for a disk; no further line is answered meanwhile.
    is_waiting: bool = False
    #: It has a complete line and is in the queue of its user.
    has_turn: bool = False


@dataclass(frozen=True, slots=True)
class _HeldAnswer:
    """An answer that waits for the disk."""

    number: int
    answer: Response
    #: Requests to the threads of keeper and journal that it waits for.
    kept: int
    written: int
    #: Lease whose socket it waits for.
    socket_of: LeaseId | None
    #: Monotonic time from which it is sent in any case; ``None``: it waits.
    due_at: float | None


def new_identity() -> tuple[str, str]:
    """Return a lease id and a secret token."""
    return f"lease-{secrets.token_hex(6)}", secrets.token_urlsafe(24)


def new_uuid() -> str:
    """Return an id of an error or a fault."""
    return str(uuid.uuid4())


def connection_limits() -> ConnectionLimits:
    """Return the limits of connections by the descriptors that this process may have, and the settings."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    total = max(1, min(_MAX_CONNECTIONS, soft_limit - _SPARE_DESCRIPTORS))
    return ConnectionLimits.of(total, resolve(SND_USER_CONNECTIONS), LEASE_CONNECTIONS)


class SndServer:
    """Serves one ``NodeDaemon`` on one listening socket until it is stopped."""

    def __init__(
        self,
        daemon: NodeDaemon,
        listener: socket.socket,
        clock: Clock,
        journal: DatabaseWriter | None = None,
        keeper: LeaseKeeper | None = None,
    ) -> None:
        """
        Args:
            journal: stores the daemon's decisions; without it they end with the process.
            keeper: writes the leases' files; without it leases end with the process and lack sockets of their own.
        """
        self.daemon: Final = daemon
        self._journal = journal
        self._keeper = keeper or LeaseKeeper()
        self._listener = listener
        self._clock = clock
        #: Last known difference of the wall clock and the monotonic clock.
        self._clock_offset = clock.now() - clock.monotonic()
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}
        #: Connections with a complete line, by user; users take turns.
        self._turns: dict[int | None, deque[_Peer]] = {}
        #: Answers that wait until their changes are written, oldest first.
        self._held: list[_HeldAnswer] = []
        self._next_number = 1
        self._stop_reason: str | None = None
        self._handles_signals = False
        self._limits = connection_limits()
        self._admin_uids = frozenset({0, os.geteuid()})
        self._told_full_at = -_TELL_FULL_S
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, None))
        waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        #: Further descriptors of this process in the selector, besides listener and peers.
        self._watched: list[int] = [waker]
        self._selector.register(waker, selectors.EVENT_READ, lambda: os.eventfd_read(waker))
        for thread in self._disk_threads():
            thread.wake = lambda: os.eventfd_write(waker, 1)

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
        """Serve until stopped; all leases have ended then. Returns why it stopped."""
        try:
            self._keeper.begin(self.daemon)
            while self._stop_reason is None:
                for key, _ in self._selector.select(0 if self._turns else self._patience(self._now())):
                    callback: Callable[[], None] = key.data
                    callback()
                now = self._now()
                self._settle_disks(now)
                due = self.daemon.next_deadline()
                if due is not None and due <= now:
                    self.daemon.tick(now)
                self._send_ready()
                self._take_turns()
                self._keeper.keep(self.daemon, self._selector.unregister)
                if self._journal is not None:
                    self._journal.write(now, must=False)
                self._send_held()
        finally:
            for thread in self._disk_threads():
                thread.wake = None
            self._keeper.close(self.daemon, self._now())
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

    def _disk_threads(self) -> list[DiskThread]:
        return [self._keeper.thread] + ([] if self._journal is None else [self._journal.thread])

    def _settle_disks(self, now: float) -> None:
        """Process the threads' results."""
        if self._journal is not None:
            self._journal.settle(now)

        def add(lease: LeaseId, listener: socket.socket) -> None:
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, lease))

        self._keeper.settle(self.daemon, add)

    def _now(self) -> float:
        """Return the wall clock's time, after telling the daemon about changes of the clock."""
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

    def _patience(self, now: float) -> float | None:
        """Return seconds until the next deadline; ``None``: there is no deadline."""
        waits = [] if self._journal is None else [self._journal.due_in(now)]
        due = self.daemon.next_deadline()
        waits += [None if due is None else min(max(0.0, due - now), _LONGEST_WAIT_S)]
        monotonic = self._clock.monotonic()
        waits += [max(0.0, held.due_at - monotonic) for held in self._held if held.due_at is not None]
        return min((wait for wait in waits if wait is not None), default=None)

    def _send_ready(self) -> None:
        """Send the answers of requests that waited."""
        for number, answer in self.daemon.take_ready():
            peer = self._peers.get(number)
            if peer is not None:
                self._answer(peer, answer)

    def stop(self, reason: str) -> None:
        """End ``serve`` after its present step. Call it in its thread, or wake the loop."""
        self._stop_reason = reason

    def _on_signal(self, receiver: int) -> None:
        wanted = [n for n in os.read(receiver, 64) if n in (signal.SIGTERM, signal.SIGINT)]
        if wanted:
            self.stop(signal.Signals(wanted[0]).name)

    def _accept(self, listener: socket.socket, lease: LeaseId | None) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # the client left again, or descriptors are exhausted: others continue
            logger.warning("event=accept-failed error=%s", error)
            return
        connection.setblocking(False)
        kernel_peer = _peer_of(connection)
        peer = _Peer(self._next_number, connection, kernel_peer.uid, lease, self._clock.monotonic())
        refusal = self._make_room(peer, kernel_peer.is_admin)
        if refusal:
            with contextlib.suppress(OSError):
                connection.send(_encode(error_body(Unavailable(refusal))))
            connection.close()
            return
        self._next_number += 1
        self._peers[peer.number] = peer
        self.daemon.connected(peer.number, kernel_peer, lease)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(peer))

    def _make_room(self, peer: _Peer, is_admin: bool) -> str:
        """Close idle connections for a new one, if there are too many. Returns the reason of a refusal; empty:
        admitted.
        """
        others = [self._seen(each, self.daemon.connections[each.number].is_admin) for each in self._peers.values()]
        admission = admit(self._seen(peer, is_admin), others, self._limits)
        if (admission.closes or admission.refusal) and peer.active_at - self._told_full_at >= _TELL_FULL_S:
            self._told_full_at = peer.active_at
            logger.warning(
                "event=connections-full user=%s connections=%s: %s",
                peer.uid, len(others), admission.refusal or "idle connections are closed to admit new ones",
            )  # fmt: skip
        for number in admission.closes:
            self._close(self._peers[number])
        return admission.refusal

    def _seen(self, peer: _Peer, is_admin: bool) -> OpenConnection:
        connection = self.daemon.connections.get(peer.number)
        is_needed = connection is not None and (bool(connection.held) or peer.number in self.daemon.queue)
        return OpenConnection(peer.number, peer.uid, is_admin, peer.lease, is_needed, peer.active_at)

    def _read(self, peer: _Peer) -> None:
        if peer.has_turn:  # a complete line waits: reading stops
            return
        try:
            data = peer.socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data or (peer.is_waiting and len(peer.inbox) > MAX_REQUEST_BYTES):
            self._close(peer)
            return
        peer.inbox += data
        self._want_turn(peer)

    def _want_turn(self, peer: _Peer) -> None:
        """Queue a connection that has a complete line and can take an answer."""
        if peer.outbox or peer.is_waiting or peer.has_turn or peer.number not in self._peers:
            return
        if b"\n" in peer.inbox:
            peer.has_turn = True
            self._turns.setdefault(peer.uid, deque()).append(peer)
        else:
            self._check_length(peer)

    def _take_turns(self) -> None:
        """Answer one line per user, root's and the daemon's user's first, for a bounded time."""
        until = time.monotonic() + _ROUND_S
        for uid in sorted(self._turns, key=lambda uid: uid not in self._admin_uids):
            queue = self._turns.pop(uid)
            peer = queue.popleft()
            if queue:
                self._turns[uid] = queue  # at the end, so that users who have waited longer are next
            peer.has_turn = False
            if peer.number in self._peers:
                self._answer_line(peer)
                self._want_turn(peer)
            if time.monotonic() >= until:
                return

    def _answer_line(self, peer: _Peer) -> None:
        end = peer.inbox.find(b"\n")
        line = bytes(peer.inbox[:end])
        del peer.inbox[: end + 1]
        if peer.is_discarding:
            peer.is_discarding = False
            return
        if len(line) > MAX_REQUEST_BYTES:
            self._refuse_length(peer)
            return
        peer.active_at = self._clock.monotonic()
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
        too_long = InvalidArgument(f"the request is longer than {MAX_REQUEST_BYTES} bytes; expected a shorter line")
        self._send(peer, _encode(error_body(too_long)), None)

    def _answer(self, peer: _Peer, answer: Response) -> None:
        """Send an answer, at once or when its changes are written."""
        kept = self._keeper.keep(self.daemon, self._selector.unregister)
        written = self._journal.write(self._now()) if answer.is_durable and self._journal is not None else 0
        socket_of = answer.grant.lease if isinstance(answer.grant, SocketGrant) else None
        if socket_of is not None and not self._keeper.has_sockets:
            self._finish(peer, answer, InvalidArgument("this node daemon has no folder for the sockets of leases"))
        elif kept or written or socket_of is not None:
            peer.is_waiting = True
            # A missing socket is useless, so wait for it; everything else is valid before it is on disk.
            due_at = self._clock.monotonic() + _WRITE_S if socket_of is None else None
            self._held.append(_HeldAnswer(peer.number, answer, kept, written, socket_of, due_at))
        else:
            self._finish(peer, answer)

    def _send_held(self) -> None:
        """Send the answers whose changes are written, or that have waited long enough for the disk."""
        now = self._clock.monotonic()
        for held in self._held[:]:
            is_due = held.due_at is not None and held.due_at <= now
            is_written = self._journal is None or self._journal.thread.done >= held.written
            if not is_due and not (is_written and self._keeper.thread.done >= held.kept and self._has_socket(held)):
                continue
            self._held.remove(held)
            peer = self._peers.get(held.number)
            if peer is not None:
                failure = None if held.socket_of is None else self._keeper.failures.pop(held.socket_of, None)
                self._finish(peer, self._with_unwritten(held.answer), failure)

    def _has_socket(self, held: "_HeldAnswer") -> bool:
        lease = held.socket_of
        return lease is None or lease not in self.daemon.lease_sockets or lease in {
            *self._keeper.listeners, *self._keeper.failures
        }  # fmt: skip

    def _with_unwritten(self, answer: Response) -> Response:
        """Add to an answer that its changes are not in the database, if so."""
        reason = self._journal.unwritten_reason if self._journal is not None and answer.is_durable else ""
        return replace(answer, body={**answer.body, "unwritten": reason}) if reason else answer

    def _finish(self, peer: _Peer, answer: Response, failure: RdukitError | None = None) -> None:
        """Send an answer with its grant; ``failure``: reason why the grant failed."""
        peer.is_waiting = False
        grant, body, descriptor = answer.grant, answer.body, None
        try:
            if failure is not None:
                raise failure
            if isinstance(grant, SocketGrant):
                body = {**body, "socket": self._keeper.path(grant.lease)}
            elif isinstance(grant, PageGrant):
                descriptor, page = _create_page()
                self.daemon.page_created(peer.number, grant, page)
            elif grant is not None:
                descriptor = create_region(grant.name, grant.bytes)
        except RdukitError as error:
            assert grant is not None
            self.daemon.creation_failed(peer.number, grant)
            body = error_body(error)
        self._send(peer, _encode(body), descriptor)
        self._want_turn(peer)

    def _send(self, peer: _Peer, data: bytes, descriptor: int | None) -> None:
        peer.outbox, peer.descriptor = data, descriptor
        self._flush(peer)
        if peer.outbox and peer.number in self._peers:
            self._selector.modify(peer.socket, selectors.EVENT_WRITE, lambda: self._resume(peer))

    def _resume(self, peer: _Peer) -> None:
        self._flush(peer)
        if not peer.outbox and peer.number in self._peers:
            self._selector.modify(peer.socket, selectors.EVENT_READ, lambda: self._read(peer))
            self._want_turn(peer)

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

"""The connections of an HTTP server, and the choice of those to drop: too many, or too many bytes of unfinished heads.

The code runs when connections open and close, and for heads that arrive in pieces, but not for each request.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

logger = logging.getLogger(__name__)

#: Connections that a search for an idle one checks; those in use move to the end of the queue.
MAX_SEARCHED: Final = 64
#: Connections per second, of one address and of all, that may replace idle ones; more are closed at once.
MAX_REPLACED_PER_S: Final = 20.0
MAX_REPLACED_OF_ALL_PER_S: Final = 200.0
#: An address with fewer connections is always admitted: if the server is full, others filled it.
ALWAYS_ADMITTED: Final = 16
#: Maximum bytes of unfinished heads of all connections together.
MAX_HELD_BYTES: Final = 16 << 20


class TrackedConnection(Protocol):
    """A connection as the registry sees it."""

    @property
    def idle_since(self) -> float | None:
        """Time since which the connection waits for a request's head; None during a request."""
        ...

    def give_up(self) -> None:
        """End the connection."""
        ...


class ConnectionRegistry:
    """The connections of one server, the oldest first."""

    def __init__(self, max_connections: int, max_per_address: int, trusted: Iterable[str] = ()) -> None:
        """
        Args:
            max_connections: maximum of simultaneous connections. max_per_address: maximum from one address.
            trusted: addresses and networks of proxies, which have many callers; ``*``: all addresses.
        """
        self._max_connections, self._max_per_address = max_connections, max_per_address
        self._trusted = tuple(word.strip() for word in trusted if word.strip())
        self._all: dict[TrackedConnection, str | None] = {}
        self._of: dict[str, dict[TrackedConnection, None]] = {}
        #: Connections with an unfinished head → its bytes so far; the oldest first.
        self._held: dict[TrackedConnection, int] = {}
        self._held_bytes = 0
        self._bucket = _TokenBucket(MAX_REPLACED_OF_ALL_PER_S)
        self._buckets: dict[str, _TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._all)

    def is_full_for(self, address: str | None, now: float) -> bool:
        """Return whether a new connection from ``address`` is closed at once; call it once for each.

        Idle connections are dropped for new ones, up to a rate: a flood would keep the server busy with replacements.
        """
        of_one = len(self._of.get(address, ())) if address is not None else 0
        if address is not None and of_one >= self._max_per_address:
            bucket = self._buckets.get(address)
            if bucket is None:
                bucket = self._buckets[address] = _TokenBucket(MAX_REPLACED_PER_S)
            if not bucket.take(now):
                return True
        return len(self._all) >= self._max_connections and of_one >= ALWAYS_ADMITTED and not self._bucket.take(now)

    def enter(self, connection: TrackedConnection, address: str | None) -> TrackedConnection | None:
        """Add a connection; return the one to drop for it, which may be the new one.

        Args:
            address: the caller's address; None over a UNIX socket.
        """
        counted = None if address is None or self._is_trusted(address) else address
        self._all[connection] = counted
        if counted is not None:
            of_one = self._of.setdefault(counted, {})
            of_one[connection] = None
            if len(of_one) > self._max_per_address:
                return self._choose(of_one, connection)
        return self._choose(self._all, connection) if len(self._all) > self._max_connections else None

    def leave(self, connection: TrackedConnection) -> None:
        """Remove a connection."""
        address = self._all.pop(connection, None)
        if address is not None:
            of_one = self._of[address]
            del of_one[connection]
            if not of_one:
                del self._of[address]
                self._buckets.pop(address, None)
        self.release(connection)

    def hold(self, connection: TrackedConnection, head_bytes: int) -> list[TrackedConnection]:
        """Record the bytes of a connection's unfinished head; return the connections to drop."""
        self._held_bytes += head_bytes - self._held.get(connection, 0)
        self._held[connection] = head_bytes
        chosen: list[TrackedConnection] = []
        left = self._held_bytes
        for each, size in self._held.items():
            if left <= MAX_HELD_BYTES:
                break
            chosen.append(each)
            left -= size
        return chosen

    def release(self, connection: TrackedConnection) -> None:
        """Remove a connection's head, which is complete."""
        self._held_bytes -= self._held.pop(connection, 0)

    def _choose(
        self, among: "dict[TrackedConnection, str | None] | dict[TrackedConnection, None]", newest: TrackedConnection
    ) -> TrackedConnection:
        """Choose the connection that has idled longest among the first ones; the newest if all are in use."""
        chosen, since = newest, float("inf")
        for each in list(_first(among)):
            idle = each.idle_since
            if idle is None:
                among[each] = among.pop(each)  # type: ignore[assignment]
            elif each is not newest and idle < since:
                chosen, since = each, idle
        return chosen

    def _is_trusted(self, address: str) -> bool:
        if not self._trusted:
            return False
        if "*" in self._trusted or address in self._trusted:
            return True
        try:
            found = ipaddress.ip_address(address)
            return any("/" in word and found in ipaddress.ip_network(word, strict=False) for word in self._trusted)
        except ValueError:
            return False


class _TokenBucket:
    """A token bucket: ``per_s`` tokens a second, and a burst of as many."""

    __slots__ = ("_left", "_per_s", "_since")

    def __init__(self, per_s: float) -> None:
        self._per_s = self._left = per_s
        self._since = 0.0

    def take(self, now: float) -> bool:
        self._left = min(self._per_s, self._left + (now - self._since) * self._per_s)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def peer_of(transport: asyncio.BaseTransport) -> tuple[str, int] | None:
    """Return address and port of a connection's caller; None over a UNIX socket, or if the caller has gone already."""
    peer = transport.get_extra_info("peername")
    return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) and len(peer) >= 2 else None


@dataclass(frozen=True, slots=True)
class TlsEndpoint:
    """TLS settings of a server."""

    context: ssl.SSLContext
    #: Time limit in seconds of a handshake, and of a connection's shutdown.
    silence_s: float


class AdmissionProtocol(asyncio.Protocol):
    """A stand-in for a connection until it is admitted; refusing one is cheap."""

    __slots__ = ("_make", "_registry", "_tls")

    def __init__(
        self, registry: ConnectionRegistry, make: Callable[[], asyncio.Protocol], tls: TlsEndpoint | None = None
    ) -> None:
        self._registry, self._make, self._tls = registry, make, tls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit, refuse or start a TLS handshake."""
        peer = peer_of(transport)
        address = peer[0] if peer else None
        if self._registry.is_full_for(address, asyncio.get_running_loop().time()):
            transport.abort()
        elif self._tls is None:
            _let_in(transport, self._make)
        else:
            TlsHandshake(self._registry, self._make, self._tls).begin(transport, address)


class TlsHandshake(asyncio.Protocol):
    """A stand-in for a connection until its TLS handshake has ended; until then it counts as idle."""

    def __init__(self, registry: ConnectionRegistry, make: Callable[[], asyncio.Protocol], tls: TlsEndpoint) -> None:
        self._registry, self._make, self._tls = registry, make, tls
        self._loop = asyncio.get_running_loop()
        self.idle_since: float | None = self._loop.time()

    def begin(self, plain: asyncio.Transport, address: str | None) -> None:
        """Take over the socket of a connection.

        ``loop.start_tls`` would lose data that arrives before its start, and a server with built-in TLS does not report
        handshakes.
        """
        self._socket = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
        self._socket.setblocking(False)
        plain.abort()
        shaking = self._loop.connect_accepted_socket(
            lambda: self, self._socket, ssl=self._tls.context, ssl_handshake_timeout=self._tls.silence_s,
            ssl_shutdown_timeout=self._tls.silence_s,
        )  # fmt: skip
        self._task = self._loop.create_task(shaking)
        self._task.add_done_callback(self._end)
        chosen = self._registry.enter(self, address)
        if chosen is not None:
            chosen.give_up()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Pass the connection to the HTTP protocol after a successful handshake."""
        self._registry.leave(self)
        _let_in(transport, self._make)

    def give_up(self) -> None:
        """End the connection at any point: the handshake fails at the end of the data."""
        self._registry.leave(self)
        with contextlib.suppress(OSError):  # the connection has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def _end(self, task: "asyncio.Task[object]") -> None:
        self._registry.leave(self)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self._socket.close()
        if error is not None and not isinstance(error, OSError):  # OSError: not TLS, timeout, or disconnect
            logger.error("a TLS handshake broke", exc_info=error)


def _let_in(transport: asyncio.Transport, make: Callable[[], asyncio.Protocol]) -> None:
    protocol = make()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)


def _first(among: "dict[TrackedConnection, str | None] | dict[TrackedConnection, None]") -> Iterator[TrackedConnection]:
    return islice(among, MAX_SEARCHED)

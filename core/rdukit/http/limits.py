"""Limits on HTTP connections before a request is served, for gateway and boxes alike. Pure.

The parts' protocols report events to a ``ConnectionWatch`` and carry out its decisions. Callers pass the time.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from rdukit.errors import HeadersTooLarge, MalformedRequest, PermissionDenied, RdukitError

#: Allowed bytes of chunk sizes, extensions and trailers for each byte of a body, in addition to the limit of a head.
CHUNK_OVERHEAD: Final = 8
#: Minimum bytes a second of a body after ``silence_s``: slower callers lose the connection.
MIN_BODY_BYTES_S: Final = 1024
#: Bytes of a body that are read and dropped after the response, so that the response is not lost.
LINGER_BYTES: Final = 256 << 10
#: Seconds for these bytes.
LINGER_S: Final = 5.0
#: Seconds for a TLS caller to answer the end of a dropped connection.
TLS_CLOSE_S: Final = 1.0
#: Files and sockets that a server needs in addition to its callers' connections.
RESERVED_FILES: Final = 512
#: Host names whose check is cached.
_MAX_HOSTS: Final = 256


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one server."""

    #: Maximum bytes of request line and headers, and the name of the setting with this limit.
    header_bytes: int
    header_setting: str
    #: Seconds for a head, for a body's delay behind ``MIN_BODY_BYTES_S``, and for a caller that does not read.
    silence_s: float
    #: Seconds that a connection may idle between two requests.
    idle_s: float


class ConnectionWatch:
    """Limits of one connection: its silence, and the bytes that are not body."""

    __slots__ = ("_limits", "asked_since", "excess", "head_bytes", "is_in_head", "is_lingering", "unread_since")

    def __init__(self, limits: HttpLimits, now: float) -> None:
        self._limits = limits
        #: Time since which a head, or the rest of a request, is awaited; None: neither. During a body, its bytes move
        #: the time later, at most to the present.
        self.asked_since: float | None = now
        #: Time since which the caller has not read written data; None: all is read.
        self.unread_since: float | None = None
        self.is_in_head = True
        #: Bytes since the last request's end, and bytes during a body that are not body.
        self.head_bytes = 0
        self.excess = 0
        #: Whether the request was answered before it was complete.
        self.is_lingering = False

    @property
    def idle_since(self) -> float | None:
        """The time since which it waits for a request's head; None: a request is under way."""
        return self.asked_since if self.is_in_head else None

    def count(self, received: int) -> None:
        """Count received bytes."""
        if self.is_in_head:
            self.head_bytes += received
        else:
            self.excess += received

    def begin_body(self, now: float) -> None:
        """Note that a head has ended."""
        self.is_in_head, self.is_lingering = False, False
        self.head_bytes = self.excess = 0
        self.asked_since = now

    def take_body(self, length: int, now: float) -> None:
        """Count a part of a body; a request that was answered already gets no more time for the rest."""
        if not self.is_lingering:
            self.excess -= length * (1 + CHUNK_OVERHEAD)
            if self.excess < 0:
                self.excess = 0
            if self.asked_since is not None:
                self.asked_since = min(now, self.asked_since + length / MIN_BODY_BYTES_S)

    def excuse(self, now: float) -> None:
        """Note that the server itself has paused reading a body, so the caller is not slow."""
        if not self.is_in_head and not self.is_lingering:
            self.asked_since = now

    def end_request(self, now: float, is_answered: bool) -> None:
        """Note that a complete request has arrived."""
        self.is_in_head, self.is_lingering = True, False
        self.head_bytes = 0
        self.asked_since = now if is_answered else None

    def end_answer(self, now: float) -> None:
        """Note that the request is answered, possibly before it was complete."""
        self.asked_since = now
        if not self.is_in_head:
            self.is_lingering, self.excess = True, 0

    def refusal(self) -> RdukitError | None:
        """Return the reason to stop reading, after ``count``; None if there is none."""
        limit = self._limits.header_bytes
        if self.is_in_head:
            return headers_too_large(self._limits) if self.head_bytes > limit else None
        if self.is_lingering or self.excess <= limit:
            return None
        words = "chunk sizes, extensions or trailers"
        return MalformedRequest(f"the body has more than {limit} bytes of {words}", field="body", limit=limit)

    @property
    def is_over(self) -> bool:
        """Return whether an answered request continues too long."""
        return self.is_lingering and self.excess > LINGER_BYTES

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the connection is to be dropped or checked again."""
        limits = self._limits
        left = min(limits.idle_s, limits.silence_s)
        if self.asked_since is not None:
            if self.is_lingering:
                allowed = LINGER_S
            elif self.is_in_head and not self.head_bytes:
                allowed = limits.idle_s
            else:
                allowed = limits.silence_s
            left = min(left, self.asked_since + allowed - now)
        if self.unread_since is not None:
            left = min(left, self.unread_since + self._limits.silence_s - now)
        return left


class HostRule:
    """The host names that a server answers to, against DNS rebinding by pages in a browser."""

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        """
        Args:
            bound: the server's address; ``0.0.0.0`` and ``::`` stand for every address of the machine.
            names: additional names; ``*``: all.
        """
        self._names = {"localhost", bound.lower(), *(name.strip().lower() for name in names)} - {""}
        bound_to = _address_of(bound)
        self._is_everywhere = bound_to is not None and bound_to.is_unspecified
        self._known: set[bytes] = set()

    @property
    def is_open(self) -> bool:
        """True if all names are allowed."""
        return "*" in self._names

    def allows(self, host: bytes) -> bool:
        """Return whether ``host``, as in the header, with or without a port, is allowed."""
        if host in self._known or self.is_open:
            return True
        try:
            name = urlsplit("//" + host.decode("ascii")).hostname or ""
        except ValueError:  # not UTF-8, or unmatched brackets
            return False
        address = _address_of(name)
        is_legal = name.rstrip(".") in self._names or (
            address is not None and (address.is_loopback or self._is_everywhere)
        )
        if is_legal and len(self._known) < _MAX_HOSTS:
            self._known.add(host)
        return is_legal

    def allows_origin(self, origin: bytes) -> bool:
        """Return whether a page of ``origin`` may call the server."""
        scheme, found, host = origin.partition(b"://")
        return self.is_open or (bool(found) and scheme in (b"http", b"https") and self.allows(host))


def check_head(
    limits: HttpLimits, url_bytes: int, version: str, headers: Sequence[tuple[bytes, bytes]], hosts: HostRule | None
) -> RdukitError | None:
    """Return the reason to refuse a request by its head alone; names of ``headers`` are in lower case.

    Args:
        hosts: allowed host names; None allows all, because callers have tokens.
    """
    size, host, number_of_hosts, origin, is_chunked = url_bytes, b"", 0, None, False
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name == b"host":
            host, number_of_hosts = value, number_of_hosts + 1
        elif name == b"origin":
            origin = value
        elif name == b"transfer-encoding":
            is_chunked = True
    if size > limits.header_bytes:
        return headers_too_large(limits)
    if number_of_hosts > 1:
        return MalformedRequest("the request has several Host headers; expected one", field="host")
    if version == "1.0":
        if is_chunked:
            words = "the request is HTTP/1.0 with Transfer-Encoding; expected HTTP/1.1, or a Content-Length"
            return MalformedRequest(words, field="transfer-encoding")
    elif not number_of_hosts:
        return MalformedRequest("the request has no Host header; HTTP/1.1 requires one", field="host")
    if hosts is None:
        return None
    if number_of_hosts and not hosts.allows(host):
        return _foreign("host", host)
    if origin is not None and not hosts.allows_origin(origin):
        return _foreign("origin", origin)
    return None


def headers_too_large(limits: HttpLimits) -> HeadersTooLarge:
    """Return the error for a head that is too long."""
    limit = limits.header_bytes
    message = f"the request line and headers have more than {limit} bytes ({limits.header_setting})"
    return HeadersTooLarge(message, field="headers", limit=limit)


def choose_connections(wanted: int, files: int) -> int:
    """Return the maximum number of connections for a process that may have ``files`` open files."""
    return max(8, min(wanted, files - RESERVED_FILES if files > 2 * RESERVED_FILES else files // 2))


def _foreign(field: str, value: bytes) -> PermissionDenied:
    shown = ascii(value[:80].decode("latin-1"))
    return PermissionDenied(
        f"{field.capitalize()} {shown} is not a name of this box; without tokens a box accepts only loopback names, "
        "its listening address, and the names in box.hosts",
        field=field,
    )


def _address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None

"""A store of torch by which ranks meet, that only ranks with their training's token can use.

torch's own store answers every process that reaches its port. This one serves only connections that prove the token
(``handshake``), and torch's groups use it through the methods that torch calls on stores. The process that serves a
store uses its entries directly. Its port refuses connections from the moment at which that process ends.

Source: ours; the methods and their meaning are those of torch's ``TCPStore``.
"""

import logging
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from functools import partial
from typing import Final

import torch.distributed as dist

from rdukit.errors import Unauthenticated
from rdukit_node.leases.launch import LOOPBACK
from rdukit_runtime.collectives.handshake import Frames, greet_client, greet_server
from rdukit_runtime.collectives.membership import Address
from rdukit_runtime.collectives.rank_port import keep_from_forks
from rdukit_runtime.engine.torch_private import Store

logger = logging.getLogger(__name__)

#: Seconds in which a connection and its proofs must be complete, and in which a store must answer afterwards.
GREETING_S, ANSWER_S = 4.0, 30.0
#: Connections without a proof that a store has at a time; it closes further ones.
_LARGEST_CROWD: Final = 512
#: Seconds between looks whether a process that waits for a key has gone.
_LOOK_S: Final = 0.5
#: Seconds between attempts to connect to a store that is not served yet.
_POLL_S: Final = 0.05
#: Longest wait for a key, in seconds: a year.
_LONGEST_S: Final = 3.2e7
_HEAD: Final = struct.Struct("!BdI")
_PART: Final = struct.Struct("!I")
_DONE, _TIMED_OUT, _REFUSED = 0, 1, 2


class StoreCall(IntEnum):
    """Calls of a store."""

    SET, GET, WAIT, ADD, CHECK, COMPARE_SET, APPEND, DELETE, COUNT, LIST = range(10)


def encode_parts(number: int, wait_s: float, parts: Sequence[bytes]) -> bytes:
    """Return a frame's content for a call or an answer (pure)."""
    return _HEAD.pack(number, wait_s, len(parts)) + b"".join(_PART.pack(len(part)) + part for part in parts)


def decode_parts(content: bytes) -> tuple[int, float, list[bytes]]:
    """Return number, seconds and parts of a frame's content (pure).

    Raises:
        ValueError: the content is malformed.
    """
    try:
        number, wait_s, count = _HEAD.unpack_from(content)
        at, parts = _HEAD.size, list[bytes]()
        for _ in range(count):
            (length,) = _PART.unpack_from(content, at)
            at += _PART.size + length
            parts.append(content[at - length : at])
    except struct.error as cause:
        raise ValueError(f"a frame of {len(content)} bytes is cut off") from cause
    if at != len(content):
        raise ValueError(f"a frame of {len(content)} bytes ends at byte {at}")
    return number, wait_s, parts


class StoreEntries:
    """Keys and values of a store, and those that wait for a key."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._changed = threading.Condition()

    def answer(
        self, call: StoreCall, wait_s: float, parts: Sequence[bytes], is_wanted: Callable[[], bool] = lambda: True
    ) -> list[bytes]:  # fmt: skip
        """Run a call.

        Args:
            wait_s: longest wait for missing keys. is_wanted: whether somebody still waits for the answer.
        Raises:
            TimeoutError: a key is missing. ValueError: the call is malformed.
        """
        with self._changed:
            match call, parts:
                case ((StoreCall.GET | StoreCall.WAIT), keys):
                    self._wait(keys, wait_s, is_wanted)
                    return [self._values[key] for key in keys] if call is StoreCall.GET else []
                case StoreCall.CHECK, keys:
                    return [b"1" if all(key in self._values for key in keys) else b"0"]
                case StoreCall.COUNT, []:
                    return [str(len(self._values)).encode()]
                case StoreCall.LIST, []:
                    return list(self._values)
                case StoreCall.DELETE, [key]:
                    return [b"0" if self._values.pop(key, None) is None else b"1"]
                case _:
                    answer = self._change(call, parts)
            self._changed.notify_all()
        return answer

    def _change(self, call: StoreCall, parts: Sequence[bytes]) -> list[bytes]:
        values = self._values
        match call, parts:
            case StoreCall.SET, pairs if len(pairs) % 2 == 0:
                values.update(zip(pairs[::2], pairs[1::2], strict=True))
                return []
            case StoreCall.APPEND, [key, value]:
                values[key] = values.get(key, b"") + value
                return []
            case StoreCall.ADD, [key, amount]:
                values[key] = str(int(values.get(key, b"0")) + int(amount)).encode()
                return [values[key]]
            case StoreCall.COMPARE_SET, [key, expected, desired]:
                if values.get(key, b"") == expected:  # a missing key is set if nothing is expected
                    values[key] = desired
                return [values.get(key, expected)]
        raise ValueError(f"a store has no call {call!r} with {len(parts)} parts")

    def _wait(self, keys: Sequence[bytes], wait_s: float, is_wanted: Callable[[], bool]) -> None:
        end = time.monotonic() + wait_s
        while missing := [key for key in keys if key not in self._values]:
            left = end - time.monotonic()
            if left <= 0 or not is_wanted():
                names = b", ".join(missing[:4]).decode(errors="replace")
                raise TimeoutError(f"wait timeout after {wait_s:g} s for {names}")
            self._changed.wait(min(left, _LOOK_S))


class RankStore(Store):
    """A store of torch, for this process.

    Args:
        ask: runs a call. address: of the server. token: of the training.
    """

    def __init__(
        self, ask: Callable[[StoreCall, float, Sequence[bytes]], list[bytes]], address: Address, token: str
    ) -> None:
        super().__init__()
        self._ask, self.address, self._token = ask, address, token

    @property
    def port(self) -> int:
        """Return the port of the server."""
        return self.address[1]

    @property
    def _limit_s(self) -> float:
        limit: timedelta = self.timeout  # type: ignore[attr-defined]  # what torch's stub lacks
        return limit.total_seconds()

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        self._ask(StoreCall.SET, 0.0, [key.encode(), _bytes(value)])

    def get(self, key: str) -> bytes:
        """Return a key's value; waits for it."""
        (value,) = self._ask(StoreCall.GET, self._limit_s, [key.encode()])
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        limit_s = self._limit_s if timeout is None else timeout.total_seconds()
        self._ask(StoreCall.WAIT, limit_s, [key.encode() for key in keys])

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are set."""
        return self._ask(StoreCall.CHECK, 0.0, [key.encode() for key in keys]) == [b"1"]

    def add(self, key: str, value: int) -> int:
        """Add to a key's number, from 0; returns the sum."""
        return int(self._ask(StoreCall.ADD, 0.0, [key.encode(), str(value).encode()])[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key that has the expected value; returns the value that it has then."""
        return self._ask(StoreCall.COMPARE_SET, 0.0, [key.encode(), _bytes(expected), _bytes(desired)])[0]

    def append(self, key: str, value: str | bytes) -> None:
        """Append to a key's value."""
        self._ask(StoreCall.APPEND, 0.0, [key.encode(), _bytes(value)])

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return several keys' values; waits for them."""
        return self._ask(StoreCall.GET, self._limit_s, [key.encode() for key in keys])

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        """Set several keys at once."""
        pairs = (part for key, value in zip(keys, values, strict=True) for part in (key.encode(), _bytes(value)))
        self._ask(StoreCall.SET, 0.0, list(pairs))

    def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether it was there."""
        return self._ask(StoreCall.DELETE, 0.0, [key.encode()]) == [b"1"]

    def num_keys(self) -> int:
        """Return the number of keys."""
        return int(self._ask(StoreCall.COUNT, 0.0, [])[0])

    def list_keys(self) -> list[str]:
        """Return all keys."""
        return [key.decode() for key in self._ask(StoreCall.LIST, 0.0, [])]

    deleteKey, getNumKeys = delete_key, num_keys  # names by which torch's own stores call another one

    def has_extended_api(self) -> bool:
        """Return that ``append``, ``multi_get`` and ``multi_set`` exist."""
        return True

    def clone(self) -> "RankStore":
        """Return another connection to the same store."""
        return connect_rank_store(self.address, self._token, timedelta(seconds=self._limit_s))


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


# -- the rank that connects --------------------------------------------------------------------------------------------


def connect_rank_store(address: Address, token: str, timeout: timedelta, *, patience_s: float = 0.0) -> RankStore:
    """Return the store that another rank serves.

    Args:
        timeout: longest wait of ``get`` and ``wait``. patience_s: seconds in which a refused connection is tried again.
    Raises:
        Unauthenticated: what answers there does not have the token.
        RuntimeError: torch's; the store does not answer within ``GREETING_S``.
    """
    host, port = address
    name, end = f"{host}:{port}", time.monotonic() + patience_s
    while True:
        try:
            frames = _greet(address, token, name)
            break
        except OSError as cause:
            if time.monotonic() >= end:
                raise dist.DistNetworkError(_explain(name, cause)) from cause
        time.sleep(_POLL_S)
    store = RankStore(partial(_ask_server, frames, threading.Lock(), name), address, token)
    store.set_timeout(timeout)
    weakref.finalize(store, frames.connection.close).atexit = False
    return store


def _greet(address: Address, token: str, name: str) -> Frames:
    connection = socket.create_connection(address, GREETING_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return greet_server(connection, token, name)
    except BaseException:
        connection.close()
        raise


def _explain(name: str, cause: OSError) -> str:
    if isinstance(cause, TimeoutError):
        return f"{name} does not answer"
    return f"{name} cannot be reached: {cause.strerror or cause}"


def _ask_server(
    frames: Frames, lock: threading.Lock, name: str, call: StoreCall, wait_s: float, parts: Sequence[bytes]
) -> list[bytes]:  # fmt: skip
    with lock:
        try:
            frames.connection.settimeout(min(wait_s, _LONGEST_S) + ANSWER_S)
            frames.send(encode_parts(call, min(wait_s, _LONGEST_S), parts))
            status, _, found = decode_parts(frames.receive())
        except OSError as cause:  # an answer may come later: the next call must not read it
            frames.connection.close()
            raise dist.DistNetworkError(f"the ranks' store at {name} does not answer: {cause}") from cause
    if status == _DONE:
        return found
    text = b"".join(found).decode(errors="replace")
    raise dist.DistStoreError(text) if status == _TIMED_OUT else ValueError(text)


# -- the rank that serves ----------------------------------------------------------------------------------------------


def serve_rank_store(token: str, timeout: timedelta, *, host: str = "", port: int = 0) -> RankStore:
    """Return a new store that this process serves until the store is no longer used.

    Args:
        timeout: longest wait of ``get`` and ``wait`` in this process.
        host: address to listen at; empty: all. port: 0: a free one.
    Raises:
        RuntimeError: torch's; the port is taken.
    """
    try:
        listener = _listen(host, port)
    except OSError as cause:
        raise dist.DistNetworkError(f"port {port} cannot be served: {cause.strerror}; choose a free one") from cause
    entries = StoreEntries()

    def ask(call: StoreCall, wait_s: float, parts: Sequence[bytes]) -> list[bytes]:
        try:
            return entries.answer(call, wait_s, parts)
        except TimeoutError as late:
            raise dist.DistStoreError(str(late)) from late

    store = RankStore(ask, (host or LOOPBACK, listener.getsockname()[1]), token)
    store.set_timeout(timeout)
    _StoreServer(listener, entries, token).start(store)
    return store


def _listen(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        with suppress(OSError):  # the machine has no IPv6; if the port is taken, the next attempt says so
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_LARGEST_CROWD
            )
    return socket.create_server((host, port), backlog=_LARGEST_CROWD)


class _StoreServer:
    """Threads that answer the processes that have connected: one for each connection."""

    def __init__(self, listener: socket.socket, entries: StoreEntries, token: str) -> None:
        self._listener, self._entries, self._token = listener, entries, token
        keep_from_forks(listener)
        self._pid = os.getpid()
        #: Connections without a proof so far, and all open ones.
        self._unproved = threading.BoundedSemaphore(_LARGEST_CROWD)
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def start(self, store: RankStore) -> None:
        """Serve until ``store`` is no longer used."""
        weakref.finalize(store, self._close).atexit = False
        threading.Thread(target=self._accept, name="rank-store", daemon=True).start()

    def _close(self) -> None:
        """Close the port and all connections. A fork leaves them to the process that serves."""
        if os.getpid() != self._pid:
            return
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # ends the threads' calls
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(_POLL_S)  # no descriptor is free
                continue
            if not self._unproved.acquire(blocking=False):
                connection.close()
                continue
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection, address), name="rank-store", daemon=True).start()

    def _serve(self, connection: socket.socket, address: tuple[str, int]) -> None:
        with connection:
            try:
                frames = self._greet(connection)
            except Unauthenticated as error:
                logger.warning("event=rank-refused peer=%s: closed a connection: %s", address[0], error.message)
                return
            except OSError:
                return
            finally:
                self._unproved.release()
            connection.settimeout(None)
            with suppress(OSError, ValueError):
                while True:
                    call, wait_s, parts = decode_parts(frames.receive())
                    frames.send(self._answer(connection, StoreCall(call), wait_s, parts))

    def _greet(self, connection: socket.socket) -> Frames:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return greet_client(connection, self._token, time.monotonic() + GREETING_S)

    def _answer(self, connection: socket.socket, call: StoreCall, wait_s: float, parts: list[bytes]) -> bytes:
        try:
            return encode_parts(_DONE, 0.0, self._entries.answer(call, wait_s, parts, partial(_is_there, connection)))
        except TimeoutError as late:
            return encode_parts(_TIMED_OUT, 0.0, [str(late).encode()])
        except ValueError as error:
            return encode_parts(_REFUSED, 0.0, [str(error).encode()])


def _is_there(connection: socket.socket) -> bool:
    """Return whether the process at the other end has not closed the connection."""
    looked = select.poll()
    looked.register(connection, select.POLLIN)
    if not looked.poll(0):
        return True
    with suppress(OSError):
        return bool(connection.recv(1, socket.MSG_PEEK))
    return False

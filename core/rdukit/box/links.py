"""Links between boxes of one job on several nodes: streams from a box's loopback to another's, through their workers.

A box's only network is its own loopback, where each part of a job has the same address in all boxes. In the box of one
part a relay (``rdukit.box.relay``) listens at the other parts' addresses. It forwards a connection through a UNIX
socket to the box's worker. That worker connects by TCP to the worker of the other part, and through its UNIX socket the
relay there connects to the part's own address. Relays connect to workers, never workers to relays: a worker must not
open a path that a box may have replaced.

Workers authenticate by a key that is derived from the attempt's token; a box never has it. The streams are not
encrypted, as between ranks of any launcher.

Source: ours.
"""

import asyncio
import hashlib
import hmac
import secrets
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, Unauthenticated, Unavailable

#: Where ranks meet: a port at the address of part 0.
STORE_PORT: Final = 46_999
#: First and last ephemeral port of a box's kernel.
LOCAL_PORTS: Final = (47_000, 47_127)
#: Ephemeral ports of listeners. If possible, Linux reserves every second port of a range for outgoing connections,
#: which could not use a port at which a relay listens.
PORTS: Final = range(LOCAL_PORTS[0] + 1, LOCAL_PORTS[1] + 1, 2)
#: Maximum parts of a job.
MAX_PARTS: Final = 64
#: Connections that a relay keeps waiting at its worker for streams from other parts.
WAITING: Final = 8
#: Seconds for a worker's proof of the key, and for a relay's request.
HELLO_S: Final = 10.0

#: First byte from a relay: ``C``, before a part and a port to connect to, or ``W``, to wait for a port.
CONNECT: Final = b"C"
WAIT: Final = b"W"
_TARGET: Final = struct.Struct("!HH")
_PORT: Final = struct.Struct("!H")
_HELLO: Final = struct.Struct("!HHH32s32s")
_NONCE: Final = 32
_CHUNK: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class LinkedPart:
    """Place of a part in its job: the value of the box's setting ``box.part``."""

    part: int
    parts: int
    #: Rank of its first member; ``world`` is the number of members of all parts.
    first_rank: int
    world: int
    #: The UNIX socket of the box's worker.
    socket: Path

    def to_text(self) -> str:
        """Return the value of the setting ``box.part``."""
        return f"{self.part}/{self.parts}:{self.first_rank}/{self.world}@{self.socket}"


def read_part(text: str) -> LinkedPart | None:
    """Read the value of the setting ``box.part`` (pure); ``None``: the job has one part.

    Raises:
        InvalidArgument: the value is malformed.
    """
    if not text:
        return None
    place, _, socket = text.partition("@")
    try:
        (part, parts), (first, world) = (map(int, pair.split("/")) for pair in place.split(":"))
    except ValueError:
        part, parts, first, world = 0, 0, 0, 0
    if not (0 <= part < parts <= MAX_PARTS and 0 <= first < world and (first == 0) == (part == 0) and socket):
        raise InvalidArgument(f"box.part is {text[:80]!r}; expected PART/PARTS:FIRST-RANK/MEMBERS@SOCKET")
    return LinkedPart(part, parts, first, world, Path(socket))


def part_address(part: int) -> str:
    """Return a part's address, which is the same in every box of its job (pure)."""
    if not 0 <= part < MAX_PARTS:
        raise ValueError(f"part is {part}; expected 0 to {MAX_PARTS - 1}")
    return f"127.77.0.{part + 1}"


def ports_of(part: int) -> list[int]:
    """Return the ports at which a part may be reached (pure)."""
    return [STORE_PORT, *PORTS] if part == 0 else list(PORTS)


def is_port_of(part: int, port: int) -> bool:
    """Return whether a part may be reached at a port (pure)."""
    return port in PORTS or (part == 0 and port == STORE_PORT)


def link_key(attempt_id: str, token: str) -> bytes:
    """Derive the key of an attempt's links from its fencing token (pure)."""
    return hmac.digest(token.encode(), f"rdukit link 1 {attempt_id}".encode(), hashlib.sha256)


def pack_target(part: int, port: int) -> bytes:
    """Encode the target of a relay's connection, which follows ``CONNECT`` (pure)."""
    return _TARGET.pack(part, port)


async def read_target(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Read a part and a port. Raises: EOFError: the other side is gone."""
    part, port = _TARGET.unpack(await reader.readexactly(_TARGET.size))
    return part, port


def pack_port(port: int) -> bytes:
    """Encode the port that a waiting relay is to connect to (pure)."""
    return _PORT.pack(port)


async def read_port(reader: asyncio.StreamReader) -> int:
    """Read a port. Raises: EOFError: the other side is gone."""
    (port,) = _PORT.unpack(await reader.readexactly(_PORT.size))
    return int(port)


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, origin: int, part: int, port: int
) -> None:
    """Request from another worker a stream from part ``origin`` to a port of ``part``; both prove that they have the
    key.

    Raises:
        Unauthenticated: the other worker lacks the key. EOFError: it refused.
    """
    theirs, ours = await reader.readexactly(_NONCE), secrets.token_bytes(_NONCE)
    asked = _TARGET.pack(origin, part) + _PORT.pack(port) + theirs + ours
    writer.write(_HELLO.pack(origin, part, port, ours, hmac.digest(key, b"asks" + asked, hashlib.sha256)))
    await writer.drain()
    answer = await reader.readexactly(hashlib.sha256().digest_size)
    if not hmac.compare_digest(answer, hmac.digest(key, b"gives" + asked, hashlib.sha256)):
        raise Unauthenticated("the server at another part's address did not prove that it has the attempt's key")


async def be_greeted(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, part: int
) -> tuple[int, int]:  # fmt: skip
    """Answer a worker that requests a stream to ``part``; return the origin part and the port.

    Raises:
        Unauthenticated: the worker lacks the key, or requests another part's port. EOFError: it is gone.
    """
    ours = secrets.token_bytes(_NONCE)
    writer.write(ours)
    origin, wanted, port, theirs, proof = _HELLO.unpack(await reader.readexactly(_HELLO.size))
    asked = _TARGET.pack(origin, wanted) + _PORT.pack(port) + ours + theirs
    if not hmac.compare_digest(proof, hmac.digest(key, b"asks" + asked, hashlib.sha256)):
        raise Unauthenticated("the client that asked for a stream did not prove that it has the attempt's key")
    if wanted != part or not is_port_of(part, port):
        raise Unauthenticated(f"port {port} of part {wanted} cannot be reached from part {part}")
    writer.write(hmac.digest(key, b"gives" + asked, hashlib.sha256))
    await writer.drain()
    return origin, port


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def join(one: Stream, other: Stream) -> None:
    """Forward bytes between two streams in both directions until both have ended; then close both."""
    try:
        await asyncio.gather(_pass_on(one[0], other[1]), _pass_on(other[0], one[1]))
    except OSError:
        pass
    finally:
        for _, writer in (one, other):
            await close(writer)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a stream, whether or not the other side is gone already."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@contextmanager
def in_thread(
    name: str, start: Callable[[], Coroutine[Any, Any, None]], close: Callable[[], Coroutine[Any, Any, None]],
    limit_s: float, failure: str,
) -> Iterator[asyncio.AbstractEventLoop]:  # fmt: skip
    """Serve links in an event loop in a separate thread while the block lasts; the block begins after ``start``.

    Raises:
        Unavailable: the start failed or took longer than ``limit_s``; the message is ``failure`` with the reason.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()
    try:
        try:
            asyncio.run_coroutine_threadsafe(start(), loop).result(limit_s)
        except (OSError, TimeoutError) as cause:
            raise Unavailable(f"{failure}: {cause}") from cause
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result(limit_s)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

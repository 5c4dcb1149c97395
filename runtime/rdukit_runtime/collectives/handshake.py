"""Proof between two ranks that both have their training's token, and frames that only they can write.

The connecting rank sends a nonce. The serving one answers with its own nonce and a proof over both, and the connecting
rank answers with its proof. Proofs are HMAC-SHA256 by the token, so the token never crosses a connection. Every frame
carries a MAC by a key of this connection, over its direction, number and content. Frames are not encrypted.

Source: ours; the exchange is that of ``rdukit.box.links``.
"""

import hmac
import secrets
import socket
import struct
import time
from typing import Final

from rdukit.errors import Unauthenticated

#: First bytes of a connection: protocol and version.
HELLO: Final = b"rdukit-ranks-1\n\n"
#: Largest content of a frame, in bytes.
LARGEST_FRAME: Final = 1 << 26
_NONCE, _MAC = 32, 32
_LENGTH: Final = struct.Struct("!I")
_NUMBER: Final = struct.Struct("!Q")
_CLIENT, _SERVER = b"client", b"server"


def combine_tokens(configured: str, shared: str) -> str:
    """Return the token of a training (pure).

    Args:
        configured: token of the user's settings; may be empty. shared: secret that the ranks share otherwise.
    """
    return hmac.digest(configured.encode(), b"rdukit ranks " + shared.encode(), "sha256").hex()


def prove(token: str, role: bytes, nonces: bytes) -> bytes:
    """Return the proof that a side has the token (pure)."""
    return hmac.digest(token.encode(), role + nonces, "sha256")


class Frames:
    """A connection whose both sides have proved their token.

    Args:
        key: of this connection. own, other: roles of this side and of the other.
    """

    def __init__(self, connection: socket.socket, key: bytes, own: bytes, other: bytes) -> None:
        self.connection = connection
        self._key, self._own, self._other = key, own, other
        #: Frames so far.
        self._sent = self._received = 0

    def send(self, content: bytes) -> None:
        """Send a frame.

        Raises:
            ValueError: the content is too large. OSError: the connection is broken.
        """
        if len(content) > LARGEST_FRAME:
            raise ValueError(
                f"{len(content)} bytes are too many for the ranks' store; expected at most {LARGEST_FRAME}"
            )
        mac = self._mac(self._own, self._sent, content)
        self._sent += 1
        self.connection.sendall(_LENGTH.pack(len(content)) + mac + content)

    def receive(self) -> bytes:
        """Return the content of the next frame.

        Raises:
            ConnectionError: the other side closed the connection, or the frame is not its own. OSError: a timeout.
        """
        head = read_exactly(self.connection, _LENGTH.size + _MAC)
        (length,) = _LENGTH.unpack_from(head)
        if length > LARGEST_FRAME:
            raise ConnectionError(f"a frame has {length} bytes; expected {LARGEST_FRAME} at most")
        content = read_exactly(self.connection, length)
        if not hmac.compare_digest(head[_LENGTH.size :], self._mac(self._other, self._received, content)):
            raise ConnectionError("a frame was not written by the rank that opened the connection")
        self._received += 1
        return content

    def _mac(self, role: bytes, number: int, content: bytes) -> bytes:
        return hmac.digest(self._key, role + _NUMBER.pack(number) + content, "sha256")


def greet_server(connection: socket.socket, token: str, name: str) -> Frames:
    """Prove the token to the store at the other end of a connection, which proves it first.

    Args:
        name: of the store, for the error.
    Raises:
        Unauthenticated: the store does not have the token. OSError: no answer, or the connection is broken.
    """
    ours = secrets.token_bytes(_NONCE)
    connection.sendall(HELLO + ours)
    try:
        answer = read_exactly(connection, _NONCE + _MAC)
    except ConnectionError as cause:
        raise _unknown(name) from cause
    nonces = ours + answer[:_NONCE]
    if not hmac.compare_digest(answer[_NONCE:], prove(token, _SERVER, nonces)):
        raise _unknown(name)
    connection.sendall(prove(token, _CLIENT, nonces))
    return Frames(connection, prove(token, b"frames", nonces), _CLIENT, _SERVER)


def greet_client(connection: socket.socket, token: str, end: float) -> Frames:
    """Prove the token to a process that has connected, and check its proof.

    Args:
        end: monotonic time until which the process must have sent its proof.
    Raises:
        Unauthenticated: the process does not have the token. OSError: it does not answer, or is gone.
    """
    hello = read_exactly(connection, len(HELLO) + _NONCE, end)
    if not hello.startswith(HELLO):
        raise Unauthenticated("it uses another protocol")
    nonces = hello[len(HELLO) :] + (ours := secrets.token_bytes(_NONCE))
    connection.sendall(ours + prove(token, _SERVER, nonces))
    try:
        proof = read_exactly(connection, _MAC, end)
    except ConnectionError as cause:  # a rank with another token closes the connection
        raise Unauthenticated("it gave no proof of the token") from cause
    if not hmac.compare_digest(proof, prove(token, _CLIENT, nonces)):
        raise Unauthenticated("it does not have the token")
    return Frames(connection, prove(token, b"frames", nonces), _SERVER, _CLIENT)


def read_exactly(connection: socket.socket, count: int, end: float | None = None) -> bytes:
    """Return ``count`` bytes.

    Args:
        end: monotonic time until which they must have come.
    Raises:
        ConnectionError: the other side closed the connection before. OSError: a timeout.
    """
    content = bytearray()
    while len(content) < count:
        if end is not None:
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError("the deadline has passed")
            connection.settimeout(left)
        part = connection.recv(min(count - len(content), 1 << 16))
        if not part:
            raise ConnectionError("the other side closed the connection")
        content += part
    return bytes(content)


def _unknown(name: str) -> Unauthenticated:
    return Unauthenticated(
        f"the store at {name} has another token than this rank, so it may belong to another training; set "
        "$RDUKIT_DISTRIBUTED_TOKEN to the same value on every rank, and MASTER_PORT to a port that no other program "
        "uses"
    )

"""Access to a server: opaque tokens, one a line in a file, and a log with one JSON line per inference request."""

import asyncio
import contextlib
import hashlib
import hmac
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, Unauthenticated

#: Headers that are remembered: one token may be sent in several spellings.
MAX_REMEMBERED: Final = 256


class Access:
    """Tokens that a server takes; without any, every caller is let in."""

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._digests = [hashlib.sha256(token.encode()).digest() for token in tokens]
        #: Headers that were let in; found by a hash with a secret of this process.
        self._let_in: set[bytes] = set()

    @classmethod
    def from_file(cls, path: str) -> "Access":
        """Read tokens from a file; ``#`` begins a comment. An empty path means no tokens.

        Raises:
            InvalidArgument: the file cannot be read, or is empty.
        """
        if not path:
            return cls()
        try:
            lines = [line.partition("#")[0].strip() for line in Path(path).read_text().splitlines()]
        except OSError as cause:
            raise InvalidArgument(f"box.tokens: {path} cannot be read: {cause.strerror}") from cause
        tokens = [line for line in lines if line]
        if not tokens:
            raise InvalidArgument(f"box.tokens: {path} holds no token; expected one per line")
        return cls(tokens)

    @property
    def is_open(self) -> bool:
        """Return whether requests need no token."""
        return not self._digests

    def check(self, header: bytes | None) -> None:
        """Check the value of an ``authorization`` header.

        Raises:
            Unauthenticated: the bearer token is missing or unknown.
        """
        if not self._digests or header in self._let_in:
            return
        scheme, _, token = (header or b"").partition(b" ")
        if scheme.lower() == b"bearer":
            digest = hashlib.sha256(token.strip()).digest()
            # Compare every known token, so that the time does not depend on the token.
            if header and sum(hmac.compare_digest(digest, known) for known in self._digests):
                if len(self._let_in) < MAX_REMEMBERED:
                    self._let_in.add(header)
                return
        raise Unauthenticated("send the header 'Authorization: Bearer TOKEN' with one of this box's tokens")


#: Bytes of collected lines, a page, after which they are written. Requests wait meanwhile: 32 callers 2 ms at 64 KiB.
_BLOCK: Final = 1 << 12
#: Seconds after which they are written anyway.
_FLUSH_S: Final = 0.5


class AccessLog:
    """Log of requests in a file (``-``: stdout). Belongs to one event loop."""

    def __init__(self, path: str) -> None:
        """Open ``path`` for appending; empty: nothing is written."""
        self._stream = None if not path else sys.stdout.buffer if path == "-" else open(path, "ab")  # noqa: SIM115
        self._lines: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """Return whether lines are logged."""
        return self._stream is not None

    def add(self, wire: str, model: str, version: str, status: int, rows: int, queue_us: int, compute_us: int) -> None:
        """Log an answered request."""
        line = (
            f'{{"at":{time.time():.6f},"wire":"{wire}","model":"{model}","version":"{version}","status":{status},'
            f'"rows":{rows},"queue_us":{queue_us},"compute_us":{compute_us}}}\n'
        ).encode()
        self._lines.append(line)
        self._size += len(line)
        if self._size >= _BLOCK:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write the collected lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines, self._size = self._lines, [], 0
        if self._stream is not None and lines:
            with contextlib.suppress(OSError):
                self._stream.write(b"".join(lines))
                self._stream.flush()

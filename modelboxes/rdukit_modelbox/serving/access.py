"""Who may call: opaque tokens, one a line in a file."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, Unauthenticated

#: Headers that are remembered: one token may be sent in several spellings.
MOST_LET_IN: Final = 256


class Access:
    """The tokens that a box takes; none: every caller is let in."""

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._digests = [hashlib.sha256(token.encode()).digest() for token in tokens]
        #: Headers that were let in; found by a hash with a secret of this process.
        self._let_in: set[bytes] = set()

    @classmethod
    def from_file(cls, path: str) -> "Access":
        """Tokens from a file; ``#`` begins a comment. An empty path means no tokens.

        Raises:
            InvalidArgument: it cannot be read, or holds no token.
        """
        if not path:
            return cls()
        try:
            lines = [line.partition("#")[0].strip() for line in Path(path).read_text().splitlines()]
        except OSError as cause:
            raise InvalidArgument(f"box.tokens: {path} cannot be read: {cause.strerror}") from cause
        tokens = [line for line in lines if line]
        if not tokens:
            raise InvalidArgument(f"box.tokens: {path} holds no token; legal: one a line")
        return cls(tokens)

    @property
    def is_open(self) -> bool:
        """No token is asked for."""
        return not self._digests

    def check(self, header: bytes | None) -> None:
        """Let in, or not, by the value of an ``authorization`` header.

        Raises:
            Unauthenticated: no bearer token, or one that is not known.
        """
        if not self._digests or header in self._let_in:
            return
        scheme, _, token = (header or b"").partition(b" ")
        if scheme.lower() == b"bearer":
            digest = hashlib.sha256(token.strip()).digest()
            # Every known token is compared, so that the time tells nothing.
            if header and sum(hmac.compare_digest(digest, known) for known in self._digests):
                if len(self._let_in) < MOST_LET_IN:
                    self._let_in.add(header)
                return
        raise Unauthenticated("send the header 'Authorization: Bearer TOKEN' with one of this box's tokens")

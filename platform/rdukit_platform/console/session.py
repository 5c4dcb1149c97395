"""The console's login cookie (pure): which token logged in and until when, signed with a key of this installation.

The API token itself is never in the cookie. Revoking the token ends the session, because each request looks it up.
"""

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Final

COOKIE: Final = "rdukit_console"
SESSION_S: Final = 12 * 3600
KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A login: digest of the API token, and the end in seconds since the epoch."""

    token_sha256: str
    expires_at: float


def seal(session: ConsoleSession, key: bytes) -> str:
    """The cookie's value."""
    body = json.dumps([session.token_sha256, session.expires_at]).encode()
    return f"{base64.urlsafe_b64encode(body).decode()}.{_sign(body, key)}"


def find_session(cookie: str | None, key: bytes, now: float) -> ConsoleSession | None:
    """The session in a cookie; ``None`` when there is no cookie, or it is not ours, altered or too old."""
    if not cookie or "." not in cookie:
        return None
    text, signature = cookie.rsplit(".", 1)
    try:
        body = base64.urlsafe_b64decode(text.encode())
        if not hmac.compare_digest(_sign(body, key).encode(), signature.encode()):
            return None
        digest, expires_at = json.loads(body)
    except (ValueError, TypeError, binascii.Error):
        return None
    return ConsoleSession(str(digest), float(expires_at)) if float(expires_at) > now else None


def _sign(body: bytes, key: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()

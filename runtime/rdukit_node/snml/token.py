"""The secret that lets a client change the node: a private file, and the check of a call's metadata.

Source: ours. The real interface listens on loopback without any authentication and leaves changes to root.
"""

import hmac
import logging
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from rdukit.files.atomic import write_atomic

logger = logging.getLogger(__name__)

AUTHORIZATION: Final = "authorization"
_SCHEME: Final = "bearer"
_MODE: Final = 0o600
_MIN: Final = 32
_MAX: Final = 1024


def load_or_create_token(path: Path) -> str:
    """Return the node's token. A missing file, or one that others could read or write, is replaced.

    Raises:
        InvalidArgument: the file cannot be read or written.
    """
    try:
        found = _read(path)
        if found is not None:
            return found
        token = secrets.token_urlsafe(32)
        write_atomic(path, token.encode() + b"\n", _MODE)
    except OSError as cause:
        raise InvalidArgument(
            f"cannot keep the administration token in {path}: {cause}; choose another state folder"
        ) from cause
    return token


def read_token(path: Path) -> str:
    """Return the token of a node, for its clients.

    Raises:
        NotFound: the node has not written a token.
        PermissionDenied: this user may not read it.
    """
    try:
        text = path.read_text().strip()
    except FileNotFoundError as cause:
        raise NotFound(f"there is no administration token at {path}; start the node, or pass its token") from cause
    except OSError as cause:
        raise PermissionDenied(
            f"only the node's user can read the administration token {path} ({cause.strerror}); ask the administrator"
        ) from cause
    return text


def check_authorization(metadata: Iterable[tuple[str, str | bytes]], token: str) -> None:
    """Check that a call's metadata carries ``authorization: Bearer <token>``.

    Raises:
        Unauthenticated: the token is missing or wrong.
    """
    given = [value for key, value in metadata if key.lower() == AUTHORIZATION]
    need = "changes need the metadata 'authorization: Bearer <token>' with the token from the node's admin.token file"
    if not given:
        raise Unauthenticated(f"the call carries no token; {need}")
    value = given[-1]
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    scheme, _, secret = text.partition(" ")
    if scheme.lower() != _SCHEME or not hmac.compare_digest(secret.strip().encode(), token.encode()):
        raise Unauthenticated(f"the call's token is wrong; {need}")


def _read(path: Path) -> str | None:
    """Return the token in the file if it can still be a secret."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        text = stream.read(_MAX).decode(errors="replace").strip()
    is_private = stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o077 == 0
    if is_private and status.st_uid in {os.geteuid(), 0} and len(text) >= _MIN:
        return text
    logger.warning("event=token-replaced path=%s reason=%s", path, "others could read it" if text else "empty")
    return None

"""Whether a PEF's native libraries may be loaded: a library is code, and is trusted like a program.

An installation has a secret key in its home folder; what it compiles is signed with it. A PEF that came from
elsewhere runs from its portable kernels instead.
"""

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from rdukit.files import write_atomic
from rdukit.settings import home_folder

_KEY_BYTES = 32


def key_path() -> Path:
    """Where the installation's key lies; readable by its owner only."""
    return home_folder() / "kernels" / "trust.key"


def sign(digests: Mapping[str, str]) -> str:
    """Sign entry digests with this installation's key, which is made on first use."""
    return _signature(_own_key(), digests)


def is_trusted(digests: Mapping[str, str], signature: str) -> bool:
    """Whether ``signature`` was made by this installation for exactly these digests."""
    try:
        key = key_path().read_bytes()
    except OSError:
        return False
    return len(key) == _KEY_BYTES and hmac.compare_digest(_signature(key, digests), signature)


def _signature(key: bytes, digests: Mapping[str, str]) -> str:
    return hmac.new(key, json.dumps(dict(sorted(digests.items()))).encode(), "sha256").hexdigest()


def _own_key() -> bytes:
    path = key_path()
    if not path.exists():
        made = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        write_atomic(made, secrets.token_bytes(_KEY_BYTES), mode=0o600)
        with contextlib.suppress(FileExistsError):
            os.link(made, path)  # unlike a rename, never replaces the key that another process just made
        made.unlink()
    return path.read_bytes()

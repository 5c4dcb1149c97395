"""Signatures of this installation's PEFs: a native library is code, and needs the same trust as a program.

An installation signs its PEFs with a secret key in its home folder. A PEF from elsewhere runs from its portable kernels
instead.

Code of an untrusted owner has a separate home folder, with a key that is derived from the installation's
(``write_derived_key``). Its signatures are trusted only in that folder, so the key need not be hidden from that code.
"""

import contextlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.files.atomic import write_atomic
from rdukit.files.home import PRIVATE, make_folder, mend_home, private_home
from rdukit.settings import home_folder

_KEY_BYTES: Final = 32
#: Entry of the index that is not signed.
_SIGNATURE: Final = "signature"


def key_path(home: Path | None = None) -> Path:
    """Return the path of an installation's key, by default this one's; only the owner of the folder can read it."""
    return (home or home_folder()) / "kernels" / "trust.key"


def sign(index: Mapping[str, Any]) -> str:
    """Sign a PEF's index, and by its digests all entries, with this installation's key, which is created on first
    use.
    """
    return _signature(_own_key(), index)


def is_trusted(index: Mapping[str, Any]) -> bool:
    """Return whether the index has this installation's valid signature."""
    mend_home()
    try:
        key = key_path().read_bytes()
    except OSError:
        return False
    signature = index.get(_SIGNATURE)
    if len(key) != _KEY_BYTES or not isinstance(signature, str) or not signature.isascii():
        return False
    return hmac.compare_digest(_signature(key, index), signature)


def derive_key(owner: str) -> bytes:
    """Derive the key of an owner's code; it is always the same.

    Neither the installation's key nor another owner's can be computed from it.

    Args:
        owner: unique name, ``tenant:<id>``.
    """
    return hmac.new(_own_key(), b"key of " + owner.encode(), "sha256").digest()


def write_derived_key(home: Path, owner: str) -> None:
    """Write the key of ``owner`` to the home folder of its code, which other users must not be able to write."""
    derived = derive_key(owner)
    make_folder(home.parent)
    home.mkdir(mode=PRIVATE, exist_ok=True)
    path = key_path(home)
    with contextlib.suppress(OSError):
        if path.read_bytes() == derived:
            return
    write_atomic(path, derived, mode=0o600)


def _signature(key: bytes, index: Mapping[str, Any]) -> str:
    signed = {name: value for name, value in index.items() if name != _SIGNATURE}
    return hmac.new(key, json.dumps(signed, sort_keys=True).encode(), "sha256").hexdigest()


def _own_key() -> bytes:
    private_home()
    path = key_path()
    if not path.exists():
        made = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        write_atomic(made, secrets.token_bytes(_KEY_BYTES), mode=0o600)
        with contextlib.suppress(FileExistsError):
            os.link(made, path)  # a rename would replace a key that another process has just made
        made.unlink()
    return path.read_bytes()

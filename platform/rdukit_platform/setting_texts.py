"""Settings with a syntax of their own: read and checked (pure)."""

import re
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import quote

from rdukit.errors import InvalidArgument

T = TypeVar("T", int, float)

_LABEL: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/-]{0,62})=([A-Za-z0-9._/-]{0,63})")
_BUCKET: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([A-Za-z0-9!_.*'()/-]*))?")
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_keep_days(text: str) -> dict[str, float]:
    """Read ``KIND=DAYS`` with commas, or one number for all kinds (pure). ``*`` is every other kind.

    Raises:
        ValueError: the text is neither.
    """
    found: dict[str, float] = {}
    for word in text.split(","):
        kind, mark, days = word.strip().rpartition("=")
        kind = kind.strip() if mark else "*"
        number = float(days)
        if not kind or kind in found or not 0 <= number < float("inf"):
            raise ValueError(f"{word!r} is not KIND=DAYS, with days from 0, and each kind once")
        found[kind] = number
    return found


def parse_keep_days(text: str) -> str:
    """Return the text if ``read_keep_days`` accepts it."""
    read_keep_days(text)
    return text


def read_node_labels(text: str) -> dict[str, str]:
    """Read ``KEY=VALUE`` with commas (pure).

    Raises:
        ValueError: a word is not of this form, or a key is there twice.
    """
    found: dict[str, str] = {}
    for word in filter(None, (each.strip() for each in text.split(","))):
        match = _LABEL.fullmatch(word)
        if match is None or match[1] in found:
            raise ValueError(f"{word!r} is not KEY=VALUE of letters, digits and ._/-, each key once")
        found[match[1]] = match[2]
    return found


def parse_labels(text: str) -> str:
    """Return the text if ``read_node_labels`` accepts it."""
    read_node_labels(text)
    return text


def parse_node_name(text: str) -> str:
    """Return the text if it may name a node: names are parts of queue names and API paths."""
    if text and not _NODE_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not 1 to 64 letters, digits, dots, - and _, the first a letter or digit")
    return text


def read_bucket(text: str) -> tuple[str, str]:
    """Return bucket and prefix of ``s3://BUCKET/PREFIX`` (pure). The prefix is empty or ends with a slash.

    Raises:
        ValueError: the text is no such address.
    """
    found = _BUCKET.fullmatch(text)
    prefix = "" if found is None else (found[2] or "").strip("/")
    if found is None or any(part in {"", ".", ".."} for part in prefix.split("/") if prefix):
        raise ValueError(f"{text!r} is not s3://BUCKET/PREFIX, of lower-case letters, digits, dots and -")
    return found[1], f"{prefix}/" if prefix else ""


def parse_store(text: str) -> str:
    """Return the text if it may be a store of artifacts: a folder's path, or an address for ``read_bucket``."""
    if "://" in text:
        read_bucket(text)
    return text


def with_password(url: str, password: str) -> str:
    """Return the broker's URL with a password (pure).

    Raises:
        InvalidArgument: it names a user or a password already.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or "@" in rest.partition("/")[0]:
        raise InvalidArgument(
            "broker.url names a user or has no host; with a password file expected redis://HOST:PORT/N"
        )
    return f"{scheme}://:{quote(password, safe='')}@{rest}"


def not_negative(kind: Callable[[str], T]) -> Callable[[str], T]:
    """Return what parses a number of a kind that is 0 or more."""

    def parse(text: str) -> T:
        value = kind(text)
        if not 0 <= float(value) < float("inf"):
            raise ValueError(f"{text} is less than 0")
        return value

    return parse

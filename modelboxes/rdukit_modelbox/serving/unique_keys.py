"""JSON in which no object has a key twice: readers differ in which of the two they take. Pure."""

import json
from typing import Any

from rdukit.errors import InvalidArgument


def refuse_duplicates(text: bytes) -> None:
    """Raises ``InvalidArgument`` that names the first key that an object of ``text`` has twice."""
    try:
        json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as cause:  # a number with thousands of digits, or lists in thousands of lists
        raise InvalidArgument(f"the request is malformed: {cause}") from cause


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidArgument(f"the request has the key {key[:80]!r} twice in one object; legal: once")
        found[key] = value
    return found

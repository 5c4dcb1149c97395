"""Strict JSON, which all readers parse alike: no NaN or infinity, and no duplicate keys. Pure.

NaN and infinities are written as the strings of ``WORDS`` in results, metrics, progress and errors. Source: protobuf's
JSON mapping. With ``null``, readers could not distinguish an infinity from an unknown value.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from rdukit.errors import InvalidArgument, RequestTooLarge

#: Strings for the floats that JSON lacks.
WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
#: One step of the search: up to 20,000 strings and the characters between them.
_STEP: Final = re.compile(_TEXT.pattern.join((rb'(?:[^"]|', rb"){1,20000}+")))
#: One encoder for all calls: ``json.dumps`` would create one for each value.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def as_words(value: object) -> object:
    """Replace each NaN or infinity, at any depth, by its word; tuples become lists, keys text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _word(value)
    if isinstance(value, Mapping):
        return {str(key): as_words(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_words(item) for item in value]
    return value


def find_number(value: object) -> float | None:
    """Return the number of a JSON value, or of one of ``WORDS``; ``None`` for any other value.

    Integers beyond the range of floats are infinite, as ``1e999`` is.
    """
    if isinstance(value, str):
        return WORDS.get(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def find_infinite(value: object, path: tuple[str | int, ...] = ()) -> tuple[tuple[str | int, ...], float] | None:
    """Return the first NaN or infinity in a value, and its path; ``None`` if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, value)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for key, item in items if (found := find_infinite(item, (*path, key)))), None)


def json_text(value: object) -> str:
    """Encode ``value`` on one line, with words for floats that JSON lacks."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(as_words(value))


def read_json(text: bytes | str, max_values: int = 0) -> Any:
    """Parse a request's JSON.

    Args:
        max_values: maximum number of values; 0: no limit. Short bodies with many values take much memory and time.
    Raises:
        RequestTooLarge: it has more values.
        InvalidArgument: an object has duplicate keys, which readers resolve differently, or a text is not Unicode.
        JSONDecodeError: it is not JSON.
    """
    if max_values:
        refuse_values(text, max_values)
    value = json.loads(text, object_pairs_hook=_unique)
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if b"\\ud" in raw or b"\\uD" in raw:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as cause:
            half = f"\\u{ord(cause.object[cause.start]):04x}"
            raise InvalidArgument(
                f"a string in the request has {half} without the other half of its surrogate pair; send both"
            ) from cause
    return value


def refuse_values(text: bytes | str, max_values: int) -> None:
    """Count the values of a request that another parser will read. Raises: RequestTooLarge: it has more values."""
    if _count_commas(text, max_values) >= max_values:
        raise RequestTooLarge(f"the request has more than {max_values} values; send it in parts", field="body")


def refuse_duplicates(text: bytes) -> None:
    """Check a request that another parser will read for duplicate keys.

    Raises:
        InvalidArgument: as in ``read_json``, or it is not JSON.
    """
    try:
        read_json(text)
    except (ValueError, RecursionError) as cause:  # a number with thousands of digits, or lists in thousands of lists
        raise InvalidArgument(f"the request is malformed: {cause}") from cause


def _count_commas(text: bytes | str, max_values: int) -> int:
    """Count the commas outside of strings, up to ``max_values``: every value of a list after the first has one."""
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    commas = raw.count(b",")
    if b'"' not in raw or commas < max_values:
        return commas
    commas = at = 0
    # The search runs in steps, so that other threads can run.
    while commas < max_values and (step := _STEP.match(raw, at)) is not None:
        commas += _TEXT.sub(b"", step[0]).count(b",")
        at = step.end()
    return commas


def _word(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            break
        seen.add(key)
    raise InvalidArgument(f"the request has the key {key[:80]!r} twice in one object; expected once", field=key[:80])

"""What the node daemon's clients may say: operations and their arguments, as data, and the reading of one line.

The contract is section 1 of ``docs/design/wire.md``. Source: ours.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rdukit.errors import InvalidArgument, RdukitError
from rdukit.snd import PROTOCOL_VERSION
from rdukit_runtime.states import COUNTER_NAMES, Phase

#: Longest request line in bytes; requests carry names and numbers only.
MAX_REQUEST_BYTES: Final = 64 * 1024
_MAX_TEXT: Final = 256
_MAX_NUMBER: Final = 2**62


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: ``read`` returns the value or raises ``ValueError``."""

    read: Callable[[object], object]
    legal: str
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Message:
    """A request that is legal in form. Optional arguments that were absent or null are not in ``arguments``."""

    op: str
    arguments: Mapping[str, object]

    def text(self, name: str) -> str:
        value = self.arguments[name]
        assert isinstance(value, str)
        return value

    def find_text(self, name: str) -> str | None:
        return self.text(name) if name in self.arguments else None

    def number(self, name: str, default: int | None = None) -> int:
        value = self.arguments.get(name, default)
        assert isinstance(value, int)
        return value

    def find_number(self, name: str) -> int | None:
        return self.number(name) if name in self.arguments else None

    def counters(self, name: str) -> Mapping[str, float | str]:
        value = self.arguments[name]
        assert isinstance(value, dict)
        return value


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT or not value.isprintable():
        raise ValueError
    return value


def _read_count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_NUMBER:
        raise ValueError
    return value


def _read_positive(value: object) -> int:
    number = _read_count(value)
    if number < 1:
        raise ValueError
    return number


def _read_mask(value: object) -> int:
    if isinstance(value, str) and len(value) <= _MAX_TEXT:
        value = int(value, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError
    return value


def _read_counters(value: object) -> dict[str, float | str]:
    if not isinstance(value, dict):
        raise TypeError
    counters: dict[str, float | str] = {}
    for name, count in value.items():
        if name == "phase":
            counters[name] = str(Phase(count))
        elif name in COUNTER_NAMES and isinstance(count, int | float) and not isinstance(count, bool):
            if not math.isfinite(count) or not 0 <= count <= 2.0**100:
                raise ValueError
            counters[name] = count
        else:
            raise ValueError
    return counters


_TEXT: Final = f"printable text of 1 to {_MAX_TEXT} characters"
_LEASE: Final = Argument(_read_text, _TEXT)
_OPTIONAL_TEXT: Final = Argument(_read_text, _TEXT, is_required=False)

OPERATIONS: Final[Mapping[str, Mapping[str, Argument]]] = {
    "hello": {},
    "status": {},
    "acquire": {
        "application": Argument(_read_text, _TEXT),
        "tiles": Argument(_read_positive, "a whole number from 1"),
        "memory_bytes": Argument(_read_count, "a whole number from 0"),
        "tenant": _OPTIONAL_TEXT,
        "job": _OPTIONAL_TEXT,
        "launch": _OPTIONAL_TEXT,
        "affinity": Argument(_read_mask, 'a mask as a number or as text such as "0xf"', is_required=False),
    },
    "attach": {"lease": _LEASE, "token": Argument(_read_text, _TEXT)},
    "release": {"lease": _LEASE},
    "allocate": {
        "lease": _LEASE,
        "bytes": Argument(_read_positive, "a whole number from 1"),
        "name": Argument(_read_text, _TEXT),
    },
    "free": {"lease": _LEASE, "region": Argument(_read_text, _TEXT)},
    "report": {
        "lease": _LEASE,
        "counters": Argument(
            _read_counters,
            f"an object of numbers from 0 named {', '.join(COUNTER_NAMES)}, and phase: {', '.join(Phase)}",
        ),
    },
    "events": {"since": Argument(_read_count, "a sequence number from 0", is_required=False)},
}


def read_message(line: bytes) -> Message:
    """Read one request line, without its newline.

    Raises:
        InvalidArgument: not JSON, not an object, another protocol, an unknown operation or argument, or a value that is
            not legal; the message says what is.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as cause:
        raise InvalidArgument(f"the request is not JSON ({cause}); legal: one JSON object a line") from cause
    if not isinstance(value, dict):
        raise InvalidArgument(f"the request is a {type(value).__name__}; legal: one JSON object a line")
    protocol = value.pop("protocol", None)
    if protocol != PROTOCOL_VERSION or isinstance(protocol, bool):
        raise InvalidArgument(f"protocol {_shown(protocol)} is not spoken here; legal: {PROTOCOL_VERSION}")
    op = value.pop("op", None)
    known = OPERATIONS.get(op) if isinstance(op, str) else None
    if known is None:
        raise InvalidArgument(f"no operation is called {_shown(op)}; legal: {', '.join(OPERATIONS)}")
    for name in value:
        if name not in known:
            raise InvalidArgument(
                f"{op} has no argument {_shown(name)}; legal: {', '.join(known) or 'none'}", argument=_shown(name)
            )
    return Message(str(op), {n: v for n, a in known.items() if (v := _read_argument(str(op), n, a, value)) is not None})


def error_body(error: RdukitError) -> dict[str, object]:
    """The answer that says that a request failed."""
    return {"ok": False, "error": {"code": error.code, "message": error.message, "detail": error.detail}}


def _read_argument(op: str, name: str, argument: Argument, value: Mapping[str, object]) -> object:
    given = value.get(name)
    if given is None:
        if argument.is_required:
            raise InvalidArgument(f"{op} needs {name}: {argument.legal}", argument=name)
        return None
    try:
        return argument.read(given)
    except (ValueError, TypeError, OverflowError) as cause:
        raise InvalidArgument(
            f"{op}: {name} is {_shown(given)}; legal: {argument.legal}", argument=name, value=_shown(given)
        ) from cause


def _shown(value: object) -> str:
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."

"""The protocol of the node daemon's socket: operations and their arguments, as data, and the parsing of a line.

The contract is section 1 of ``docs/design/wire.md``. Source: ours.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit.errors import InvalidArgument, RdukitError
from rdukit.snd import PROTOCOL_VERSION
from rdukit_node.states import COUNTER_NAMES, Phase

#: Increased when operations, arguments or answers are added; nothing is ever removed.
PROTOCOL_MINOR: Final = 4
#: Features beyond the first minor version; clients ask ``hello`` before they use one.
FEATURES: Final = (
    "administration", "counters", "faults", "isolation", "keep", "maintenance", "page", "reattach", "socket", "wait",
)  # fmt: skip
#: Longest request line in bytes; the longest are lists of events to inject.
MAX_REQUEST_BYTES: Final = 256 * 1024
MAX_INJECTIONS: Final = 1000
#: Largest number of regions of a program that attaches again.
MAX_REGIONS: Final = 1000
#: Operations over a lease's own socket; each except ``hello`` names that lease.
LEASE_OPERATIONS: Final = frozenset(
    {"hello", "attach", "reattach", "keep", "allocate", "free", "report", "page", "interrupt", "isolation"}
)
_MAX_SCENARIO: Final = 128 * 1024
_MAX_TEXT: Final = 256
_MAX_NUMBER: Final = 2**62


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument: ``read`` returns the value or raises ``ValueError``."""

    read: Callable[[object], object]
    legal: str
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class SndRequest:
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

    def real(self, name: str, default: float) -> float:
        value = self.arguments.get(name, default)
        assert isinstance(value, int | float)
        return float(value)

    def find_real(self, name: str) -> float | None:
        return self.real(name, 0.0) if name in self.arguments else None

    def flag(self, name: str) -> bool:
        return self.arguments.get(name, False) is True

    def mapping(self, name: str) -> Mapping[str, object]:
        value = self.arguments[name]
        assert isinstance(value, dict)
        return value

    def mappings(self, name: str) -> Sequence[Mapping[str, object]]:
        value = self.arguments[name]
        assert isinstance(value, list)
        return value

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


def _read_regions(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list) or len(value) > MAX_REGIONS:
        raise ValueError
    return [{"name": _read_text(each["name"]), "bytes": _read_positive(each["bytes"])} for each in value]


def _read_seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 86_400 * 365:
        raise ValueError
    return float(value)


def _read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _read_scenario(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_SCENARIO:
        raise ValueError
    return value


def _read_report(value: object, depth: int = 0) -> dict[str, object]:
    """Return an object of texts, numbers, booleans, lists and objects, of bounded size."""
    if not isinstance(value, dict) or len(value) > 64 or depth > 2:
        raise TypeError
    for name, entry in value.items():
        if len(name) > _MAX_TEXT:
            raise ValueError
        if isinstance(entry, dict):
            _read_report(entry, depth + 1)
        elif isinstance(entry, list):
            if len(entry) > 4096 or not all(isinstance(e, str | int | float) and len(str(e)) <= 1024 for e in entry):
                raise ValueError
        elif entry is not None and (not isinstance(entry, str | int | float) or len(str(entry)) > 1024):
            raise ValueError
    return value


def _read_injections(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_INJECTIONS:
        raise ValueError
    for event in value:
        if not isinstance(event, dict) or set(event) - {"class", "component", "count", "seed", "data"}:
            raise ValueError
        _read_text(event.get("class"))
        if event.get("component") is not None:
            _read_text(event["component"])
        if event.get("count") is not None:
            _read_positive(event["count"])
        if event.get("seed") is not None:
            _read_count(event["seed"])
        if event.get("data") is not None:
            _read_report(event["data"])
    return value


def _read_mode(value: object) -> int:
    if value not in ("600", "660", "666"):
        raise ValueError
    return int(str(value), 8)


_TEXT: Final = f"printable text of 1 to {_MAX_TEXT} characters"
_LEASE: Final = Argument(_read_text, _TEXT)
_OPTIONAL_TEXT: Final = Argument(_read_text, _TEXT, is_required=False)
_OPTIONAL_FLAG: Final = Argument(_read_bool, "true or false", is_required=False)
_OPTIONAL_LIMIT: Final = Argument(_read_positive, "a whole number from 1", is_required=False)
_OPTIONAL_SECONDS: Final = Argument(_read_seconds, "seconds from 0", is_required=False)
_OPTIONAL_TIME: Final = Argument(_read_count, "nanoseconds since the epoch", is_required=False)
_ROW_FILTERS: Final = {
    "component": _OPTIONAL_TEXT, "type": _OPTIONAL_TEXT, "since": _OPTIONAL_TIME, "until": _OPTIONAL_TIME,
    "fault": _OPTIONAL_TEXT, "limit": _OPTIONAL_LIMIT, "after": _OPTIONAL_TEXT,
}  # fmt: skip

_COMPONENT: Final = Argument(_read_text, "the path of the node, an XRDU, an RDU or a tile")

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
        "wait_s": Argument(_read_seconds, "seconds from 0", is_required=False),
        "command": _OPTIONAL_TEXT,
        "run_limit_s": _OPTIONAL_SECONDS,
    },
    "attach": {"lease": _LEASE, "token": Argument(_read_text, _TEXT)},
    "reattach": {
        "lease": _LEASE,
        "token": Argument(_read_text, _TEXT),
        "regions": Argument(_read_regions, f"a list of at most {MAX_REGIONS} of name and bytes"),
    },
    "keep": {"lease": _LEASE},
    "socket": {"lease": _LEASE, "mode": Argument(_read_mode, "600, 660 or 666, as text", is_required=False)},
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
    "authorize": {"token": Argument(_read_text, _TEXT)},
    "page": {"lease": _LEASE},
    "interrupt": {"lease": _LEASE},
    "isolation": {
        "lease": _LEASE,
        "report": Argument(_read_report, "an object of strings, numbers and their lists"),
    },
    "counters": {},
    "inventory": {},
    "op_state": {},
    "errors": _ROW_FILTERS,
    "faults": {**_ROW_FILTERS, "severity": _OPTIONAL_TEXT, "cleared": _OPTIONAL_FLAG},
    "policies": {},
    "hangs": {"component": _OPTIONAL_TEXT, "limit": _OPTIONAL_LIMIT},
    "applications": {"limit": _OPTIONAL_LIMIT, "job": _OPTIONAL_TEXT},
    "catalogue": {},
    "inject": {
        "events": Argument(
            _read_injections,
            f"a list of 1 to {MAX_INJECTIONS} objects with class and, optionally, component, count, seed and data",
        )
    },
    "scenario": {
        "text": Argument(_read_scenario, f"YAML of at most {_MAX_SCENARIO} characters"),
        "seed": Argument(_read_count, "a whole number from 0", is_required=False),
    },
    "clear": {"fault": Argument(_read_text, "a fault's uuid")},
    "repair": {"component": Argument(_read_text, "a component's path")},
    "replace": {"component": Argument(_read_text, "a component's path")},
    "reset_counts": {"component": Argument(_read_text, "a component's path")},
    "reset": {"component": Argument(_read_text, "the path of a tile or an RDU")},
    "maintenance": {},
    "cordon": {"component": _COMPONENT, "reason": _OPTIONAL_TEXT, "on_behalf_of": _OPTIONAL_TEXT},
    "uncordon": {"component": _COMPONENT, "on_behalf_of": _OPTIONAL_TEXT},
    "drain": {
        "component": _COMPONENT,
        "reason": _OPTIONAL_TEXT,
        "deadline_s": _OPTIONAL_SECONDS,
        "on_behalf_of": _OPTIONAL_TEXT,
    },
    "evict": {"lease": _LEASE, "reason": _OPTIONAL_TEXT, "on_behalf_of": _OPTIONAL_TEXT},
    "plan_maintenance": {
        "component": _COMPONENT,
        "starts_at": _OPTIONAL_TIME,
        "ends_at": _OPTIONAL_TIME,
        "grace_s": _OPTIONAL_SECONDS,
        "reason": Argument(_read_text, _TEXT),
        "on_behalf_of": _OPTIONAL_TEXT,
    },
    "end_maintenance": {"window": Argument(_read_text, "a window's id"), "on_behalf_of": _OPTIONAL_TEXT},
    "set_policy": {
        "error_type": Argument(_read_text, _TEXT),
        "fault_type": Argument(_read_text, _TEXT),
        "count": Argument(_read_positive, "a whole number from 1"),
        "window_s": Argument(_read_seconds, "seconds from 0"),
        "action": Argument(_read_text, _TEXT),
        "severity": Argument(_read_text, _TEXT),
    },
}


def read_request(line: bytes) -> SndRequest:
    """Read one request line, without its newline.

    Raises:
        InvalidArgument: the request is not a JSON object, or has another protocol, an unknown operation or argument, or
            an invalid value; the message has the expected one.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as cause:
        raise InvalidArgument(f"the request is not JSON ({cause}); expected one JSON object a line") from cause
    if not isinstance(value, dict):
        raise InvalidArgument(f"the request is a {type(value).__name__}; expected one JSON object a line")
    protocol = value.pop("protocol", None)
    if protocol != PROTOCOL_VERSION or isinstance(protocol, bool):
        raise InvalidArgument(f"protocol {_shown(protocol)} is not supported; expected {PROTOCOL_VERSION}")
    op = value.pop("op", None)
    known = OPERATIONS.get(op) if isinstance(op, str) else None
    if known is None:
        raise InvalidArgument(f"unknown operation {_shown(op)}; expected {', '.join(OPERATIONS)}")
    for name in value:
        if name not in known:
            raise InvalidArgument(
                f"{op} has no argument {_shown(name)}; expected {', '.join(known) or 'none'}", argument=_shown(name)
            )
    return SndRequest(
        str(op), {n: v for n, a in known.items() if (v := _read_argument(str(op), n, a, value)) is not None}
    )


def error_body(error: RdukitError) -> dict[str, object]:
    """Return the answer for a failed request."""
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
            f"{op}: {name} is {_shown(given)}; expected {argument.legal}", argument=name, value=_shown(given)
        ) from cause


def _shown(value: object) -> str:
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."

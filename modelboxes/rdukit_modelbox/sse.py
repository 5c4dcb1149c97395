"""Server-sent events: framing both ways. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rdukit.strict_json import json_text

#: A comment line; keeps proxies from closing a silent stream.
KEEP_ALIVE = b": still here\n\n"


def frame_event(kind: str, sequence: int, value: Mapping[str, object]) -> bytes:
    """One event: its kind, its number as ``id``, its value as JSON on one line."""
    return f"event: {kind}\nid: {sequence}\ndata: {json_text(value)}\n\n".encode()


def frame_retry(milliseconds: int) -> bytes:
    """What a reader shall wait before it attaches again."""
    return f"retry: {milliseconds}\n\n".encode()


def read_events(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and value of each event in a stream of lines; comments and unknown fields are passed over.

    Source: the HTML standard, "Server-sent events": fields, joined data lines, an empty line ends an event.
    """
    kind, data = "message", list[str]()
    for line in lines:
        line = line.rstrip("\r\n")
        if not line:
            if data:
                yield kind, json.loads("\n".join(data))
            kind, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                kind = value
            case "data":
                data.append(value)
            case _:
                pass

"""Server-sent events: framing and reading, for boxes, the gateway and their clients. Pure.

Source: the HTML standard, "Server-sent events".
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rdukit.errors import OutputRefused
from rdukit.strict_json import json_text

#: Media type of a stream of events.
EVENT_STREAM: Final = "text/event-stream"
#: A comment line; keeps proxies from closing a silent stream.
KEEP_ALIVE: Final = b": still here\n\n"


def frame_event(kind: str, sequence: int, value: Mapping[str, object]) -> bytes:
    """Frame one event: its kind, its number as ``id``, its value as JSON on one line."""
    return frame_json(kind, sequence, json_text(value).encode())


def frame_json(kind: str, sequence: int, data: bytes) -> bytes:
    """Frame one event whose value is JSON on one line already."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (kind.encode(), sequence, data)


def frame_retry(milliseconds: int) -> bytes:
    """Frame the time after which a reader shall reattach."""
    return f"retry: {milliseconds}\n\n".encode()


def read_lines(blocks: Iterable[bytes], max_bytes: int | None = None) -> Iterator[str]:
    """Yield the lines of a stream, without their ends.

    Raises:
        OutputRefused: an event (everything up to an empty line) has more than ``max_bytes``.
    """
    rest, size = b"", 0
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            size = size + len(line) if line else 0
            if max_bytes is not None and size > max_bytes:
                break
            yield line.decode(errors="replace")
        if max_bytes is not None and size + len(rest) > max_bytes:
            raise OutputRefused(f"the box sends an event of more than {max_bytes} bytes")


def read_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield each event's JSON object. ``kind`` and ``sequence`` come from the frame if the object lacks them.

    Comments, unknown fields and an event that is cut off are skipped.

    Raises:
        ValueError, TypeError: the data is not a JSON object.
    """
    kind, sequence, data = "message", "", list[str]()
    for line in lines:
        line = line.rstrip("\r\n")
        if not line:
            if data:
                yield {"kind": kind, "sequence": sequence, **json.loads("\n".join(data))}
            kind, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                kind = value
            case "id":
                sequence = value
            case "data":
                data.append(value)
            case _:
                pass

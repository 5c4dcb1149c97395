"""Packets between a server and its device processes; tensors go through shared memory.

A request for a run is ``RUN``; its answer ``RAN``. Everything else is JSON. One packet is one message
(``SOCK_SEQPACKET``); a prompt or options too long for one are cut into parts. Pure.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

#: sequence number, rows
RUN: Final = struct.Struct("<QI")
#: sequence number, nanoseconds of: copying in, computing, copying out
RAN: Final = struct.Struct("<QIII")

MAX_PACKET_BYTES: Final = 1 << 16


def encode(**message: object) -> bytes:
    """Encode a JSON packet; long texts are left out so that it fits."""
    data = json.dumps(message).encode()
    if len(data) > MAX_PACKET_BYTES:
        data = json.dumps({key: value for key, value in message.items() if len(repr(value)) < 4096}).encode()
    return data + b" " if len(data) in (RUN.size, RAN.size) else data


def decode(packet: bytes) -> dict[str, Any]:
    """Decode the message in a JSON packet."""
    message: dict[str, Any] = json.loads(packet)
    return message


def is_json(packet: bytes) -> bool:
    """Return whether a packet is JSON rather than one of fixed length."""
    return len(packet) not in (RUN.size, RAN.size)


#: Characters or tokens of a prompt per part. In JSON each takes up to 12 bytes, and options share the packet.
PART: Final = 1024
#: Characters of options per part: each ASCII character of their JSON text takes up to two bytes when encoded again.
OPTIONS_PART: Final = 24_000

Prompt = str | Sequence[int]


def cut(prompt: Prompt) -> Iterator[tuple[int, Prompt]]:
    """Cut a prompt into (place, part) in order; the first is at 0."""
    for at in range(0, len(prompt), PART):
        part = prompt[at : at + PART]
        yield at, part if isinstance(part, str) else list(part)


def cut_options(text: str) -> Iterator[tuple[int, str]]:
    """Cut the JSON text of options into (place, part) in order; the first is at 0."""
    for at in range(0, len(text), OPTIONS_PART):
        yield at, text[at : at + OPTIONS_PART]


class LongPrompt:
    """Prompt, or options of a text, received in parts."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, at: int, part: Prompt) -> None:
        """Add a part; the part at 0 begins another prompt: the former caller went away."""
        if at == 0:
            self._parts = []
        self._parts.append(part)

    def take(self) -> Prompt:
        """Return the whole prompt and forget it."""
        parts, self._parts = self._parts, []
        if parts and isinstance(parts[0], str):
            return "".join(parts)
        return [token for part in parts for token in part]

"""What crosses between the box and a device process: packets on a socket pair, tensors in shared memory.

A request for a run is ``RUN``; its answer ``RAN``. Everything else is JSON. One packet is one message
(``SOCK_SEQPACKET``).
"""

import json
import struct
from typing import Any, Final

#: sequence number, rows
RUN: Final = struct.Struct("<QI")
#: sequence number, nanoseconds of: copying in, computing, copying out
RAN: Final = struct.Struct("<QIII")

MOST_BYTES: Final = 1 << 16


def encode(**message: object) -> bytes:
    """A JSON packet; long texts are left out so that it fits."""
    data = json.dumps(message).encode()
    if len(data) > MOST_BYTES:
        data = json.dumps({key: value for key, value in message.items() if len(repr(value)) < 4096}).encode()
    return data + b" " if len(data) in (RUN.size, RAN.size) else data


def decode(packet: bytes) -> dict[str, Any]:
    """The message in a JSON packet."""
    message: dict[str, Any] = json.loads(packet)
    return message


def is_json(packet: bytes) -> bool:
    """Whether a packet is JSON and not one of fixed length."""
    return len(packet) not in (RUN.size, RAN.size)

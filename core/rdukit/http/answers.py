"""Read complete responses of other parties (boxes, issuers, gateways): bounded, and never decompressed.

Readers request uncompressed responses (``PLAIN``): a few compressed bytes could become gigabytes.
"""

from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import Final

from rdukit.errors import RdukitError, Unavailable

#: Header of a request whose answer must not be compressed.
PLAIN: Final[Mapping[str, str]] = {"Accept-Encoding": "identity"}

#: Maximum bytes of a response that a command reads.
MAX_ANSWER_BYTES: Final = 256 << 20

Refusal = Callable[[str], RdukitError]


def refuse_packed(headers: Mapping[str, str], who: str, refusal: Refusal = Unavailable) -> None:
    """Check that a response is not compressed. Pure.

    Args:
        who: the response's sender, such as ``the box``.
        refusal: class of the error.
    Raises:
        Unavailable: it is compressed, although this was not requested.
    """
    packed = headers.get("content-encoding", "").strip().lower()
    if packed not in {"", "identity"}:
        raise refusal(f"{who} sent a compressed answer ({packed[:40]!r}); expected an answer without Content-Encoding")


def read_bounded(blocks: Iterable[bytes], max_bytes: int, who: str, refusal: Refusal = Unavailable) -> bytes:
    """Join the blocks of a response.

    Args:
        blocks: raw blocks, not decompressed. who, refusal: as in ``refuse_packed``.
    Raises:
        Unavailable: they have more than ``max_bytes``; later blocks are not read.
    """
    data = bytearray()
    for block in blocks:
        data += block
        _check(len(data), max_bytes, who, refusal)
    return bytes(data)


async def read_bounded_async(
    blocks: AsyncIterable[bytes], max_bytes: int, who: str, refusal: Refusal = Unavailable
) -> bytes:
    """Do ``read_bounded`` on an event loop."""
    data = bytearray()
    async for block in blocks:
        data += block
        _check(len(data), max_bytes, who, refusal)
    return bytes(data)


async def read_beginning(blocks: AsyncIterable[bytes], max_bytes: int) -> bytes:
    """Return up to ``max_bytes`` of a response, without reading the rest."""
    data = bytearray()
    async for block in blocks:
        data += block
        if len(data) >= max_bytes:
            break
    return bytes(data[:max_bytes])


def _check(size: int, max_bytes: int, who: str, refusal: Refusal) -> None:
    if size > max_bytes:
        raise refusal(f"{who} sent an answer of more than {max_bytes} bytes")

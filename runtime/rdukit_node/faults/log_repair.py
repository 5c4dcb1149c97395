"""Repair of a write-ahead log's checksums, so that SQLite reads the frames after a damaged one (pure).

SQLite ends its recovery at the first frame with a wrong checksum. The later pages are mostly intact; a salvage reads
them, and the rows' checksums detect damaged rows.

Source: SQLite's documentation of the WAL format, sections 4.1 to 4.4.
"""

import struct
import sys
from typing import Final

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MAGIC: Final = 0x377F0682
_VERSION: Final = 3007000
_USUAL_PAGE: Final = 4096
#: Longest log that is repaired, in bytes.
MAX_BYTES: Final = 64 << 20


def repaired_log(log: bytes) -> bytes | None:
    """Return a log with the same pages and right checksums; ``None``: it has no frame, or is too long.

    Frames up to the last one with the salts of the present log are kept, including damaged ones.
    """
    if not _HEADER.size + _FRAME.size < len(log) <= MAX_BYTES:
        return None
    magic, version, page, sequence, *salts, _, _ = _HEADER.unpack_from(log)
    is_whole = magic & ~1 == _MAGIC and version == _VERSION and _is_page_size(page)
    if is_whole:
        is_whole = _checksum(log[: _HEADER.size - 8], (0, 0), magic) == _HEADER.unpack_from(log)[6:]
    if not is_whole:
        magic = _MAGIC | (sys.byteorder == "big")
        page = page if _is_page_size(page) else _USUAL_PAGE
        salts = list(_FRAME.unpack_from(log, _HEADER.size)[2:4])
    size = _FRAME.size + page
    frames = range(_HEADER.size, len(log) - size + 1, size)
    present = [at for at in frames if list(_FRAME.unpack_from(log, at)[2:4]) == salts]
    if not present:
        return None
    head = _HEADER.pack(magic, _VERSION, page, sequence, *salts, 0, 0)[: _HEADER.size - 8]
    running = _checksum(head, (0, 0), magic)
    parts = [head, struct.pack(">2I", *running)]
    for at in frames[: frames.index(present[-1]) + 1]:
        number, pages = _FRAME.unpack_from(log, at)[:2]
        content = log[at + _FRAME.size : at + size]
        running = _checksum(struct.pack(">2I", number, pages) + content, running, magic)
        parts += [_FRAME.pack(number, pages, *salts, *running), content]
    return b"".join(parts)


def _is_page_size(size: int) -> bool:
    return 512 <= size <= 65_536 and size & (size - 1) == 0


def _checksum(data: bytes, begin: tuple[int, int], magic: int) -> tuple[int, int]:
    words = struct.unpack(f"{'>' if magic & 1 else '<'}{len(data) // 4}I", data)
    first, second = begin
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second

"""Text files → blocks of whole lines, however large the file."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final, cast

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.sources import SourceFile

BLOCK_BYTES: Final = 2 << 20
#: A longer line would not fit the memory that a preprocess may use.
LONGEST_LINE: Final = 16 << 20
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines with their ends; the first has number ``line``, from 1."""

    data: bytes
    line: int
    #: Bytes of the file read so far: of the compressed one if it is.
    consumed: int


def read_line_blocks(source: SourceFile, block_bytes: int = BLOCK_BYTES) -> Iterator[LineBlock]:
    """The file's lines in blocks; a last line without end gets one.

    Raises:
        InvalidArgument: a line is too long, or the compressed data is damaged.
    """
    with source.path.open("rb") as raw:
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if source.is_gzip else raw
        line, rest = 1, b""
        while True:
            try:
                data = stream.read(block_bytes)
            except (OSError, EOFError, zlib.error) as cause:
                raise InvalidArgument(f"{source.name}: not readable after line {line}: {cause}") from cause
            if line == 1 and not rest and data.startswith(BYTE_ORDER_MARK):
                data = data[len(BYTE_ORDER_MARK) :]
            if not data:
                break
            end = data.rfind(b"\n") + 1
            if end:
                block = rest + data[:end]
                yield LineBlock(block, line, raw.tell())
                line += block.count(b"\n")
                rest = data[end:]
            else:
                rest += data
            if len(rest) > LONGEST_LINE:
                raise InvalidArgument(
                    f"{source.name}:{line}: the line is longer than {LONGEST_LINE >> 20} MB; legal: shorter lines, one "
                    f"record each",
                    file=source.name, line=line,
                )  # fmt: skip
        if rest:
            yield LineBlock(rest + b"\n", line, raw.tell())

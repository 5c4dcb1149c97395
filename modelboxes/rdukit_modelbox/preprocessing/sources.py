"""Input files of a preprocess: finding them, reading blocks of lines, and rows that cannot be used."""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Final, cast

from rdukit.errors import IllegalValue, InvalidArgument, NotFound


class Format(StrEnum):
    """Formats of input files."""

    TXT = "txt"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    NPZ = "npz"
    HDF5 = "hdf5"
    IDX = "idx"
    IMAGES = "images"


#: Name endings, without ``.gz``.
ENDINGS: Final[Mapping[str, Format]] = {
    ".txt": Format.TXT,
    ".text": Format.TXT,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".npz": Format.NPZ,
    ".hdf5": Format.HDF5,
    ".h5": Format.HDF5,
    ".png": Format.IMAGES,
    ".jpg": Format.IMAGES,
    ".jpeg": Format.IMAGES,
    ".bmp": Format.IMAGES,
    ".gif": Format.IMAGES,
    ".webp": Format.IMAGES,
    ".tif": Format.IMAGES,
    ".tiff": Format.IMAGES,
}
#: Formats that are also read compressed.
COMPRESSIBLE: Final = frozenset({Format.TXT, Format.JSONL, Format.CSV})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An input file; ``name`` is its path relative to the given one, with ``/``."""

    path: Path
    name: str
    format: Format
    bytes: int
    modified_ns: int
    is_gzip: bool

    def to_json(self) -> dict[str, object]:
        """Return values that show whether the file is unchanged."""
        return {"name": self.name, "format": self.format, "bytes": self.bytes, "modified_ns": self.modified_ns}


def find_sources(data: Path, pattern: str, wanted: str, legal: Sequence[Format]) -> tuple[SourceFile, ...]:
    """Find the files of ``data``, in the order of their names: itself, or the files in it that ``pattern`` matches.

    In a folder, files of another format than ``legal`` are left out, unless all files are such; hidden files and links
    that lead out of the folder never count.

    Args:
        wanted: ``auto``, or the format of all files regardless of their names.
    Raises:
        NotFound: nothing there, or nothing matches.
        InvalidArgument: no file has a format that this box reads, the files mix formats, or they are all empty.
    """
    paths = _find_files(data, pattern)
    words = ", ".join(f"{ending}" for ending, format in ENDINGS.items() if format in legal)
    found = [_source(data, path, wanted, legal) for path in paths]
    sources = tuple(source for source in found if source is not None)
    if not sources:
        raise InvalidArgument(
            f"{paths[0]}: its ending belongs to no format of this box; expected {words} (text also .gz), or the "
            "parameter format"
        )
    formats = sorted({source.format for source in sources})
    if len(formats) > 1:
        raise InvalidArgument(
            f"{data} mixes {', '.join(formats)}; set pattern to choose files, or format to choose one format"
        )
    if not any(source.bytes for source in sources):
        raise InvalidArgument(f"{data}: every file is empty; expected one with content")
    return sources


def _find_files(data: Path, pattern: str) -> list[Path]:
    if ".." in pattern.split("/"):
        raise IllegalValue(
            f"parameter 'pattern': {pattern!r} is not valid; expected a glob below the data folder, no .."
        )
    if data.is_file():
        return [data]
    if not data.is_dir():
        raise NotFound(f"{data} does not exist")
    root = data.resolve()
    paths = sorted(
        path for path in data.glob(pattern)
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(data).parts)
        and path.resolve().is_relative_to(root)
    )  # fmt: skip
    if not paths:
        raise NotFound(f"no file in {data} matches {pattern!r}")
    return paths


def _source(data: Path, path: Path, wanted: str, legal: Sequence[Format]) -> SourceFile | None:
    lower = path.name.lower()
    is_gzip = lower.endswith(".gz")
    format = ENDINGS.get(Path(lower.removesuffix(".gz")).suffix) if wanted == "auto" else Format(wanted)
    if format is None or format not in legal or (is_gzip and format not in COMPRESSIBLE):
        return None
    state = path.stat()
    name = path.name if path == data else path.relative_to(data).as_posix()
    return SourceFile(path, name, format, state.st_size, state.st_mtime_ns, is_gzip)


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
    """Return the file's lines in blocks; a last line without a line end gets one.

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
                raise InvalidArgument(
                    f"{source.name}: not readable after line {line}: {cause}; expected an intact file; compress or "
                    "copy it again"
                ) from cause
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
                    f"{source.name}:{line}: the line is longer than {LONGEST_LINE >> 20} MB; expected "
                    "shorter lines, one record each",
                    file=source.name, line=line,
                )  # fmt: skip
        if rest:
            yield LineBlock(rest + b"\n", line, raw.tell())


#: Number of skipped rows whose places are reported.
EXAMPLES: Final = 10


@dataclass(slots=True)
class RowErrors:
    """Refuses bad rows, or counts them when ``skips``."""

    skips: bool
    count: int = 0
    examples: list[str] = field(default_factory=list)
    #: Rows omitted for missing values, as the request chose.
    dropped: int = 0
    #: Whether the request could have chosen to skip.
    may_skip: bool = True

    def add(self, file: str, line: int | None, reason: str, legal: str, column: str | None = None) -> None:
        """Note a bad row. ``line`` counts from 1: the line of a text file, or the row of another file; None: the
        complete file.

        Raises:
            InvalidArgument: bad rows are not skipped; the message has file, line, column and the expected values.
        """
        place = f"{file}:{line}" if line is not None else file
        if column is not None:
            place += f", column {column!r}"
        if not self.skips:
            raise InvalidArgument(
                f"{place}: {reason}; expected {legal}"
                + ("; or pass bad_rows=skip to omit such rows" if self.may_skip else ""),
                file=file, line=line, column=column, legal=legal,
            )  # fmt: skip
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{place}: {reason}")

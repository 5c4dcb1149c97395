"""Text inputs → records as lines of JSON, checked: what ``articles.make_decoder`` decodes.

A line of a .txt file becomes a JSON string, with its newline. A .jsonl line stays unchanged; a row of a table becomes
an object with the keywords as keys.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as arrow  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.articles import ArticlePolicy
from rdukit_modelbox.preprocessing.sources import Format, LineBlock, RowErrors, SourceFile, read_line_blocks
from rdukit_modelbox.preprocessing.table_rows import open_csv

TEXT_FORMATS: Final = (Format.TXT, Format.JSONL, Format.CSV, Format.PARQUET)
TABLE_ROWS: Final = 2048


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Records as JSON without line ends, and the number of bytes read from the file."""

    records: list[bytes]
    consumed: int


def read_records(
    source: SourceFile, policy: ArticlePolicy, decoder: "msgspec.json.Decoder[Any]", bad: RowErrors
) -> Iterator[RecordBlock]:
    """Return the records of one file, in its order.

    Raises:
        InvalidArgument: a record that cannot be used and ``bad`` refuses, or a damaged file.
    """
    match source.format:
        case Format.TXT:
            yield from _of_lines(source, lambda block: _texts(source, block, bad))
        case Format.JSONL:
            yield from _of_lines(source, lambda block: _json_lines(source, block, policy, decoder, bad))
        case Format.CSV:
            yield from _csv_rows(source, policy, bad)
        case _:
            yield from _parquet_rows(source, policy, bad)


def _of_lines(source: SourceFile, convert: Callable[[LineBlock], list[bytes]]) -> Iterator[RecordBlock]:
    for block in read_line_blocks(source):
        yield RecordBlock(convert(block), block.consumed)


def _texts(source: SourceFile, block: LineBlock, bad: RowErrors) -> list[bytes]:
    encode = msgspec.json.Encoder().encode
    try:
        # Windows' line ends count as one character, as in Python's text files.
        lines = block.data.decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError:
        lines = _decode_each(source, block, bad)
    lines.pop()
    return [encode(line + "\n") for line in lines if line and not line.isspace()]


def _decode_each(source: SourceFile, block: LineBlock, bad: RowErrors) -> list[str]:
    lines = []
    for number, line in enumerate(block.data.split(b"\n"), block.line):
        try:
            lines.append(line.decode().removesuffix("\r"))
        except UnicodeDecodeError as cause:
            bad.add(source.name, number, f"not UTF-8 at byte {cause.start} of the line", "text in UTF-8")
    return lines


def _json_lines(
    source: SourceFile, block: LineBlock, policy: ArticlePolicy, decoder: "msgspec.json.Decoder[Any]", bad: RowErrors
) -> list[bytes]:
    lines = block.data.split(b"\n")
    lines.pop()
    try:
        # One call decodes the block; only a block with a fault is examined line by line.
        found = decoder.decode_lines(block.data)
        if not any(isinstance(record, str) for record in found):
            return [line for line in lines if line and not line.isspace()]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    legal = (
        f'an object with "{policy.completion_keyword}" (text) and perhaps "{policy.prompt_keyword}" (text), or a list '
        f"of such objects (prompt_keyword and completion_keyword name the keys)"
    )
    good = []
    for number, line in enumerate(lines, block.line):
        if not line or line.isspace():
            continue
        try:
            record = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as cause:
            bad.add(source.name, number, str(cause), legal)
            continue
        if isinstance(record, str):
            bad.add(source.name, number, "a text alone", legal)
        else:
            good.append(line)
    return good


def _csv_rows(source: SourceFile, policy: ArticlePolicy, bad: RowErrors) -> Iterator[RecordBlock]:
    encode = msgspec.json.Encoder().encode
    with open_csv(source, bad) as file:
        wanted = [(key, file.header.index(key)) for key in _keys(source, file.header, policy)]
        records: list[bytes] = []
        for _, fields in file.rows():
            records.append(encode({key: fields[index] for key, index in wanted}))
            if len(records) >= TABLE_ROWS:
                yield RecordBlock(records, file.consumed)
                records = []
        yield RecordBlock(records, source.bytes)


def _parquet_rows(source: SourceFile, policy: ArticlePolicy, bad: RowErrors) -> Iterator[RecordBlock]:
    encode = msgspec.json.Encoder().encode
    try:
        with parquet.ParquetFile(source.path) as file:
            schema = file.schema_arrow
            keys = _keys(source, schema.names, policy)
            for key in keys:
                kind = schema.field(key).type
                if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
                    raise InvalidArgument(f"{source.name}, column {key!r}: its type is {kind}; expected string")
            row, total = 0, max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(TABLE_ROWS, columns=keys):
                records = []
                for value in batch.to_pylist():
                    row += 1
                    if value[policy.completion_keyword] is None:
                        bad.add(source.name, row, "no value", "a text", policy.completion_keyword)
                    else:
                        records.append(encode(value))
                yield RecordBlock(records, source.bytes * row // total)
    except (arrow.ArrowInvalid, OSError) as cause:
        raise InvalidArgument(f"{source.name} is not readable as Parquet; expected an intact Parquet file") from cause


def _keys(source: SourceFile, columns: Sequence[str], policy: ArticlePolicy) -> list[str]:
    if policy.completion_keyword not in columns:
        raise InvalidArgument(
            f"{source.name} has no column {policy.completion_keyword!r}; its columns are "
            f"{', '.join(columns) or 'none'}; name the text column with completion_keyword",
            file=source.name, columns=list(columns),
        )  # fmt: skip
    return [key for key in (policy.prompt_keyword, policy.completion_keyword) if key in columns]

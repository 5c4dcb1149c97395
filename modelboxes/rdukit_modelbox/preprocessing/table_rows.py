"""Tables (CSV, JSON lines, Parquet) as blocks of rows, each value checked. Source of CSV: RFC 4180.

Axes: N rows of a block, C numbers of a row, K categorical columns.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as arrow  # type: ignore[import-untyped]
import pyarrow.compute as arrow_compute  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.columns import NUMBER_LABEL, RowBlock, RowPreprocessRequest
from rdukit_modelbox.preprocessing.file_bounds import MAX_VALUE_BYTES, check_parquet
from rdukit_modelbox.preprocessing.sources import LONGEST_LINE, Format, RowErrors, SourceFile, read_line_blocks
from rdukit_serving.raw_inputs.layout import (
    CATEGORY,
    DATE,
    NUMBER,
    ColumnFault,
    TableLayout,
    TableRow,
    find_kind,
    read_label,
    read_number,
)
from rdukit_serving.raw_inputs.legal_values import plain_numbers

BLOCK_ROWS: Final = 2048
#: Bytes of the texts of a Parquet file that are in memory at once, about.
_BATCH_BYTES: Final = 1 << 26
#: Value of a column of splits → the split's number.
SPLIT_NAMES: Final = {"train": 0, "test": 1, "dev": 2, "validation": 2, "valid": 2, "val": 2}
ROWS_EXPECTED: Final = "rows of numbers and strings by column: a header followed by lines, or one object per line"
#: A row's line or number, and its values by column.
NumberedRow = tuple[int, TableRow]


def find_layout(source: SourceFile, request: RowPreprocessRequest) -> TableLayout:
    """Return the layout that the first rows of ``source`` have, ``BLOCK_ROWS`` at most.

    Raises:
        InvalidArgument: a column that the request names is not there, or nothing is left as features.
    """
    bad = RowErrors(skips=True)
    needs_rows = request.finds_kinds or source.format == Format.JSONL
    first = [row for _, row in islice(rows_of(source, bad, [0]), BLOCK_ROWS if needs_rows else 1)]
    if source.format == Format.PARQUET:
        with _open_parquet(source) as file:
            return _layout_of(source, file.schema_arrow.names, first, request)
    if first:  # a line of JSON need not have all keys
        return _layout_of(source, list(dict.fromkeys(name for row in first for name in row)), first, request)
    why = f" that can be used; {bad.examples[0]}" if bad.examples else ""
    raise InvalidArgument(f"{source.name} has no row{why}; expected {ROWS_EXPECTED}", file=source.name)


def column_names(source: SourceFile) -> tuple[str, ...]:
    """Return the columns of a table: the header's, or the first row's keys.

    Raises:
        InvalidArgument: the table has no row.
    """
    if source.format == Format.PARQUET:
        with _open_parquet(source) as file:
            return tuple(file.schema_arrow.names)
    for _, row in rows_of(source, RowErrors(skips=False), [0]):
        return tuple(row)
    raise InvalidArgument(f"{source.name} has no row; expected {ROWS_EXPECTED}", file=source.name)


def header_of(source: SourceFile) -> tuple[str, ...]:
    """Return the columns of a CSV or Parquet file, which may have no rows; none if it is empty."""
    if source.format != Format.CSV:
        return column_names(source)
    with open_csv(source, RowErrors(skips=False)) as file:
        return tuple(file.header)


def _layout_of(
    source: SourceFile, columns: Sequence[str], first: Sequence[TableRow], request: RowPreprocessRequest
) -> TableLayout:
    split = (request.split_column,) if request.split_column else ()
    left_out = {request.label_column, *request.exclude, *split}
    chosen = request.columns or tuple(name for name in columns if name not in left_out)
    for name in (request.label_column, *chosen, *request.categorical, *request.dates, *request.exclude, *split):
        if name not in columns:
            raise InvalidArgument(
                f"{source.name} has no column {name!r}; its columns are {', '.join(columns) or 'none'}",
                file=source.name, column=name,
            )  # fmt: skip
    if not all(chosen):
        raise InvalidArgument(
            f"{source.name}: column {columns.index('') + 1} has no name; expected a name in the header, such as "
            "pandas writes with to_csv(index=False), or the features in columns",
            file=source.name,
        )  # fmt: skip
    if not chosen:
        raise InvalidArgument(
            f"{source.name} has no column besides the label {request.label_column!r}; expected at least one more"
        )
    named = {**dict.fromkeys(request.categorical, CATEGORY), **dict.fromkeys(request.dates, DATE)}
    if request.finds_kinds:
        named |= {name: find_kind([row.get(name) for row in first]) for name in chosen if name not in named}
    numeric, categorical, dates = (
        tuple(name for name in chosen if named.get(name, NUMBER) == kind) for kind in (NUMBER, CATEGORY, DATE)
    )
    others = tuple(name for name in columns if name not in {*chosen, request.label_column})
    return TableLayout(numeric, categorical, dates, request.label_column, others)


def check_other_tables(sources: Sequence[SourceFile], layout: TableLayout, request: RowPreprocessRequest) -> None:
    """Compare the columns of further files with those of the first one; keys of JSON lines are compared row by row.

    Raises:
        InvalidArgument: a file lacks a column, or has one that would be ignored.
    """
    needed = {*layout.columns, layout.label, *((request.split_column,) if request.split_column else ())}
    for source in sources[1:]:
        if source.format == Format.JSONL or not source.bytes:
            continue
        found = header_of(source)
        lacking = sorted(needed - set(found))
        more = [] if request.columns else [name for name in found if name not in {*needed, *layout.others}]
        if lacking or more:
            words = f"lacks the column {lacking[0]!r}" if lacking else f"also has the column {more[0]!r}"
            raise InvalidArgument(
                f"{source.name} {words}; expected the columns of {sources[0].name}: "
                f"{', '.join((*layout.columns, layout.label, *layout.others))}",
                file=source.name, column=(lacking or more)[0],
            )  # fmt: skip


def read_table(
    source: SourceFile, layout: TableLayout, request: RowPreprocessRequest, bad: RowErrors
) -> Iterator[RowBlock]:
    """Return the rows of one file.

    Raises:
        InvalidArgument: a row that cannot be used and ``bad`` refuses, or a damaged file.
    """
    consumed = [0]
    block: list[NumberedRow] = []
    for row in rows_of(source, bad, consumed):
        block.append(row)
        if len(block) == BLOCK_ROWS:
            yield _checked(source, block, layout, request, bad, consumed[0])
            block = []
    yield _checked(source, block, layout, request, bad, source.bytes)


def rows_of(source: SourceFile, bad: RowErrors, consumed: list[int]) -> Iterator[NumberedRow]:
    """Yield number and values by column of each row; ``consumed[0]`` counts the bytes of the file that were read.

    Raises:
        InvalidArgument: a row that cannot be used and ``bad`` refuses, or a damaged file.
    """
    match source.format:
        case Format.CSV:
            return _csv_rows(source, bad, consumed)
        case Format.JSONL:
            return _json_rows(source, bad, consumed)
        case _:
            return _parquet_rows(source, consumed)


def _csv_rows(source: SourceFile, bad: RowErrors, consumed: list[int]) -> Iterator[NumberedRow]:
    with open_csv(source, bad) as file:
        for line, fields in file.rows():
            consumed[0] = file.consumed
            yield line, dict(zip(file.header, fields, strict=True))


def _json_rows(source: SourceFile, bad: RowErrors, consumed: list[int]) -> Iterator[NumberedRow]:
    decode = msgspec.json.Decoder(dict[str, str | int | float | bool | None]).decode
    for block in read_line_blocks(source):
        consumed[0] = block.consumed
        for number, line in enumerate(block.data.split(b"\n"), block.line):
            if line and not line.isspace():
                try:
                    row = decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError) as cause:
                    bad.add(source.name, number, str(cause), "an object of numbers and texts")
                    continue
                if line.count(b'":') + line.count(b'" :') > len(row) and (twice := _find_twice(line)) is not None:
                    bad.add(source.name, number, f"the key {twice!r} is there twice", "a value for each key", twice)
                    continue
                yield number, row


def _find_twice(line: bytes) -> str | None:
    """Return a key that an object has twice; None if there is none."""
    counts = Counter(name for name, _ in json.loads(line, object_pairs_hook=list, parse_int=str))
    return next((name for name, count in counts.items() if count > 1), None)


def _parquet_rows(source: SourceFile, consumed: list[int]) -> Iterator[NumberedRow]:
    with _open_parquet(source) as file:
        number, total = 0, max(file.metadata.num_rows, 1)
        try:
            for row in _rows_of_parquet(source, file):
                number += 1
                consumed[0] = source.bytes * number // total
                yield number, row
        except (arrow.ArrowException, OSError) as cause:
            raise _no_parquet(source) from cause


def flat_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[object, ...]]:
    """Yield the values of some columns of a Parquet file, row by row; a text that repeats is read once.

    Raises:
        InvalidArgument: a text has over ``MAX_VALUE_BYTES``. arrow.ArrowException, OSError: the file is damaged.
    """
    with parquet.ParquetFile(path) as file:
        texts = [field.name for field in file.schema_arrow if field.name in columns and _is_text(field.type)]
    done = 0
    with parquet.ParquetFile(path, read_dictionary=texts) as file:
        for batch in file.iter_batches(BLOCK_ROWS, columns=list(columns)):
            longest = max((_longest(path, name, batch.column(name)) for name in texts), default=0)
            step = max(1, min(BLOCK_ROWS, _BATCH_BYTES // max(longest * max(len(texts), 1), 1)))
            for start in range(0, len(batch), step):
                part = _decoded(batch.slice(start, step))
                try:
                    rows = part.to_pylist()
                except (OverflowError, ValueError) as cause:
                    raise _no_time(path, part, done) from cause
                done += len(rows)
                for row in rows:
                    yield tuple(row[name] for name in columns)


def _no_time(path: Path, part: Any, done: int) -> InvalidArgument:
    """Return the refusal of a batch of which a date is no date of Python's; ``done`` rows were read before."""
    for name, column in zip(part.schema.names, part.columns, strict=True):
        for at, value in enumerate(column):
            try:
                value.as_py()
            except (OverflowError, ValueError):
                place = f"{path.name}:{done + at + 1}, column {name!r}"
                return InvalidArgument(
                    f"{place}: the {column.type} is not a date; expected one from the year 1 to 9999, in a known zone",
                    file=path.name, line=done + at + 1, column=name,
                )  # fmt: skip
    return InvalidArgument(f"{path.name} is not readable as Parquet; expected an intact Parquet file")


def _rows_of_parquet(source: SourceFile, file: Any) -> Iterator[TableRow]:
    names = file.schema_arrow.names
    return (dict(zip(names, values, strict=True)) for values in flat_rows(source.path, names))


def _decoded(batch: Any) -> Any:
    """Return a batch with the values of dictionaries in their columns."""
    columns = [
        _in_microseconds(c.dictionary_decode() if arrow.types.is_dictionary(c.type) else c) for c in batch.columns
    ]
    return arrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _in_microseconds(column: Any) -> Any:
    """Return times of nanoseconds without their last three digits, which Python's times do not have."""
    kind, types = column.type, arrow.types
    if getattr(kind, "unit", "") != "ns":
        return column
    if types.is_timestamp(kind):
        return column.cast(arrow.timestamp("us", kind.tz), safe=False)
    return column.cast(arrow.time64("us") if types.is_time(kind) else arrow.duration("us"), safe=False)


def _is_text(kind: Any) -> bool:
    types = arrow.types
    return any(is_kind(kind) for is_kind in (types.is_string, types.is_large_string, types.is_binary))


def _longest(path: Path, name: str, column: Any) -> int:
    """Return the bytes of the longest text in a column of a dictionary."""
    known = column.dictionary if arrow.types.is_dictionary(column.type) else column
    longest = arrow_compute.max(arrow_compute.binary_length(known)).as_py() or 0
    if longest > MAX_VALUE_BYTES:
        raise InvalidArgument(
            f"{path.name}, column {name!r}: a string of {longest} bytes; expected at most {MAX_VALUE_BYTES}"
        )
    return int(longest)


def _open_parquet(source: SourceFile) -> Any:
    try:
        file = parquet.ParquetFile(source.path)
        check_parquet(source.name, file.metadata)
        require_distinct(source.name, file.schema_arrow.names)
        return file
    except (arrow.ArrowException, OSError) as cause:
        raise _no_parquet(source) from cause


def require_distinct(place: str, names: Sequence[str]) -> None:
    """Refuse a table with two columns of one name.

    Raises:
        InvalidArgument: names the column.
    """
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidArgument(f"{place}: more than one column is named {twice[0]!r}; expected different names")


def _no_parquet(source: SourceFile) -> InvalidArgument:
    return InvalidArgument(f"{source.name} is not readable as Parquet; expected an intact Parquet file")


def _checked(
    source: SourceFile,
    rows: list[NumberedRow],
    layout: TableLayout,
    request: RowPreprocessRequest,
    bad: RowErrors,
    consumed: int,
) -> RowBlock:
    numbers, names, labels, splits = [], [], [], []
    plain, is_number = _find_plain_numbers(rows, layout), request.predict == NUMBER_LABEL
    known = {*layout.columns, *layout.others, layout.label}
    has_keys = source.format == Format.JSONL and not request.columns
    for index, (line, values) in enumerate(rows):
        if has_keys and not values.keys() <= known:
            key = next(name for name in values if name not in known)
            expected = f"the keys of the first rows: {', '.join(sorted(known))}; or name the features in columns"
            bad.add(source.name, line, f"the key {key!r} is new", expected, key)
            continue
        split = 0
        if request.split_column:
            said = values.get(request.split_column)
            found_split = SPLIT_NAMES.get(str(said).strip().lower())
            if found_split is None:
                bad.add(source.name, line, f"the split is {said!r}", "train, dev or test", request.split_column)
                continue
            split = found_split
        try:
            label = repr(read_number(values, layout.label)) if is_number else read_label(values, layout.label)
            found = layout.read(values, request.missing, None if plain is None else plain[index])
        except ColumnFault as fault:
            if fault.is_missing and request.missing == "drop":
                bad.dropped += 1
            else:
                bad.add(source.name, line, fault.reason, fault.legal, fault.column)
            continue
        numbers.append(found[0])
        names.append(found[1])
        labels.append(label)
        splits.append(split)
    numbers_NC: NDArray[np.float64] = np.array(numbers, np.float64).reshape(len(numbers), len(layout.numbers))
    columns = tuple([name[index] for name in names] for index in range(len(layout.categorical)))
    splits_N = np.array(splits, np.int64) if request.split_column else None
    return RowBlock(numbers_NC, columns, labels, consumed, splits_N)


def _find_plain_numbers(rows: list[NumberedRow], layout: TableLayout) -> list[list[float]] | None:
    """Return the numbers of all rows if all are present and finite; else None, and each value must be checked."""
    return plain_numbers([[values.get(name) for name in layout.numeric] for _, values in rows])


LEGAL_FIELDS: Final = "fields as in RFC 4180"


class CsvFile:
    """An open CSV file; see ``open_csv``."""

    def __init__(self, source: SourceFile, bad: RowErrors) -> None:
        self._source = source
        self._bad = bad
        #: Bytes of the file read so far: of the compressed one if it is.
        self.consumed = 0
        lines = self._lines()
        first = next(lines, "")
        delimiter = "\t" if ".tsv" in source.name.lower() else _find_delimiter(first)
        self._reader = csv.reader(chain([first] if first else [], lines), delimiter=delimiter, strict=True)
        #: The columns' names, without spaces around.
        self.header: list[str] = self._read_header()

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number, from 1, and fields of each row with as many fields as the header; empty lines are left
        out.

        Raises:
            InvalidArgument: a row has other fields and ``bad`` refuses, or the file is damaged.
        """
        reader, fields, bad, name = self._reader, len(self.header), self._bad, self._source.name
        while True:
            try:
                for row in reader:
                    if len(row) == fields:
                        yield reader.line_num, row
                    elif row:
                        bad.add(name, reader.line_num, f"{len(row)} fields", f"{fields} fields, as in the header")
                return
            except csv.Error as cause:
                bad.add(name, reader.line_num, _in_words(cause), LEGAL_FIELDS)

    def _lines(self) -> Iterator[str]:
        for block in read_line_blocks(self._source):
            self.consumed = block.consumed
            try:
                lines = block.data.decode().split("\n")
            except UnicodeDecodeError as cause:
                raise InvalidArgument(
                    f"{self._source.name}: not UTF-8 in the lines from {block.line}; expected text in UTF-8"
                ) from cause
            lines.pop()
            # Not splitlines: it also cuts at characters that may stand in a field.
            yield from (line + "\n" for line in lines)

    def _read_header(self) -> list[str]:
        try:
            names = [name.strip() for name in next(self._reader, [])]
        except csv.Error as cause:
            raise InvalidArgument(
                f"{self._source.name}:{self._reader.line_num}: the header is not readable as CSV: {_in_words(cause)}; "
                f"expected {LEGAL_FIELDS}"
            ) from cause
        if len(names) == 1 and any(mark in names[0] for mark in "\t|"):
            raise InvalidArgument(
                f"{self._source.name}:1: the header is one column, {names[0][:80]!r}; expected fields between commas "
                "or semicolons (or tabs, in a .tsv file); export the table again"
            )
        require_distinct(f"{self._source.name}:1", names)
        return names


def _in_words(cause: csv.Error) -> str:
    words = str(cause)
    return "a line ends with CR alone, not with LF or CRLF" if words.startswith("new-line character") else words


def _find_delimiter(header: str) -> str:
    """Return the mark between fields: a semicolon if the header has one outside quotes, and no comma."""
    bare = re.sub(r'"[^"]*"', "", header)
    return ";" if ";" in bare and "," not in bare else ","


@contextmanager
def open_csv(source: SourceFile, bad: RowErrors) -> Iterator[CsvFile]:
    """Read a CSV file with commas or semicolons, or with tabs if ``.tsv`` is in its name; ``bad`` hears of rows that
    cannot be used.

    Raises:
        InvalidArgument: the header is not a CSV, two columns have the same name, or the file is damaged.
    """
    before = csv.field_size_limit(LONGEST_LINE)
    try:
        yield CsvFile(source, bad)
    finally:
        csv.field_size_limit(before)

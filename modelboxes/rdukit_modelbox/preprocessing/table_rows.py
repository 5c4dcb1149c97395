"""Tables (CSV, JSON lines, Parquet) → blocks of rows, each value checked.

Axes: N rows of a block, C numeric columns, K categorical columns.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as arrow  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_modelbox.preprocessing.bad_rows import RowErrors
from rdukit_modelbox.preprocessing.columns import RowBlock
from rdukit_modelbox.preprocessing.csv_rows import open_csv
from rdukit_modelbox.preprocessing.lines import read_line_blocks
from rdukit_modelbox.preprocessing.row_request import RowPreprocessRequest
from rdukit_modelbox.preprocessing.sources import Format, SourceFile

BLOCK_ROWS: Final = 2048
MISSING: Final = frozenset({"", "na", "n/a", "nan", "null", "none"})
#: A row's line or number, and its values by column.
Row = tuple[int, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Which columns are numbers and which are names."""

    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    label: str

    @classmethod
    def of(cls, source: SourceFile, columns: Sequence[str], request: RowPreprocessRequest) -> "TableLayout":
        """From the first file's columns.

        Raises:
            InvalidArgument: a column that the request names is not there, or nothing is left as features.
        """
        chosen = request.columns or tuple(name for name in columns if name != request.label_column)
        for name in (request.label_column, *chosen, *request.categorical):
            if name not in columns:
                raise InvalidArgument(
                    f"{source.name} has no column {name!r}; there: {', '.join(columns) or 'none'}",
                    file=source.name, column=name,
                )  # fmt: skip
        if not chosen:
            raise InvalidArgument(f"{source.name} has no column besides the label {request.label_column!r}")
        numeric = tuple(name for name in chosen if name not in request.categorical)
        return cls(numeric, tuple(name for name in chosen if name in request.categorical), request.label_column)


def find_layout(source: SourceFile, request: RowPreprocessRequest) -> TableLayout:
    """The layout that the first rows of ``source`` have."""
    if source.format == Format.PARQUET:
        with _open_parquet(source) as file:
            return TableLayout.of(source, file.schema_arrow.names, request)
    bad = RowErrors(skips=True)
    for _, values in _rows(source, bad, [0]):
        return TableLayout.of(source, list(values), request)
    why = f" that can be used; {bad.examples[0]}" if bad.examples else ""
    raise InvalidArgument(f"{source.name} has no row{why}", file=source.name)


def read_table(
    source: SourceFile, layout: TableLayout, request: RowPreprocessRequest, bad: RowErrors
) -> Iterator[RowBlock]:
    """The rows of one file.

    Raises:
        InvalidArgument: a row that cannot be used and ``bad`` refuses, or a damaged file.
    """
    consumed = [0]
    block: list[Row] = []
    for row in _rows(source, bad, consumed):
        block.append(row)
        if len(block) == BLOCK_ROWS:
            yield _checked(source, block, layout, request, bad, consumed[0])
            block = []
    yield _checked(source, block, layout, request, bad, source.bytes)


def _rows(source: SourceFile, bad: RowErrors, consumed: list[int]) -> Iterator[Row]:
    match source.format:
        case Format.CSV:
            return _csv_rows(source, bad, consumed)
        case Format.JSONL:
            return _json_rows(source, bad, consumed)
        case _:
            return _parquet_rows(source, consumed)


def _csv_rows(source: SourceFile, bad: RowErrors, consumed: list[int]) -> Iterator[Row]:
    with open_csv(source, bad) as file:
        for line, fields in file.rows():
            consumed[0] = file.consumed
            yield line, dict(zip(file.header, fields, strict=True))


def _json_rows(source: SourceFile, bad: RowErrors, consumed: list[int]) -> Iterator[Row]:
    decode = msgspec.json.Decoder(dict[str, str | int | float | bool | None]).decode
    for block in read_line_blocks(source):
        consumed[0] = block.consumed
        for number, line in enumerate(block.data.split(b"\n"), block.line):
            if line and not line.isspace():
                try:
                    yield number, decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError) as cause:
                    bad.add(source.name, number, str(cause), "an object of numbers and texts")


def _parquet_rows(source: SourceFile, consumed: list[int]) -> Iterator[Row]:
    with _open_parquet(source) as file:
        number, total = 0, max(file.metadata.num_rows, 1)
        try:
            for batch in file.iter_batches(BLOCK_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield number, values
                consumed[0] = source.bytes * number // total
        except (arrow.ArrowException, OSError) as cause:
            raise InvalidArgument(f"{source.name} is not readable as Parquet: {cause}") from cause


def _open_parquet(source: SourceFile) -> Any:
    try:
        return parquet.ParquetFile(source.path)
    except (arrow.ArrowException, OSError) as cause:
        raise InvalidArgument(f"{source.name} is not readable as Parquet: {cause}") from cause


def _checked(
    source: SourceFile,
    rows: list[Row],
    layout: TableLayout,
    request: RowPreprocessRequest,
    bad: RowErrors,
    consumed: int,
) -> RowBlock:
    numbers, names, labels = [], [], []
    plain = _find_plain_numbers(rows, layout)
    for index, (line, values) in enumerate(rows):
        try:
            found = _row(values, layout, request, None if plain is None else plain[index])
        except _Fault as fault:
            if fault.is_missing and request.missing == "drop":
                bad.dropped += 1
            else:
                bad.add(source.name, line, fault.reason, fault.legal, fault.column)
            continue
        numbers.append(found[0])
        names.append(found[1])
        labels.append(found[2])
    numbers_NC: NDArray[np.float64] = np.array(numbers, np.float64).reshape(len(numbers), len(layout.numeric))
    columns = tuple([name[index] for name in names] for index in range(len(layout.categorical)))
    return RowBlock(numbers_NC, columns, labels, consumed)


def _find_plain_numbers(rows: list[Row], layout: TableLayout) -> list[list[float]] | None:
    """The numbers of all rows, if each is there and finite, as in most blocks; else None, for a look at each."""
    try:
        found = [[float(values[name]) for name in layout.numeric] for _, values in rows]  # type: ignore[arg-type]
    except (TypeError, ValueError, KeyError):
        return None
    return found if np.isfinite(np.array(found, np.float64)).all() else None


class _Fault(Exception):
    def __init__(self, column: str, reason: str, legal: str, *, is_missing: bool = False) -> None:
        self.column, self.reason, self.legal, self.is_missing = column, reason, legal, is_missing


def _row(
    values: Mapping[str, object], layout: TableLayout, request: RowPreprocessRequest, plain: list[float] | None
) -> tuple[list[float], list[str], str]:
    label = _name(values.get(layout.label))
    if label is None:
        raise _Fault(layout.label, "no label", "a class")
    numbers = plain or [_number(name, values.get(name), request) for name in layout.numeric]
    names = []
    for column in layout.categorical:
        name = _name(values.get(column))
        if name is None and request.missing in {"error", "drop"}:
            raise _missing(column)
        names.append(name or "")
    return numbers, names, label


def _number(column: str, value: object, request: RowPreprocessRequest) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        if value is not None and not (isinstance(value, str) and value.strip().lower() in MISSING):
            legal = "a number, or name the column in categorical"
            raise _Fault(column, f"{value!r} is not a number", legal) from None
        number = math.nan
    if math.isinf(number):
        raise _Fault(column, f"{value!r} is not finite", "a finite number")
    if math.isnan(number) and request.missing in {"error", "drop"}:
        raise _missing(column)
    return number


def _missing(column: str) -> _Fault:
    return _Fault(column, "no value", "a value, or missing=drop, zero or mean", is_missing=True)


def _name(value: object) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return None if text.lower() in MISSING else text

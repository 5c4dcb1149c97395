"""Columns of a table by kind, and the reading of one row: training and serving share it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from rdukit_serving.raw_inputs.legal_values import (
    DATE_FEATURES,
    LEGAL_POINT,
    LEGAL_RANGE,
    MISSING,
    NotLegal,
    date_features,
    date_of,
    is_code,
    is_like_date,
    name_of,
    number_of,
)

NUMBER, CATEGORY, DATE = "number", "category", "date"
#: Kinds of columns that are features.
KINDS: Final = (NUMBER, CATEGORY, DATE)
#: Rules for an empty value that leave a row out or refuse it, rather than fill the value in.
UNFILLED: Final = frozenset({"error", "drop"})

#: Values of a row by column.
TableRow = Mapping[str, object]
T = TypeVar("T")


class ColumnFault(ValueError):
    """A value of a row that cannot be used, with its column and the expected values."""

    def __init__(self, column: str, reason: str, legal: str, *, is_missing: bool = False) -> None:
        super().__init__(f"column {column!r}: {reason}; expected {legal}")
        self.column, self.reason, self.legal, self.is_missing = column, reason, legal, is_missing
        #: Number of the row in its block, from 0, if a block was read.
        self.row = 0


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A table's columns that are features, by kind, each in the table's order."""

    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    dates: tuple[str, ...] = ()
    label: str = "label"
    #: The table's other columns, which are not features.
    others: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns that a row needs."""
        return (*self.numeric, *self.categorical, *self.dates)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the names of a row's numbers: the numeric columns, then ``DATE_FEATURES`` of each date."""
        return (*self.numeric, *(f"{date}.{feature}" for date in self.dates for feature in DATE_FEATURES))

    def kind_of(self, column: str) -> str:
        """Return the kind of a column that is a feature."""
        return NUMBER if column in self.numeric else CATEGORY if column in self.categorical else DATE

    def read(self, row: TableRow, missing: str, plain: list[float] | None = None) -> tuple[list[float], list[str]]:
        """Return a row's numbers [C], with NaN where one is missing, and its names [K], empty where one is missing.

        Args:
            missing: rule for an empty value: ``error`` and ``drop`` refuse it, others fill it in later. plain: the
            numeric columns, if they are known to be finite.
        Raises:
            ColumnFault: a value is not of its column's kind, or is missing and refused; the former is reported first.
        """
        numbers = list(plain) if plain is not None else [_read(number_of, column, row) for column in self.numeric]
        names = [_read(name_of, column, row) for column in self.categorical]
        for column in self.dates:
            numbers += date_features(_read(date_of, column, row))
        if missing in UNFILLED:
            empty = [name for name, number in zip(self.numbers, numbers, strict=True) if math.isnan(number)]
            empty += [column for column, name in zip(self.categorical, names, strict=True) if name is None]
            if empty:
                column = next((date for date in self.dates if empty[0] == f"{date}.{DATE_FEATURES[0]}"), empty[0])
                raise ColumnFault(column, "no value", "a value, or missing=drop, zero or mean", is_missing=True)
        return numbers, [name or "" for name in names]


def read_label(row: TableRow, column: str) -> str:
    """Return the name of a row's class.

    Raises:
        ColumnFault: the label is missing, or is not a name.
    """
    label = _read(name_of, column, row)
    if label is None:
        raise ColumnFault(column, "no label", "a class")
    return label


def read_number(row: TableRow, column: str) -> float:
    """Return a row's label that is a number.

    Raises:
        ColumnFault: the number is missing, or not finite.
    """
    try:
        label = _read(number_of, column, row)
    except ColumnFault as fault:
        raise ColumnFault(column, fault.reason, f"{LEGAL_RANGE}, because the label is a number (predict)") from None
    if math.isnan(label):
        raise ColumnFault(column, "no label", "a number")
    return label


def _read(read: Callable[[object], T], column: str, row: TableRow) -> T:
    try:
        return read(row.get(column))
    except NotLegal as fault:
        raise ColumnFault(column, fault.reason, fault.legal) from None


def find_kind(values: Sequence[object]) -> str:
    """Return the kind of a column from its first values.

    A column is a date if one of its texts looks like one, and a category if one is a code such as ``00501`` or none of
    its values is a number; a code beside numbers with a point is a number. A column of numbers with a text is numeric,
    so that the row of the text is refused. So is one in which most different texts are numbers with commas or signs:
    ranges such as ``0%`` and ``1-10%`` are categories.
    """
    texts = [value.strip() if isinstance(value, str) else value for value in values]
    there = [text for text in texts if text is not None and not (isinstance(text, str) and text.lower() in MISSING)]
    if any(is_like_date(text) for text in there):
        return DATE
    has_numbers = False
    marked: set[object] = set()
    words: set[object] = set()
    for text in there:
        legal = _legal_instead(text)
        if legal in {"", LEGAL_RANGE}:
            has_numbers = True
        else:
            (marked if legal == LEGAL_POINT else words).add(text if isinstance(text, str) else type(text))
    if any(is_code(text) for text in there):
        has_points = any(isinstance(text, str) and "." in text and not _legal_instead(text) for text in there)
        return NUMBER if has_points else CATEGORY
    return CATEGORY if there and not has_numbers and len(marked) <= len(words) else NUMBER


def _legal_instead(value: object) -> str:
    """Return the legal values if this one is no number; else nothing."""
    try:
        number_of(value)
    except NotLegal as fault:
        return fault.legal
    return ""

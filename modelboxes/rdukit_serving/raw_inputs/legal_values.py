"""Values that features and labels may have, in any file format: the same table is the same data set.

A number is finite as float32, since features are float32. Numbers in text follow JSON, with spaces around; ``1_000``,
digits of other scripts and hexadecimal are texts. Booleans are numbers as features and names as labels. A name is text,
or the shortest form of a number: ``2.0`` is ``2``. A date is ISO 8601, so that no two readers understand it
differently. Texts that mean no value count as missing in every column.
"""

import datetime
import decimal
import math
import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MISSING: Final = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
LEGAL_NUMBER: Final = "a number, or name the column in categorical"
LEGAL_POINT: Final = (
    "a number with a decimal point, without commas, spaces and signs such as % or $, or name the column in categorical"
)
LEGAL_DATE: Final = "a date such as 2025-04-03 or 2025-04-03T12:30:00, or name the column in categorical"
LEGAL_RANGE: Final = "a finite number up to 3.4e38, the range of float32"
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
#: A number with a decimal comma, or with commas between its thousands: which, only its writer knows.
_COMMAS: Final = re.compile(r"[+-]?\d[\d.]*(,[\d.]+)+", re.ASCII)
#: A number with spaces or apostrophes between its thousands, or with a minus that is no hyphen.
_SPACED: Final = re.compile(r"[+\u2212-]?[0-9]{1,3}([ \u00a0\u202f'\u2019][0-9]{3})+([.,][0-9]+)?|\u2212[0-9][0-9.,]*")
#: A number with the sign of its unit; readers differ about ``12%``.
_WITH_SIGN: Final = re.compile(r"[+-]?([$€£¥] ?[+-]?[0-9][0-9.,]*|[0-9][0-9.,]* ?[%‰$€£¥])")
#: A code such as ``00501``, which is another one than ``501``.
_CODE: Final = re.compile(r"[+-]?0\d+", re.ASCII)
_INFINITE: Final = re.compile(r"[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
_WHOLE: Final = re.compile(r"(-?\d+)\.0+", re.ASCII)
_BOOLEANS: Final = {"true": 1.0, "false": 0.0}
#: Characters of number texts that ``float`` reads exactly; such texts need no further check.
_PLAIN: Final = re.compile(r"[0-9+\-.eE ]*", re.ASCII)
#: A text that means a date in some form, and a text in the only unambiguous form.
_LIKE_DATE: Final = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([T ].*)?", re.ASCII)
#: Digits of a second beyond microseconds are left out.
_DATE: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,9})?)?(Z|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?)?", re.ASCII
)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
#: From here on floats have not all whole numbers.
_EXACT: Final = 1 << 53
_NAMED: Final = (str, bool, int, float, decimal.Decimal, datetime.date)


class NotLegal(ValueError):
    """A value that its place does not allow."""

    def __init__(self, reason: str, legal: str) -> None:
        super().__init__(f"{reason}; expected {legal}")
        self.reason, self.legal = reason, legal


def number_of(value: object) -> float:
    """Return a feature's number; NaN if it is missing.

    Raises:
        NotLegal: the value is not a number, or float32 cannot hold it.
    """
    text = value.strip() if isinstance(value, str) else None
    if value is None or (text is not None and text.lower() in MISSING):
        return math.nan
    if text is not None and not _NUMBER.fullmatch(text):
        if text.lower() in _BOOLEANS:
            return _BOOLEANS[text.lower()]
        if _INFINITE.fullmatch(text):
            raise NotLegal(f"{value!r} is not finite", LEGAL_RANGE)
        is_marked = any(form.fullmatch(text) for form in (_COMMAS, _WITH_SIGN, _SPACED))
        raise NotLegal(f"{value!r} is not a number", LEGAL_POINT if is_marked else LEGAL_NUMBER)
    if not isinstance(value, str | bool | int | float | decimal.Decimal):
        raise NotLegal(f"{_short(value)} is not a number", LEGAL_NUMBER)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isnan(number) or is_float32(number)):
        raise NotLegal(f"{_short(value)} is {'not finite' if math.isinf(number) else 'beyond float32'}", LEGAL_RANGE)
    return number


def plain_numbers(rows: list[list[object]]) -> list[list[float]] | None:
    """Return the numbers of rows if all values are plain numbers; else ``None``."""
    try:
        if not all(_PLAIN.fullmatch("".join([value for value in row if isinstance(value, str)])) for row in rows):
            return None
        if any(isinstance(value, bytes | bytearray) for row in rows for value in row):
            return None
        found = [[float(value) for value in row] for row in rows]  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return found if np.isfinite(as_float32(np.array(found, np.float64))).all() else None


def name_of(value: object) -> str | None:
    """Return the name of a label or a category; ``None`` if it is missing.

    Raises:
        NotLegal: the value is neither text nor a finite number, not UTF-8, or a float that several whole numbers have.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise NotLegal(f"{_short(value)} is not UTF-8", "text in UTF-8") from None
    if value is None or (isinstance(value, float | decimal.Decimal) and math.isnan(value)):
        return None
    if not isinstance(value, _NAMED):
        raise NotLegal(f"{_short(value)} is not a name", "a text or a number")
    if isinstance(value, float) and value.is_integer():
        if abs(value) >= _EXACT:  # gRPC has no other numbers
            raise NotLegal(f"{value:.0f} as a float stands for several whole numbers", "such a number as a text")
        value = int(value)
    text = str(value).strip()
    if text.lower() in MISSING:
        return None
    if _INFINITE.fullmatch(text):
        raise NotLegal(f"{value!r} is not finite", "a text or a finite number")
    whole = _WHOLE.fullmatch(text)
    return str(int(whole[1])) if whole and len(whole[1]) < 400 else text


def is_code(value: object) -> bool:
    """Return whether a value is a text of digits that begins with 0, which a number would not keep."""
    return isinstance(value, str) and _CODE.fullmatch(value.strip()) is not None


def is_like_date(value: object) -> bool:
    """Return whether a value is a date, or a text that may mean one."""
    return isinstance(value, datetime.date) or (
        isinstance(value, str) and _LIKE_DATE.fullmatch(value.strip()) is not None
    )


def date_of(value: object) -> datetime.datetime | None:
    """Return a date with its time in UTC; UTC is the default time zone. ``None`` if it is missing.

    Raises:
        NotLegal: the value is not a date, or its form is ambiguous.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() in MISSING):
        return None
    if isinstance(value, str) and _DATE.fullmatch(value.strip()):
        try:
            value = datetime.datetime.fromisoformat(value.strip())
        except ValueError as cause:
            raise NotLegal(f"{value!r} is not a date: {cause}", LEGAL_DATE) from None
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, datetime.time())
    if not isinstance(value, datetime.datetime):
        raise NotLegal(f"{_short(value)} is not a date", LEGAL_DATE)
    try:
        return value.replace(tzinfo=value.tzinfo or datetime.UTC).astimezone(datetime.UTC)
    except OverflowError:
        raise NotLegal(f"{_short(value)} is before the year 1 or after 9999 in UTC", LEGAL_DATE) from None


#: Features of a date, in their order: calendar year, month from 1, weekday from 0 (Monday), days since 1970-01-01.
DATE_FEATURES: Final = ("year", "month", "weekday", "days")


def date_features(value: datetime.datetime | None) -> list[float]:
    """Return ``DATE_FEATURES`` of a date in UTC, days with their fraction; all NaN if it is missing."""
    if value is None:
        return [math.nan] * len(DATE_FEATURES)
    days = (value - _EPOCH) / datetime.timedelta(days=1)
    return [float(value.year), float(value.month), float(value.weekday()), days]


def as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as float32 by way of float64, like numbers from text; values that do not fit become infinite."""
    with np.errstate(over="ignore"):
        found: NDArray[np.float32] = values.astype(np.float64).astype(np.float32)
    return found


def is_float32(number: float) -> bool:
    """Return whether a number is finite as float32."""
    return bool(np.isfinite(as_float32(np.float64(number))))  # type: ignore[arg-type]


def _short(value: object) -> str:
    text = str(value) if isinstance(value, datetime.date | datetime.time | datetime.timedelta) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"

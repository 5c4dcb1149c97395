"""Pages of rows that are listed newest first: the cursor names the last row of the page before."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import ColumnElement, and_, or_
from sqlalchemy.orm import InstrumentedAttribute

from rdukit.errors import InvalidArgument

MAX_LIMIT: Final = 200


class Listed(Protocol):
    """A row with an id and a time of creation."""

    @property
    def id(self) -> Any: ...
    @property
    def created_at(self) -> Any: ...


R = TypeVar("R", bound=Listed)


def check_limit(limit: int) -> int:
    """``limit`` if it is legal.

    Raises:
        InvalidArgument: it is not.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidArgument(f"limit is {limit}; legal: 1 to {MAX_LIMIT}")
    return limit


def after_cursor(
    cursor: str, created_at: InstrumentedAttribute[float], row_id: InstrumentedAttribute[str]
) -> ColumnElement[bool]:
    """The condition that a row comes after the cursor.

    Raises:
        InvalidArgument: the text is not a cursor.
    """
    try:
        at, last_id = json.loads(base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)))
        at, last_id = float(at), str(last_id)
    except (ValueError, TypeError, binascii.Error) as cause:
        raise InvalidArgument(f"{cursor!r} is not a cursor; use next_cursor of the page before") from cause
    return or_(created_at < at, and_(created_at == at, row_id < last_id))


def cut_page(rows: Sequence[R], limit: int) -> tuple[list[R], str | None]:
    """The page and the next cursor, from up to ``limit + 1`` rows."""
    page = list(rows[:limit])
    if len(rows) <= limit:
        return page, None
    text = json.dumps([page[-1].created_at, page[-1].id]).encode()
    return page, base64.urlsafe_b64encode(text).decode().rstrip("=")

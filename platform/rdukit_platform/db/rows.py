"""Names for new rows, and pages of rows that are listed newest first."""

import base64
import binascii
import json
import secrets
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import ColumnElement, Select, and_, or_
from sqlalchemy.orm import InstrumentedAttribute, Session

from rdukit.errors import InvalidArgument

MAX_LIMIT: Final = 200


class Listed(Protocol):
    """A row with an id and a time of creation."""

    @property
    def id(self) -> Any: ...
    @property
    def created_at(self) -> Any: ...


R = TypeVar("R", bound=Listed)


def read_page(
    session: Session,
    query: Select[R],
    created_at: InstrumentedAttribute[float],
    row_id: InstrumentedAttribute[str],
    limit: int,
    cursor: str | None,
) -> tuple[list[R], str | None]:
    """Return the page of a query's rows after ``cursor``, and the cursor of the next page; None: it is the last.

    ``created_at`` and ``row_id`` are the columns of the rows.

    Raises:
        InvalidArgument: limit or cursor are not valid.
    """
    if cursor is not None:
        query = query.where(after_cursor(cursor, created_at, row_id))
    query = query.order_by(created_at.desc(), row_id.desc()).limit(check_limit(limit) + 1)
    return cut_page(session.scalars(query).all(), limit)


def check_limit(limit: int, name: str = "limit") -> int:
    """Return ``limit`` if it is legal; ``name`` is the caller's name of it.

    Raises:
        InvalidArgument: the limit is out of range.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidArgument(f"{name} is {limit}; expected 1 to {MAX_LIMIT}")
    return limit


def after_cursor(
    cursor: str, created_at: InstrumentedAttribute[float], row_id: InstrumentedAttribute[str]
) -> ColumnElement[bool]:
    """Return the condition that a row comes after the cursor.

    Raises:
        InvalidArgument: the text is not a cursor.
    """
    try:
        at, last_id = json.loads(base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)))
        at, last_id = float(at), str(last_id)
    except (ValueError, TypeError, binascii.Error) as cause:
        raise InvalidArgument(f"{cursor!r} is not a cursor; use next_cursor of the previous page") from cause
    # The first condition is redundant, but an index can begin with it.
    return and_(created_at <= at, or_(created_at < at, row_id < last_id))


def cut_page(rows: Sequence[R], limit: int) -> tuple[list[R], str | None]:
    """Return the page and the next cursor, from up to ``limit + 1`` rows."""
    page = list(rows[:limit])
    return page, cursor_at(page[-1].created_at, page[-1].id) if len(rows) > limit else None


def cursor_at(created_at: float, row_id: str) -> str:
    """Return the cursor that continues after a row."""
    text = json.dumps([created_at, row_id]).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


#: Crockford's base 32, repeated to 256 letters, so that each letter stands for eight byte values.
_LETTERS: Final = b"0123456789abcdefghjkmnpqrstvwxyz" * 8


def new_id(kind: str) -> str:
    """Create an id: ``job-7k2m…``, 12 characters of Crockford's base 32 after the kind."""
    return f"{kind}-{secrets.token_bytes(12).translate(_LETTERS).decode()}"

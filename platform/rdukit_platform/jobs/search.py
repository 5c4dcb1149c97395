"""Search in a tenant's jobs: every word must occur in a job's name, box, verb, reason, labels, submitter or id.

There is no index of words. Each answer examines a bounded number of jobs, newest first. If jobs remain, the page has a
cursor and the time it has reached. Labels and beginnings of ids are found along indexes, whatever the job's age.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, SQLColumnExpression, Text, and_, cast, or_, select
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument
from rdukit_platform.db.models import JobRow, MembershipRow, TokenRow, UserRow
from rdukit_platform.jobs.schemas import LABEL_KEY

MAX_SEARCH: Final = 200
MAX_WORDS: Final = 8
#: Largest number of jobs that one answer examines; measured by ``benchmarks/programs/bench_job_reads.py``.
LOOKED_THROUGH: Final = 10_000
#: Beginning of a job's id, long enough to match few jobs.
ID_PREFIX: Final = re.compile(r"job-[0-9a-z]{4,12}")
#: Largest number of jobs examined for a beginning of an id, and of people that a word may mean.
MAX_PREFIXED: Final = 1000
MAX_PEOPLE: Final = 100
_ESCAPE: Final = "\\"


@dataclass(frozen=True, slots=True)
class Search:
    """Words and labels of a search (pure)."""

    words: tuple[str, ...] = ()
    #: Words of the form ``KEY=VALUE``, each possibly a label.
    labels: Mapping[str, str] | None = None

    @property
    def id_prefix(self) -> str:
        """Return the first word that may begin a job's id; empty if there is none."""
        return next((word for word in self.words if ID_PREFIX.fullmatch(word)), "")


def read_search(text: str) -> Search:
    """Return the distinct words of a search, in lower case, and the labels among them, ``KEY=VALUE`` (pure).

    Raises:
        InvalidArgument: the text is too long, has too many words, or a character of code 0.
    """
    if len(text) > MAX_SEARCH:
        raise InvalidArgument(f"the search has {len(text)} characters; expected up to {MAX_SEARCH}")
    if "\x00" in text:  # databases refuse it
        raise InvalidArgument("the search has a character of code 0; expected words")
    found = list(dict.fromkeys(text.split()))
    if len(found) > MAX_WORDS:
        raise InvalidArgument(f"the search has {len(found)} words; expected up to {MAX_WORDS}")
    labels = {}
    for word in found:
        key, is_pair, value = word.partition("=")
        if is_pair and LABEL_KEY.fullmatch(key) and key not in labels:
            labels[key] = value
    return Search(tuple(dict.fromkeys(word.lower() for word in found)), labels)


def has_words(session: Session, tenant_id: str, words: Sequence[str]) -> list[ColumnElement[bool]]:
    """Return one condition per word; together they select jobs with all words."""
    return [_has(session, word, find_people(session, tenant_id, word)) for word in words]


def find_people(session: Session, tenant_id: str, word: str) -> list[str]:
    """Return the ids of the tenant's users and tokens whose name, address or id matches the word, up to a limit."""
    users = select(UserRow.id).join(MembershipRow, MembershipRow.user_id == UserRow.id)
    is_user = or_(_contains(session, UserRow.email, word), _contains(session, UserRow.name, word), UserRow.id == word)
    users = users.where(MembershipRow.tenant_id == tenant_id, is_user).limit(MAX_PEOPLE)
    is_token = or_(_contains(session, TokenRow.name, word), TokenRow.id == word)
    tokens = select(TokenRow.id).where(TokenRow.tenant_id == tenant_id, TokenRow.user_id.is_(None), is_token)
    return [*session.scalars(users), *session.scalars(tokens.limit(MAX_PEOPLE))]


def name_people(session: Session, ids: Collection[str | None]) -> dict[str, str]:
    """Return the names of submitters by id: a user's address, or a token's name."""
    asked = {one for one in ids if one}
    users = session.execute(select(UserRow.id, UserRow.email, UserRow.name).where(UserRow.id.in_(asked)))
    tokens = session.execute(select(TokenRow.id, TokenRow.name).where(TokenRow.id.in_(asked)))
    return {row.id: row.email or row.name or row.id for row in users} | {
        row.id: f"token {row.name or row.id}" for row in tokens
    }


def _has(session: Session, word: str, people: Sequence[str]) -> ColumnElement[bool]:
    found = [_contains(session, column, word) for column in (JobRow.name, JobRow.box, JobRow.verb, JobRow.reason)]
    found.append(_contains(session, cast(JobRow.labels, Text), json.dumps(word)[1:-1]))
    found.append(JobRow.id.like(f"{_escape(word)}%", escape=_ESCAPE))
    if people:
        found.append(JobRow.submitted_by.in_(people))
    return or_(*found)


def _contains(session: Session, column: SQLColumnExpression[Any], word: str) -> ColumnElement[bool]:
    pattern = f"%{_escape(word)}%"
    # SQLite's LIKE ignores case, and is three times as fast as LIKE on two lower().
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    return column.like(pattern, escape=_ESCAPE) if is_sqlite else column.ilike(pattern, escape=_ESCAPE)


def _escape(word: str) -> str:
    return word.replace(_ESCAPE, _ESCAPE * 2).replace("%", r"\%").replace("_", r"\_")


def begins_with(prefix: str) -> ColumnElement[bool]:
    """Return the condition that a job's id begins with ``prefix``, as a range of the primary key."""
    return and_(JobRow.id >= prefix, JobRow.id < prefix + "~")

"""Usage of endpoints: read rows and tokens from answers (pure), count them in memory, and write them periodically."""

import functools
import logging
import re
import threading
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import func, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from rdukit.interfaces import Clock
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import EndpointUsageRow
from rdukit_platform.jobs.changes import count_changed

logger = logging.getLogger(__name__)

DAY_S: Final = 86400.0
#: Largest answer in bytes that is read for its usage. Longer ones count as requests only; for streams the end is read.
MAX_READ: Final = 1 << 20
TAIL: Final = 16 << 10
#: Largest number of occurrences of ``usage`` examined at a stream's end.
USAGES: Final = 4
#: Counts in SambaStudio's answers, whose streams are lines of JSON.
_COUNTED: Final = re.compile(rb'"(prompt|completion)_tokens_count":(\d{1,9})\b')
_MODEL: Final = re.compile(rb'"model(?:_name)?"\s*:\s*"([^"\\]{1,128})"')
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


#: Names of the counts in each API. Anthropic's counts cached tokens separately.
_PROMPT: Final = ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_COMPLETION: Final = ("completion_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Use:
    """Use of an endpoint by one call, or by several together."""

    requests: int = 0
    failures: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: "Use") -> "Use":
        """Return the sum."""
        return Use(
            self.requests + other.requests, self.failures + other.failures, self.rows + other.rows,
            self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens,
        )  # fmt: skip


def read_use(status: int, head: bytes, tail: bytes, *, header_bytes: int | None = None) -> Use:
    """Read rows or tokens from an answer (pure). An unreadable answer counts as a request only.

    A refused request (4xx) is its caller's fault, not the revision's failure.

    Args:
        head: the complete answer, or its begin.
        tail: the end of a stream of events.
        header_bytes: number of leading bytes that are JSON, if binary tensors follow.
    """
    if status >= 400:
        return Use(1, failures=int(status >= 500))
    found = _find_usage(tail)
    if found is not None:
        return _tokens(read_object(found))
    answer = read_object(head if header_bytes is None else head[:header_bytes])
    if "usage" in answer:
        return _tokens(answer["usage"])
    counted = _COUNTED.findall(head) if header_bytes is None else []
    if counted:
        totals = {
            kind: sum(int(count) for each, count in counted if each == kind) for kind in (b"prompt", b"completion")
        }
        return _tokens({"prompt_tokens": totals[b"prompt"], "completion_tokens": totals[b"completion"]})
    if isinstance(predictions := answer.get("predictions"), list):
        return Use(1, rows=_count(len(predictions)))
    outputs = answer.get("outputs")
    first = outputs[0] if isinstance(outputs, list) and outputs else None
    shape = first.get("shape") if isinstance(first, dict) else None
    rows = shape[0] if isinstance(shape, list) and shape else 0
    return Use(1, rows=_count(rows))


def _find_usage(tail: bytes) -> bytes | None:
    """Return the last ``usage`` object at a stream's end; only the last ``USAGES`` occurrences are tried."""
    end = len(tail)
    for _ in range(USAGES):
        end = tail.rfind(b'"usage"', 0, end)
        if end < 0:
            break
        if (match := _USAGE.match(tail, end)) is not None:
            return match[1]
    return None


def read_model(head: bytes, tail: bytes, known: Container[str]) -> str:
    """Read the name of the ``known`` model that answered (pure); empty: unknown or missing.

    Boxes are not trusted with names: only names of the bundle are counted.
    """
    found = [match[1] for text in (tail, head[:TAIL]) for match in _MODEL.finditer(text)]
    return next((name for name in (each.decode(errors="replace") for each in found) if name in known), "")


def _tokens(usage: object) -> Use:
    if not isinstance(usage, dict):
        return Use(1)
    prompt, completion = (sum(_count(usage.get(name)) for name in names) for names in (_PROMPT, _COMPLETION))
    return Use(1, prompt_tokens=_count(prompt), completion_tokens=_count(completion))


def read_object(text: bytes) -> dict[str, Any]:
    """Parse an answer as a JSON object (pure); other answers give an empty one."""
    try:
        value = orjson.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    # Boxes are not trusted with the size of numbers.
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else 0


class UsageCounter:
    """Counter of uses in memory; ``flush`` writes them. Thread-safe."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock
        self._lock = threading.Lock()
        #: Unwritten use by endpoint, day, revision and model.
        self._unwritten: dict[tuple[str, int, int, str], Use] = {}

    def count(self, endpoint_id: str, revision: int, use: Use, model: str = "") -> None:
        """Count a use in memory. ``revision``: 0: no replica answered; ``model``: the model of a bundle, else empty."""
        key = endpoint_id, int(self._clock.now() // DAY_S), revision, model
        with self._lock:
            self._unwritten[key] = self._unwritten.get(key, Use()).plus(use)

    def flush(self) -> None:
        """Write the unwritten uses; after a database error they stay for the next call."""
        with self._lock:
            uses, self._unwritten = self._unwritten, {}
        if not uses:
            return
        try:
            with self._database.write() as session:
                for (endpoint_id, day, revision, model), use in sorted(uses.items()):
                    add_use(session, endpoint_id, day, revision, use, model)
        except SQLAlchemyError as error:
            logger.warning("usage not written error=%s", error)
            with self._lock:
                for key, use in uses.items():
                    self._unwritten[key] = self._unwritten.get(key, Use()).plus(use)


def add_use(session: Session, endpoint_id: str, day: int, revision: int, use: Use, model: str = "") -> None:
    """Add use of one day to a revision of an endpoint, or to a model of its bundle."""
    row = EndpointUsageRow
    is_meant = (row.endpoint_id == endpoint_id, row.day == day, row.revision == revision, row.model == model)
    query = update(row).where(*is_meant)
    values = {name: getattr(row, name) + getattr(use, name) for name in Use.__slots__}
    if not count_changed(session, query.values(values)):
        values = {name: getattr(use, name) for name in Use.__slots__}
        session.add(row(endpoint_id=endpoint_id, day=day, revision=revision, model=model, **values))
        session.flush()


def read_uses(session: Session, endpoint_ids: Sequence[str]) -> dict[str, dict[int, dict[str, Use]]]:
    """Return the total use of each endpoint by revision and model; the model is "" without a bundle.

    Revision 0 has the calls that no revision answered.
    """
    row = EndpointUsageRow
    sums = [func.sum(getattr(row, name)) for name in Use.__slots__]
    query = select(row.endpoint_id, row.revision, row.model, *sums).where(row.endpoint_id.in_(endpoint_ids))
    found: dict[str, dict[int, dict[str, Use]]] = {endpoint_id: {} for endpoint_id in endpoint_ids}
    for endpoint_id, revision, model, *rest in session.execute(
        query.group_by(row.endpoint_id, row.revision, row.model)
    ):
        found[endpoint_id].setdefault(revision, {})[model] = Use(*(int(each) for each in rest))
    return found


def sum_uses(uses: Iterable[Use]) -> Use:
    """Return the sum of several."""
    return functools.reduce(Use.plus, uses, Use())

"""Client of a ModelBox's REST API (``docs/design/wire.md`` section 2), for command lines and for the platform's worker.

A caller that does not trust the box limits what it reads: see ``max_bytes``.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import urllib3

from rdukit.box.sse import EVENT_STREAM, read_events, read_lines
from rdukit.errors import Cancelled, InvalidArgument, OutputRefused, Unauthenticated, Unavailable, error_from_body
from rdukit.http.answers import MAX_ANSWER_BYTES, PLAIN, read_bounded, refuse_packed
from rdukit.http.tls import verify_of
from rdukit.http.unix_pool import UnixPool
from rdukit.http.unix_sockets import SocketPath, parse_rest_address
from rdukit.interfaces import Closable
from rdukit.telemetry.spans import TRACEPARENT

#: Seconds of silence after which the client reattaches to a stream; a live box sends a comment every 5 s.
SILENCE_S: Final = 15.0
#: Idle connections kept open.
MAX_IDLE: Final = 4
BLOCK: Final = 64 << 10
#: Successive attachments without an event after which the box counts as unreachable, and the pause between two.
MAX_REATTACH: Final = 20
REATTACH_PAUSE_S: Final = 0.25

_FINAL: Final = frozenset({"succeeded", "failed", "cancelled"})


class BoxClient(Closable):
    """Talks to one box. All methods return plain JSON values."""

    def __init__(self, url: str, timeout_s: float = 60.0, token: str = "", max_bytes: int = MAX_ANSWER_BYTES) -> None:
        """Prepare a client; the first call connects.

        Args:
            token: for a box that requires one.
            max_bytes: limit of each answer and of each event.
        Raises:
            InvalidArgument: ``url`` is not an address of a box, or the token cannot be sent.
        """
        self.url = url.rstrip("/")
        where = parse_rest_address(url)
        if not (token.isascii() and token.isprintable()):
            raise InvalidArgument("the box's token is not valid; expected printable ASCII")
        self._has_token = bool(token)
        self._max_bytes = max_bytes
        self._headers = dict(PLAIN)
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._socket = None if where.path is None else SocketPath(where.path)
        self._prefix = urlsplit(where.base_url).path
        if self._socket is not None:
            self._pool: urllib3.HTTPConnectionPool = UnixPool(self._socket.text, maxsize=MAX_IDLE)
        elif where.base_url.startswith("https://"):
            context = verify_of(where.base_url)
            self._pool = urllib3.connection_from_url(where.base_url, maxsize=MAX_IDLE, ssl_context=context)
        else:
            self._pool = urllib3.connection_from_url(where.base_url, maxsize=MAX_IDLE)
        self._timeout_s = timeout_s

    def describe(self) -> dict[str, Any]:
        """Return verbs, parameters and legal values."""
        return self._call("GET", "/v1/describe")

    def health(self) -> dict[str, Any]:
        """Return the box's readiness.

        Raises:
            Unavailable: the box is not ready, with its reason, or does not answer.
        """
        with self._opening("GET", "/health/ready") as answer:
            value = self._read(answer)
        if answer.status != 200:
            raise Unavailable(f"the box at {self.url} is not ready: {value.get('reason')}")
        return value

    def submit(
        self,
        verb: str,
        parameters: Mapping[str, object] | None = None,
        inputs: Mapping[str, str] | None = None,
        output: str = "",
        *,
        timeout_s: float = 0.0,
        profile: bool = False,
        traceparent: str = "",
    ) -> dict[str, Any]:
        """Request a verb; return the queued operation.

        Args:
            timeout_s: seconds within which the operation must end, including its time in the queue; 0: no limit.
            profile: record where its time goes, as the output ``profile``.
            traceparent: parent span of the operation's spans; empty: that of the box.
        Raises:
            RdukitError: the box refused; the error's code selects the class.
            Unavailable: the box does not answer.
        """
        body: dict[str, object] = {
            "parameters": dict(parameters or {}), "inputs": dict(inputs or {}), "output": output,
            "timeout_s": timeout_s, **_asked(profile),
        }  # fmt: skip
        return self._call("POST", f"/v1/{verb}", body, {TRACEPARENT: traceparent} if traceparent else None)

    @contextmanager
    def run(
        self, verb: str, parameters: Mapping[str, object], inputs: Mapping[str, str], output: str, *,
        profile: bool = False, traceparent: str = "", stop: threading.Event | None = None,
        is_alive: Callable[[], bool] | None = None,
    ) -> Iterator[Iterator[dict[str, Any]]]:  # fmt: skip
        """Request a verb and yield its events: ``submit`` and ``events`` in one request.

        Raises:
            RdukitError: on entry, as from ``submit``; while reading, as from ``events``.
        """
        body = {"parameters": dict(parameters), "inputs": dict(inputs), "output": output, **_asked(profile)}
        headers = {"Accept": EVENT_STREAM} | ({TRACEPARENT: traceparent} if traceparent else {})
        with self._asking("POST", f"/v1/{verb}", body, headers) as answer:
            if answer.headers.get("Content-Type", "").startswith(EVENT_STREAM):
                operation_id = answer.headers.get("Location", "").rpartition("/")[2]
                yield self._follow(operation_id, 0, stop, is_alive, answer)
                return
            operation_id = str(self._read(answer)["id"])  # an older box
        yield self.events(operation_id, 0, stop, is_alive)

    def infer_rows(self, rows: list[list[float]], inputs: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Classify rows without an operation; return ``{"outputs", "labels"}``."""
        return self._call("POST", "/v1/infer", {"rows": rows, "inputs": dict(inputs or {})})

    def operation(self, operation_id: str) -> dict[str, Any]:
        """Return the current state of one operation."""
        return self._call("GET", f"/v1/operations/{operation_id}")

    def operations(self, state: str = "", verb: str = "") -> Iterator[dict[str, Any]]:
        """Yield operations, newest first, filtered by ``state`` and ``verb`` if given; fetch pages as needed."""
        query = {key: value for key, value in (("state", state), ("verb", verb)) if value}
        while True:
            page = self._call("GET", f"/v1/operations?{urlencode(query)}")
            yield from page["operations"]
            if not page["next_cursor"]:
                return
            query["cursor"] = page["next_cursor"]

    def cancel(self, operation_id: str) -> dict[str, Any]:
        """Cancel an operation and wait until it has ended."""
        return self._call("POST", f"/v1/operations/{operation_id}/cancel")

    def events(
        self,
        operation_id: str,
        after: int = 0,
        stop: threading.Event | None = None,
        is_alive: Callable[[], bool] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield events with numbers above ``after``, up to the result; reattach if a stream breaks.

        Args:
            stop: ends the stream, with ``Cancelled``.
            is_alive: returns whether the box still runs, if the caller knows.
        Raises:
            NotFound: no such operation.
            Unavailable: the box has ended, or ``MAX_REATTACH`` successive attachments brought no event.
            Cancelled: ``stop`` was set.
            RdukitError: the box refused.
        """
        return self._follow(operation_id, after, stop, is_alive)

    def wait(self, operation_id: str) -> dict[str, Any]:
        """Return the operation once it has ended."""
        operation: dict[str, Any] = {}
        for event in self.events(operation_id):
            operation = event.get("operation", operation)
        return operation

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()
        if self._socket is not None:
            self._socket.close()

    def _follow(
        self, operation_id: str, after: int, stop: threading.Event | None, is_alive: Callable[[], bool] | None,
        answer: urllib3.BaseHTTPResponse | None = None,
    ) -> Iterator[dict[str, Any]]:  # fmt: skip
        """Yield events as ``events`` does; ``answer``: an open stream to read first."""
        failures = 0
        while True:
            try:
                events = self._attach(operation_id, after) if answer is None else self._events_in(answer)
                for event in events:
                    failures, after = 0, max(after, int(event.get("sequence") or 0))
                    if event["kind"] == "result":
                        with suppress(urllib3.exceptions.HTTPError, ValueError, TypeError):
                            next(events, None)  # frees the connection
                        yield event
                        return
                    yield event
                    _check(stop)
                if is_alive is None and self.operation(operation_id)["state"] in _FINAL:
                    return  # the caller has all of its events
                reason = "the box closed the stream before it sent the result"
            except (urllib3.exceptions.HTTPError, Unavailable, ValueError, TypeError, RecursionError) as cause:
                reason = str(cause.args[0]) if cause.args else type(cause).__name__
            _check(stop)
            failures, answer = failures + 1, None
            if failures > MAX_REATTACH or not (is_alive is None or is_alive()):
                raise Unavailable(f"the box broke off its answer: {reason}")
            time.sleep(REATTACH_PAUSE_S)

    def _attach(self, operation_id: str, after: int) -> Iterator[dict[str, Any]]:
        path = f"/v1/operations/{operation_id}/events?{urlencode({'after': after})}"
        with self._asking("GET", path, headers={"Accept": EVENT_STREAM}, silence_s=SILENCE_S) as answer:
            yield from self._events_in(answer)

    def _events_in(self, answer: urllib3.BaseHTTPResponse) -> Iterator[dict[str, Any]]:
        return read_events(read_lines(_blocks_of(answer), self._max_bytes))

    def _call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:  # fmt: skip
        with self._asking(method, path, body, headers) as answer:
            return self._read(answer)

    @contextmanager
    def _asking(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None,
        silence_s: float | None = None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:  # fmt: skip
        """Yield the answer, unless the box refuses."""
        with self._opening(method, path, body, headers, silence_s) as answer:
            if answer.status == Unauthenticated.http_status:
                which = "knows another token" if self._has_token else "asks for a token"
                raise Unauthenticated(
                    f"the box at {self.url} {which}: pass --token TOKEN or @FILE, or set RDUKIT_TOKEN"
                )
            if answer.status >= 400:
                raise error_from_body(self._read(answer))
            yield answer

    @contextmanager
    def _opening(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None,
        silence_s: float | None = None,
    ) -> Iterator[urllib3.BaseHTTPResponse]:  # fmt: skip
        """Yield the answer. ``silence_s``: read timeout; None: the client's."""
        try:
            answer = self._pool.urlopen(
                method, self._prefix + path, None if body is None else json.dumps(body).encode(),
                {**self._headers, **({} if body is None else {"Content-Type": "application/json"}), **(headers or {})},
                retries=False, redirect=False, timeout=silence_s or self._timeout_s,
                preload_content=False, decode_content=False,
            )  # fmt: skip
        except urllib3.exceptions.HTTPError as cause:
            raise self._unavailable(cause) from cause
        try:
            yield answer
        finally:
            answer.close()  # if it was read to its end, its connection serves the next request already

    def _unavailable(self, cause: Exception) -> Unavailable:
        hint = "" if self._socket is not None else '; start one with: rdukit box run, and wait for "serving"'
        reason = getattr(cause.__cause__, "strerror", None) or cause
        return Unavailable(f"no box answers at {self.url} ({reason}){hint}")

    def _read(self, answer: urllib3.BaseHTTPResponse) -> dict[str, Any]:
        where = f"{self.url}{answer.url}"
        refuse_packed(answer.headers, "the box", OutputRefused)
        try:
            data = read_bounded(_blocks_of(answer), self._max_bytes, "the box", OutputRefused)
        except urllib3.exceptions.HTTPError as cause:
            raise self._unavailable(cause) from cause
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as cause:
            raise Unavailable(f"{where} answered {answer.status} without JSON; is it a box?") from cause
        if not isinstance(value, dict):
            raise Unavailable(f"{where} answered {type(value).__name__} ; expected a JSON object")
        return value


def _asked(profile: bool) -> dict[str, object]:
    """Return the key that asks for a profile; boxes of earlier versions do not know it."""
    return {"profile": True} if profile else {}


def _blocks_of(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    while block := answer.read1(BLOCK):
        yield block


def _check(stop: threading.Event | None) -> None:
    if stop is not None and stop.is_set():
        raise Cancelled("the attempt was stopped")

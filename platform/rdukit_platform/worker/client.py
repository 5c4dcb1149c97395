"""A box's REST wire, from the caller's side (``docs/design/wire.md`` section 2)."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import httpx

from rdukit.errors import Cancelled, OutputRefused, RdukitError, Unavailable, error_from_body
from rdukit.http.tls import verify_of
from rdukit.http.unix_sockets import SocketPath, parse_rest_address
from rdukit.interfaces import Closable

logger = logging.getLogger(__name__)

#: A stream that is silent for so long is attached to anew; the box may have lost it.
SILENCE_S: Final = 15.0
REATTACH_PAUSE_S: Final = 0.2
#: Failed attachments in a row after which the box is given up.
MAX_REATTACH: Final = 25
#: Bytes of an answer, and of an event, at most: a box is not trusted to say only what there is to say.
MAX_ANSWER_BYTES: Final = 4 << 20


class BoxClient(Closable):
    """Calls one box."""

    def __init__(self, url: str) -> None:
        where = parse_rest_address(url)
        self._socket = None if where.path is None else SocketPath(where.path)
        self._http = httpx.Client(
            base_url=where.base_url, timeout=httpx.Timeout(30.0, connect=5.0, read=SILENCE_S), trust_env=False,
            # Bytes are counted as they come.
            headers={"Accept-Encoding": "identity"},
            transport=None if self._socket is None else httpx.HTTPTransport(uds=self._socket.text),
            verify=verify_of(where.base_url),
        )  # fmt: skip

    def call_verb(
        self, verb: str, parameters: Mapping[str, object], inputs: Mapping[str, str], output: str, key: str
    ) -> dict[str, Any]:
        """Start a verb. Returns its operation.

        Raises:
            RdukitError: the box refused; the class is the one that the error's code names.
            Unavailable: it does not answer.
        """
        body = {"parameters": parameters, "inputs": inputs, "output": output, "idempotency_key": key}
        try:
            with self._http.stream("POST", f"/v1/{verb}", json=body) as answer:
                return _body_of(answer)
        except httpx.HTTPError as cause:
            raise Unavailable(f"the box does not answer {verb}: {cause!r}") from cause

    def cancel(self, operation_id: str) -> None:
        """Ask for an operation's end; says nothing if the box is away."""
        try:
            with self._http.stream("POST", f"/v1/operations/{operation_id}/cancel", timeout=2.0):
                pass
        except httpx.HTTPError as error:
            logger.debug("cancel not heard operation=%s error=%r", operation_id, error)

    def follow(
        self, operation_id: str, stop: threading.Event, is_running: Callable[[], bool]
    ) -> Iterator[dict[str, Any]]:
        """An operation's events up to its result; a broken stream is attached to again where it broke.

        Raises:
            Cancelled: ``stop`` was set.
            Unavailable: the box has ended, or cannot be reached any more.
            RdukitError: the box refused.
        """
        after, failures = 0, 0
        while True:
            try:
                for event in self._attach(operation_id, after):
                    failures = 0
                    after = max(after, int(event.get("sequence") or 0))
                    yield event
                    if event.get("kind") == "result":
                        return
                    if stop.is_set():
                        raise Cancelled("the attempt was stopped")
            except (httpx.HTTPError, ValueError, TypeError, RecursionError) as error:
                logger.info("stream broke operation=%s after=%d error=%r", operation_id, after, error)
            if stop.is_set():
                raise Cancelled("the attempt was stopped")
            failures += 1
            if not is_running() or failures > MAX_REATTACH:
                raise Unavailable("the box ended before it gave a result")
            time.sleep(REATTACH_PAUSE_S)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        if self._socket is not None:
            self._socket.close()

    def _attach(self, operation_id: str, after: int) -> Iterator[dict[str, Any]]:
        url = f"/v1/operations/{operation_id}/events"
        with self._http.stream("GET", url, params={"after": after}, headers={"Accept": "text/event-stream"}) as answer:
            if answer.status_code != 200:
                _body_of(answer)
            yield from read_events(limited_lines(answer.iter_raw()))


def limited_lines(blocks: Iterable[bytes], most: int = MAX_ANSWER_BYTES) -> Iterator[str]:
    """The lines of a stream, without their ends.

    Raises:
        OutputRefused: an event, that is all up to an empty line, has more bytes than it may.
    """
    rest, size = b"", 0
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            size = size + len(line) if line else 0
            if size > most:
                break
            yield line.decode(errors="replace")
        if size + len(rest) > most:
            raise OutputRefused(f"the box sends an event of more than {most} bytes")


def read_events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event. ``kind`` and ``sequence`` come from the frame if the JSON lacks them."""
    kind, sequence, data = "message", "", list[str]()
    for line in lines:
        if not line:
            if data:
                yield {"kind": kind, "sequence": sequence, **json.loads("\n".join(data))}
            kind, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            kind = value
        elif field == "id":
            sequence = value
        elif field == "data":
            data.append(value)


def _body_of(answer: httpx.Response) -> dict[str, Any]:
    data = b""
    for block in answer.iter_raw():
        data += block
        if len(data) > MAX_ANSWER_BYTES:
            raise OutputRefused(f"the box gives an answer of more than {MAX_ANSWER_BYTES} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as cause:
        text = data[:200].decode(errors="replace")
        raise Unavailable(f"the box answered {answer.status_code} without JSON: {text!r}") from cause
    if answer.status_code >= 400:
        raise error_from_body(body, RdukitError)
    if not isinstance(body, dict):
        raise Unavailable(f"the box answered {type(body).__name__} where an object belongs")
    return body

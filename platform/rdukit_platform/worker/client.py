"""A box's REST wire, from the caller's side (``docs/design/wire.md`` section 2)."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import httpx

from rdukit.closable import Closable
from rdukit.errors import Cancelled, RdukitError, Unavailable, error_from_body

logger = logging.getLogger(__name__)

#: A stream that is silent for so long is attached to anew; the box may have lost it.
SILENCE_S: Final = 15.0
REATTACH_PAUSE_S: Final = 0.2
#: Failed attachments in a row after which the box is given up.
MAX_REATTACH: Final = 25


class BoxClient(Closable):
    """Calls one box."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(
            base_url=url, timeout=httpx.Timeout(30.0, connect=5.0, read=SILENCE_S), trust_env=False
        )

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
            answer = self._http.post(f"/v1/{verb}", json=body)
        except httpx.HTTPError as cause:
            raise Unavailable(f"the box does not answer {verb}: {cause!r}") from cause
        return _body_of(answer)

    def cancel(self, operation_id: str) -> None:
        """Ask for an operation's end; says nothing if the box is away."""
        try:
            self._http.post(f"/v1/operations/{operation_id}/cancel", timeout=2.0)
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
            except (httpx.HTTPError, ValueError) as error:
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

    def _attach(self, operation_id: str, after: int) -> Iterator[dict[str, Any]]:
        url = f"/v1/operations/{operation_id}/events"
        with self._http.stream("GET", url, params={"after": after}, headers={"Accept": "text/event-stream"}) as answer:
            if answer.status_code != 200:
                answer.read()
                _body_of(answer)
            yield from read_events(answer.iter_lines())


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
    try:
        body = answer.json()
    except ValueError as cause:
        raise Unavailable(f"the box answered {answer.status_code} without JSON: {answer.text[:200]!r}") from cause
    if answer.status_code >= 400:
        raise error_from_body(body, RdukitError)
    if not isinstance(body, dict):
        raise Unavailable(f"the box answered {type(body).__name__} where an object belongs")
    return body

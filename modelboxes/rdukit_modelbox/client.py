"""Client of a box's REST wire."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import httpx

from rdukit.errors import InvalidArgument, Unauthenticated, Unavailable, error_from_body
from rdukit.http.tls import verify_of
from rdukit.http.unix_sockets import SocketPath, parse_rest_address
from rdukit.interfaces import Closable
from rdukit.settings import resolve
from rdukit_modelbox.settings import TOKEN
from rdukit_modelbox.sse import read_events

#: A stream that is silent for so long is attached to anew: a box that lives sends a comment every 5 s.
SILENCE_S: Final = 20.0
#: Attachments in a row that bring nothing, after which the box is given up, and the pause between two.
MAX_REATTACH: Final = 10
REATTACH_PAUSE_S: Final = 0.3

_FINAL: Final = frozenset({"succeeded", "failed", "cancelled"})


class BoxClient(Closable):
    """Talks to one box. All methods return plain JSON values of ``docs/design/wire.md``."""

    def __init__(self, url: str, timeout_s: float = 60.0, token: str | None = None) -> None:
        """``token``: for a box that asks for one; None: as the setting says, empty: none.

        Raises:
            InvalidArgument: ``url`` is none.
        """
        self.url = url.rstrip("/")
        where = parse_rest_address(url)
        token = resolve(TOKEN, token)
        if not (token.isascii() and token.isprintable()):
            raise InvalidArgument("the box's token is not legal; legal: printable ASCII")
        self._has_token = bool(token)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._socket = None if where.path is None else SocketPath(where.path)
        transport = None if self._socket is None else httpx.HTTPTransport(uds=self._socket.text)
        self._http = httpx.Client(
            base_url=where.base_url,
            transport=transport,
            timeout=timeout_s,
            trust_env=False,
            headers=headers,
            verify=verify_of(where.base_url),
        )

    def describe(self) -> dict[str, Any]:
        """Verbs, parameters and legal values."""
        return self._call("GET", "/v1/describe")

    def health(self) -> dict[str, Any]:
        """Readiness.

        Raises:
            Unavailable: not ready, with the reason, or nothing answers.
        """
        response = self._send("GET", "/health/ready", None)
        value: dict[str, Any] = response.json()
        if response.status_code != 200:
            raise Unavailable(f"the box at {self.url} is not ready: {value.get('reason')}")
        return value

    def submit(
        self,
        verb: str,
        parameters: Mapping[str, object] | None = None,
        inputs: Mapping[str, str] | None = None,
        output: str = "",
        idempotency_key: str | None = None,
        *,
        timeout_s: float = 0.0,
        resume: bool = False,
        webhook: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        """Ask for a verb; returns the queued operation.

        Args:
            timeout_s: seconds in which it must end, its time in the queue included; 0: no limit.
            resume: have it queued once more if the box ends before it does.
            webhook: ``{"url": …, "events": [state, …]}``.
        Raises:
            RdukitError: the box refused; the class is the one that the error's code names.
        """
        body: dict[str, object] = {
            "parameters": dict(parameters or {}), "inputs": dict(inputs or {}), "output": output,
            "idempotency_key": idempotency_key, "timeout_s": timeout_s, "resume": resume,
        }  # fmt: skip
        if webhook is not None:
            body["webhook"] = dict(webhook)
        return self._call("POST", f"/v1/{verb}", body)

    def infer_rows(self, rows: list[list[float]], inputs: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Classify rows at once: ``{"outputs", "labels"}``."""
        return self._call("POST", "/v1/infer", {"rows": rows, "inputs": dict(inputs or {})})

    def operation(self, operation_id: str) -> dict[str, Any]:
        """One operation as it is now."""
        return self._call("GET", f"/v1/operations/{operation_id}")

    def operations(self, state: str = "", verb: str = "") -> Iterator[dict[str, Any]]:
        """Operations, newest first, those in ``state`` and of ``verb`` if given; asks for more as they are taken."""
        query = {key: value for key, value in (("state", state), ("verb", verb)) if value}
        while True:
            page = self._call("GET", f"/v1/operations?{urlencode(query)}")
            yield from page["operations"]
            if not page["next_cursor"]:
                return
            query["cursor"] = page["next_cursor"]

    def cancel(self, operation_id: str) -> dict[str, Any]:
        """Cancel one and wait until it has ended."""
        return self._call("POST", f"/v1/operations/{operation_id}/cancel")

    def events(self, operation_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Events with numbers above ``after``, as they come, to the result; attaches again where a stream broke.

        Raises:
            NotFound: no such operation.
            Unavailable: the box is gone: so many attachments in a row brought nothing.
        """
        failures = 0
        while True:
            try:
                for event in self._attach(operation_id, after):
                    failures, after = 0, max(after, int(event["sequence"]))
                    yield event
                    if event["kind"] == "result":
                        return
                if self.operation(operation_id)["state"] in _FINAL:
                    return  # all of its events were known
                reason = "it closed the stream before the result"
            except httpx.HTTPError as cause:
                reason = str(cause)
            failures += 1
            if failures > MAX_REATTACH:
                raise Unavailable(f"the box at {self.url} broke off: {reason}")
            time.sleep(REATTACH_PAUSE_S)

    def wait(self, operation_id: str) -> dict[str, Any]:
        """The operation once it has ended."""
        operation: dict[str, Any] = {}
        for event in self.events(operation_id):
            operation = event.get("operation", operation)
        return operation

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        if self._socket is not None:
            self._socket.close()

    def _attach(self, operation_id: str, after: int) -> Iterator[dict[str, Any]]:
        path = f"/v1/operations/{operation_id}/events"
        with self._http.stream("GET", path, params={"after": after}, timeout=httpx.Timeout(SILENCE_S)) as response:
            if response.status_code != 200:
                response.read()
                raise error_from_body(response.json())
            for _, event in read_events(response.iter_lines()):
                yield event

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        response = self._send(method, path, body)
        try:
            value: dict[str, Any] = response.json()
        except ValueError as cause:
            raise Unavailable(f"{self.url}{path} answered {response.status_code} without JSON; is it a box?") from cause
        if response.status_code == Unauthenticated.http_status:
            which = "knows another token" if self._has_token else "asks for a token"
            raise Unauthenticated(
                f"the box at {self.url} {which}: pass --token-file FILE, or set RDUKIT_BOX_TOKEN (box.token)"
            )
        if response.status_code >= 400:
            raise error_from_body(value)
        return value

    def _send(self, method: str, path: str, body: object) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body)
        except httpx.HTTPError as cause:
            raise Unavailable(f"no box answers at {self.url}: {cause}; start one with: rdukit box run") from cause

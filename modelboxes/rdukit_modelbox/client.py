"""Client of a box's REST wire."""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from rdukit.errors import Unavailable, error_from_body
from rdukit_modelbox.sse import read_events


class BoxClient:
    """Talks to one box. All methods return plain JSON values of ``docs/design/wire.md``."""

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False)

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
    ) -> dict[str, Any]:
        """Ask for a verb; returns the queued operation.

        Raises:
            RdukitError: the box refused; the class is the one that the error's code names.
        """
        body = {"parameters": dict(parameters or {}), "inputs": dict(inputs or {}), "output": output}
        return self._call("POST", f"/v1/{verb}", {**body, "idempotency_key": idempotency_key})

    def infer_rows(self, rows: list[list[float]], inputs: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Classify rows at once: ``{"outputs", "labels"}``."""
        return self._call("POST", "/v1/infer", {"rows": rows, "inputs": dict(inputs or {})})

    def operation(self, operation_id: str) -> dict[str, Any]:
        """One operation as it is now."""
        return self._call("GET", f"/v1/operations/{operation_id}")

    def operations(self) -> list[dict[str, Any]]:
        """All of them, oldest first."""
        found: list[dict[str, Any]] = self._call("GET", "/v1/operations")["operations"]
        return found

    def cancel(self, operation_id: str) -> dict[str, Any]:
        """Cancel one and wait until it has ended."""
        return self._call("POST", f"/v1/operations/{operation_id}/cancel")

    def events(self, operation_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Its events as they come; ends after the result.

        Raises:
            Unavailable: the stream broke before the result.
        """
        last: dict[str, Any] = {}
        path = f"/v1/operations/{operation_id}/events"
        try:
            with self._http.stream("GET", path, params={"after": after}, timeout=httpx.Timeout(60.0)) as response:
                if response.status_code != 200:
                    response.read()
                    raise error_from_body(response.json())
                for _, last in read_events(response.iter_lines()):
                    yield last
        except httpx.HTTPError as cause:
            raise Unavailable(f"the box at {self.url} broke off: {cause}") from cause
        if last.get("kind") != "result":
            raise Unavailable(f"the box at {self.url} closed the stream before the result")

    def wait(self, operation_id: str) -> dict[str, Any]:
        """The operation once it has ended."""
        operation: dict[str, Any] = {}
        for event in self.events(operation_id):
            operation = event.get("operation", operation)
        return operation

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        response = self._send(method, path, body)
        try:
            value: dict[str, Any] = response.json()
        except ValueError as cause:
            raise Unavailable(f"{self.url}{path} answered {response.status_code} without JSON; is it a box?") from cause
        if response.status_code >= 400:
            raise error_from_body(value)
        return value

    def _send(self, method: str, path: str, body: object) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body)
        except httpx.HTTPError as cause:
            raise Unavailable(f"no box answers at {self.url}: {cause}; start one with: rdukit box run") from cause

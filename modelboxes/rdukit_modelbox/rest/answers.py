"""What routes answer with: JSON that always is, and the one error body."""

import secrets
from collections.abc import Mapping

from fastapi import Request
from fastapi.responses import Response

from rdukit.errors import RdukitError
from rdukit.strict_json import json_text


class JsonAnswer(Response):
    """Any value: NaN and infinities become words, and text that is no Unicode is escaped."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """As bytes."""
        return json_text(content).encode()


def error_answer(request: Request, error: RdukitError, headers: Mapping[str, str] | None = None) -> Response:
    """The error's status and body."""
    return JsonAnswer(error.body(request_id_of(request)), error.http_status, headers=dict(headers or {}))


def plain_error(
    request: Request, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error that the framework found."""
    value = {"error": {"code": code, "message": message, "detail": {}, "request_id": request_id_of(request)}}
    return JsonAnswer(value, status, headers=dict(headers or {}))


def request_id_of(request: Request) -> str:
    """The caller's own, or a new one."""
    return request.headers.get("x-request-id", "")[:128] or f"req-{secrets.token_hex(8)}"

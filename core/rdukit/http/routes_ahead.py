"""Sends an internal request to an ASGI application, which makes its framework prepare its routes.

A fork server does this once; each of its forks inherits the prepared routes.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
#: Path that does not match any application's route.
_PATH: Final = "/none"


async def answer_nobody(app: Application) -> None:
    """Send ``app`` a request that matches no route, and drop the response."""
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": _PATH,
        "raw_path": _PATH.encode(), "root_path": "", "query_string": b"", "headers": [], "client": None, "server": None,
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    await app(scope, receive, send)

"""Request of nobody to an ASGI application, which makes its framework prepare what it finds routes by.

A fork server asks once; each of its forks finds the routes prepared.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
#: Path that no application has.
_PATH: Final = "/none"


async def answer_nobody(app: Application) -> None:
    """Let ``app`` answer a request that no route matches, and drop the answer."""
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": _PATH,
        "raw_path": _PATH.encode(), "root_path": "", "query_string": b"", "headers": [], "client": None, "server": None,
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        pass

    await app(scope, receive, send)

"""All of a box's REST in one ASGI application: the inference protocol by itself, everything else behind it.

The rest needs a web framework, whose import takes a third of a second: a box is ready for inferences before that.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from rdukit.errors import Unauthenticated
from rdukit_modelbox.serving.access import Access
from rdukit_modelbox.serving.oip_rest import OpenInferenceApp, Receive, Scope, Send

Application = Callable[[Any, Any, Any], Awaitable[None]]
#: Routes that anybody may call: probes have no token.
_OPEN = ("/health/", "/v2/health/")


class BoxApp:
    """Hands requests on by their path."""

    def __init__(self, inference: OpenInferenceApp, make_control: Callable[[], Application], access: Access) -> None:
        """``make_control``: the application for all but the inference protocol; called once, in a thread."""
        self._inference = inference
        self._make_control = make_control
        self._control: asyncio.Task[Application] | None = None
        self._access = access
        self.lane = inference.lane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        path: str = scope["path"]
        if path.startswith("/v2/") or path == "/v2":
            await self._inference(scope, receive, send)
            return
        if not self._access.is_open and scope["type"] == "http" and not path.startswith(_OPEN):
            try:
                self._access.check(dict(scope["headers"]).get(b"authorization"))
            except Unauthenticated as error:
                body = orjson.dumps(error.body())
                headers = [
                    (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)),
                    (b"www-authenticate", b"Bearer"),
                ]  # fmt: skip
                await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await (await self.control())(scope, receive, send)

    def control(self) -> "asyncio.Task[Application]":
        """The application behind the inference protocol; made when it is asked for first."""
        if self._control is None:
            self._control = asyncio.create_task(self._prepare())
        return self._control

    async def _prepare(self) -> Application:
        control = await asyncio.to_thread(self._make_control)
        gc.freeze()  # it stays: collections look at requests' objects only
        return control

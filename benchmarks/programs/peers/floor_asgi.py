"""uvicorn with uvloop and httptools, a bare ASGI application and the model. Argument: port."""

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import orjson
import serving_model
import uvicorn

MODEL = serving_model.make_model()


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Every request gets the logits of its first input."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    rows = serving_model.run_rows(MODEL, [orjson.loads(body)["inputs"][0]["data"]])
    text = orjson.dumps(serving_model.reply(rows))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


uvicorn.run(
    answer, host="127.0.0.1", port=int(sys.argv[1]), loop="uvloop", http="httptools", lifespan="off",
    access_log=False, log_level="warning",
)  # fmt: skip

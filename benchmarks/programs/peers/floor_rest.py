"""The floor: uvloop, httptools, orjson and the model, without any framework. Argument: port."""

import asyncio
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import httptools
import orjson
import serving_model
import uvloop

MODEL = serving_model.make_model()


class Connection(asyncio.Protocol):
    """Answers every message with the logits of its first input."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.parts: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)

    def on_message_complete(self) -> None:
        request = orjson.loads(b"".join(self.parts))
        self.parts = []
        rows = serving_model.run_rows(MODEL, [request["inputs"][0]["data"]])
        body = orjson.dumps(serving_model.reply(rows))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", int(sys.argv[1]), backlog=512)
    await server.serve_forever()


uvloop.run(main())

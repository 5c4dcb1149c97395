"""The command line's client beside a gateway that dies in the middle of a request."""

import json
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from rdukit.errors import Unavailable
from rdukit_platform.client.http import ApiClient
from support import shows

pytestmark = shows("jobs")


class DyingGateway:
    """Reads whole requests; resets the first connections, then answers ``{"id": "job-1"}``."""

    def __init__(self, resets: int) -> None:
        self.bodies: list[dict[str, object]] = []
        self._resets = resets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        # Closing alone would not wake the thread that is in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
                length = next((int(x[15:]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length:")), 0)
                while len(body) < length:
                    body += connection.recv(65536)
                self.bodies.append(json.loads(body) if body else {})
                if len(self.bodies) <= self._resets:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    continue
                answer = b'{"id": "job-1"}'
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 15\r\n\r\n" + answer)


@pytest.fixture
def gateway(request: pytest.FixtureRequest) -> Iterator[DyingGateway]:
    gateway = DyingGateway(request.param)
    yield gateway
    gateway.close()


@pytest.mark.parametrize("gateway", [1], indirect=True)
@pytest.mark.parametrize("key", [None, "mine"])
def test_a_submission_whose_connection_breaks_is_said_again_under_one_key(
    gateway: DyingGateway, key: str | None
) -> None:
    body = {"box": "counter"} if key is None else {"box": "counter", "idempotency_key": key}
    with ApiClient(gateway.url, "t") as client:
        assert client.submit("/v1/jobs", body) == {"id": "job-1"}
    first, second = (body["idempotency_key"] for body in gateway.bodies)
    assert first == second
    assert first if key is None else first == key


@pytest.mark.parametrize("gateway", [1], indirect=True)
def test_a_post_without_a_key_is_never_said_twice(gateway: DyingGateway) -> None:
    with ApiClient(gateway.url, "t") as client, pytest.raises(Unavailable, match="no gateway answers"):
        client.post("/v1/jobs/job-1/cancel")
    assert len(gateway.bodies) == 1

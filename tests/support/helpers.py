"""Helpers of tests: a clock that stands still, waiting for other processes, raw HTTP connections."""

import contextlib
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: First lines of a program that a test starts and that imports ``support``.
FIND_SUPPORT: Final = f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"


class FakeClock:
    """``Clock`` whose time stands still; ``sleep`` and ``advance`` move it, ``step`` sets its wall clock alone."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._offset = 0.0

    def now(self) -> float:
        return self._now + self._offset

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def step(self, seconds: float) -> None:
        self._offset += seconds


#: Seconds between two looks, at least and at most.
_PAUSES_S: Final = (0.01, 0.25)


def pause_after(waited_s: float) -> float:
    """Return the seconds until the next look at what was waited for so long: a twentieth of them.

    What is seen late by that makes no test noticeably longer; what looks all the time, by a request or a walk through
    all processes, takes the cores from what it waits for.
    """
    return min(max(waited_s / 20, _PAUSES_S[0]), _PAUSES_S[1])


def wait_until(happened: Callable[[], bool], timeout_s: float = 120.0, what: str = "what was waited for") -> float:
    """Look until ``happened``; returns the seconds waited.

    Raises:
        AssertionError: not within ``timeout_s``; says ``what``.
    """
    start = time.monotonic()
    while not happened():
        waited_s = time.monotonic() - start
        assert waited_s < timeout_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(pause_after(waited_s))
    return time.monotonic() - start


class RawCaller:
    """Opens connections, from an address of the caller's choice, and closes them all at its end."""

    def __init__(self, url: str) -> None:
        """
        Args:
            url: ``http://HOST:PORT``, or with https: what is sent is not encrypted all the same.
        """
        host, _, port = url.partition("://")[2].partition(":")
        self.address = (host, int(port))
        self.open: list[socket.socket] = []

    def connect(self, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        """Open a connection and send ``data``."""
        connection = socket.create_connection(self.address, 60.0, (source, 0))
        self.open.append(connection)
        connection.sendall(data)
        return connection

    def send(self, data: bytes, source: str = "127.0.0.1") -> tuple[int, bytes]:
        """Send raw bytes. Returns status and body of the answer; 0: the connection was closed without one."""
        connection = self.connect(source=source)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
        return answer_of(connection)

    def close(self) -> None:
        """Close all connections."""
        for connection in self.open:
            connection.close()


def answer_of(connection: socket.socket) -> tuple[int, bytes]:
    """Read status and body of one answer, to its end or that of the connection; 0: nothing came."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while block := connection.recv(65536):
            got += block
            head, end, body = got.partition(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", head.lower())
            if end and (found is None or len(body) >= int(found[1])):
                break
    return (int(got.split()[1]) if got.startswith(b"HTTP/1.1 ") else 0), got.partition(b"\r\n\r\n")[2]

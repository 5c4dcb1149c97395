"""Cases of this folder start no process, use no socket and never sleep: ``conftest.py`` refuses it."""

import asyncio
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from support import shows

pytestmark = shows("project")

Act = Callable[[], object]


def connect() -> None:
    with socket.socket() as one:
        one.connect(("127.0.0.1", 9))


def bind() -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("\0rdukit-purity")


@pytest.mark.parametrize(
    ("act", "rule"),
    [
        (lambda: subprocess.run(["true"], check=False), "start no process"),
        (lambda: os.system("true"), "start no process"),
        (lambda: asyncio.run(asyncio.create_subprocess_exec("true")), "start no process"),
        (connect, "use no socket"),
        (bind, "use no socket"),
        (lambda: socket.create_connection(("localhost", 9)), "use no socket"),
        (lambda: time.sleep(0.01), "never sleep"),
    ],
)
def test_what_is_not_pure_is_refused_with_where_it_belongs(act: Act, rule: str, refused: list[str]) -> None:
    with pytest.raises(AssertionError, match=f"unit tests {rule}: move this case to tests/integration"):
        act()
    assert len(refused) == 1
    refused.clear()


def test_other_threads_and_code_that_catches_every_error_are_seen_too(refused: list[str]) -> None:
    caught: list[BaseException] = []

    def act() -> None:
        try:
            time.sleep(0.01)
        except AssertionError as error:
            caught.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert refused == [str(error) for error in caught] != []
    refused.clear()


def test_an_event_loop_and_a_pair_of_sockets_are_pure(refused: list[str]) -> None:
    asyncio.run(asyncio.sleep(0))
    left, right = socket.socketpair()
    with left, right:
        left.send(b"x")
        assert right.recv(1) == b"x"
    assert refused == []

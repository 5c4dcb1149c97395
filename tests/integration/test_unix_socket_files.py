"""Sockets in folders: paths longer than the kernel takes, and what lies there already."""

import socket
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.http.unix_sockets import SocketPath, is_listening, listen_at, make_private
from support import shows

pytestmark = shows("box", "job-boxes")


def test_a_socket_deeper_than_the_kernel_takes_is_bound_and_connected_to(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    with listen_at(folder / "rest.sock"), SocketPath(folder / "rest.sock") as short:
        assert (folder / "rest.sock").stat().st_mode & 0o777 == 0o600
        assert len(short.text) < 107 and is_listening(short.text)
        with pytest.raises(InvalidArgument, match="listens at"):
            listen_at(folder / "rest.sock")


def test_a_socket_that_nobody_listens_at_any_more_is_replaced(tmp_path: Path) -> None:
    listen_at(tmp_path / "a.sock").close()
    assert (tmp_path / "a.sock").is_socket()
    with listen_at(tmp_path / "a.sock") as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "a.sock"))
        listener.accept()[0].close()


def test_what_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "rest.sock").write_text("kept")
    with pytest.raises(InvalidArgument, match="cannot be bound"):
        listen_at(tmp_path / "rest.sock")
    assert (tmp_path / "rest.sock").read_text() == "kept"

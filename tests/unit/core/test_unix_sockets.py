"""UNIX sockets as addresses: what they mean, and paths that are longer than the kernel takes."""

import socket
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.http.unix_sockets import SocketPath, is_listening, listen_at, make_private, parse_rest_address, rest_address


def test_an_address_means_the_path_that_it_was_made_of() -> None:
    path = Path("/home/a b/ü%/rest.sock")
    assert rest_address(path) == "http+unix://%2Fhome%2Fa%20b%2F%C3%BC%25%2Frest.sock"
    assert parse_rest_address(rest_address(path) + "/").path == path
    assert parse_rest_address("http://127.0.0.1:9000/").base_url == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:9000", "unix:/tmp/rest.sock", "http+unix://relative", "http+unix://%2Fa%00"]
)
def test_what_is_no_address_is_refused_with_what_is(url: str) -> None:
    with pytest.raises(InvalidArgument, match="legal: http://HOST:PORT, http\\+unix"):
        parse_rest_address(url)


def test_a_socket_deeper_than_the_kernel_takes_is_bound_and_connected_to(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    with listen_at(folder / "rest.sock"), SocketPath(folder / "rest.sock") as short:
        assert (folder / "rest.sock").stat().st_mode & 0o777 == 0o600
        assert len(short.text) < 107 and is_listening(short.text)
        with pytest.raises(InvalidArgument, match="somebody listens at"):
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


def test_names_and_folders_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="too long; legal: up to 107 bytes"):
        SocketPath(tmp_path / ("n" * 120))
    with pytest.raises(InvalidArgument, match="cannot be opened"):
        SocketPath(tmp_path / ("n" * 120) / "rest.sock")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="cannot be made private"):
        make_private(tmp_path / "file")

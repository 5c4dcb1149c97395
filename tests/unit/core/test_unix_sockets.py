"""UNIX sockets as addresses: what they mean, and paths that are longer than the kernel takes."""

from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.http.unix_sockets import SocketPath, make_private, parse_rest_address, rest_address
from support import shows

pytestmark = shows("wire", "job-boxes")


def test_an_address_means_the_path_that_it_was_made_of() -> None:
    path = Path("/home/a b/ü%/rest.sock")
    assert rest_address(path) == "http+unix://%2Fhome%2Fa%20b%2F%C3%BC%25%2Frest.sock"
    assert parse_rest_address(rest_address(path) + "/").path == path
    assert parse_rest_address("http://127.0.0.1:9000/").base_url == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:9000", "unix:/tmp/rest.sock", "http+unix://relative", "http+unix://%2Fa%00"]
)
def test_what_is_no_address_is_refused_with_what_is(url: str) -> None:
    with pytest.raises(InvalidArgument, match="expected http://HOST:PORT or http\\+unix"):
        parse_rest_address(url)


def test_names_and_folders_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="too long; expected up to 107 bytes"):
        SocketPath(tmp_path / ("n" * 120))
    with pytest.raises(InvalidArgument, match="cannot be opened"):
        SocketPath(tmp_path / ("n" * 120) / "rest.sock")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="cannot be made private"):
        make_private(tmp_path / "file")

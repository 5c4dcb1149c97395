"""Bytes arrive whole over connections that are cut, or not at all."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, Unavailable
from rdukit_modelbox.artifacts.download import Opened, TransferInterrupted, download
from support import FakeClock, shows

pytestmark = shows("modelbox")


class CutSource:
    """Serves ``data`` and cuts each connection after ``portion`` bytes; ``versions`` are what it calls the content."""

    def __init__(self, data: bytes, portion: int, versions: list[str | None]) -> None:
        self.data = data
        self.portion = portion
        self.starts: list[int] = []
        self._versions = iter(versions)

    def open(self, start: int, validator: str | None) -> Opened:
        version = next(self._versions)
        if version != validator:
            start = 0
        self.starts.append(start)
        return Opened(start, len(self.data), version, self._blocks(start))

    def find_validator(self) -> str | None:
        return None

    def _blocks(self, start: int) -> Iterator[bytes]:
        yield self.data[start : start + self.portion]
        if start + self.portion < len(self.data):
            raise TransferInterrupted("cut")


def fetch(source: CutSource, path: Path, max_bytes: int = 1000, attempts: int = 3) -> str | None:
    return download(source, "http://x/y", path, max_bytes, attempts, FakeClock(), lambda done, size: None)


def test_a_cut_download_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    source = CutSource(bytes(range(250)), 100, ["v1"] * 3)
    assert fetch(source, tmp_path / "x") == "v1"
    assert (tmp_path / "x").read_bytes() == bytes(range(250))
    assert source.starts == [0, 100, 200]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_it_begins_anew_when_the_content_changed_meanwhile(tmp_path: Path) -> None:
    source = CutSource(bytes(range(250)), 130, ["v1", "v2", "v2"])
    assert fetch(source, tmp_path / "x") == "v2"
    assert (tmp_path / "x").read_bytes() == bytes(range(250))
    assert source.starts == [0, 0, 130]


def test_it_begins_anew_when_nothing_says_that_the_content_is_the_same(tmp_path: Path) -> None:
    source = CutSource(bytes(range(250)), 100, [None] * 10)
    with pytest.raises(Unavailable, match="cut off 3 times"):
        fetch(source, tmp_path / "x")
    assert source.starts == [0, 0, 0]


def test_it_gives_up_when_connections_bring_nothing(tmp_path: Path) -> None:
    source = CutSource(bytes(250), 0, ["v1"] * 20)
    with pytest.raises(Unavailable, match="try again later"):
        fetch(source, tmp_path / "x", attempts=4)
    assert len(source.starts) == 4


def test_what_an_earlier_process_fetched_counts(tmp_path: Path) -> None:
    first, second = (CutSource(bytes(range(250)), portion, ["v1"] * 9) for portion in (100, 500))

    def stop(done: int, size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(first, "http://x/y", tmp_path / "x", 1000, 3, FakeClock(), stop)
    assert fetch(second, tmp_path / "x") == "v1"
    assert second.starts == [100]
    assert (tmp_path / "x").read_bytes() == bytes(range(250))


@pytest.mark.parametrize("size", [None, 250])
def test_too_much_is_refused_told_or_not(tmp_path: Path, size: int | None) -> None:
    class Endless(CutSource):
        def open(self, start: int, validator: str | None) -> Opened:
            return Opened(0, size, None, itertools.repeat(b"x" * 50))

    with pytest.raises(InvalidArgument, match=r"expected up to 200 \(artifacts.max_bytes\)"):
        fetch(Endless(b"", 0, []), tmp_path / "x", max_bytes=200)

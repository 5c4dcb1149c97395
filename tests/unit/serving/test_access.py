"""Tokens of a box: who is let in, the first time and again."""

from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, Unauthenticated
from rdukit_serving import access as module
from rdukit_serving.access import Access
from support import shows

pytestmark = shows("security", "inference")


@pytest.mark.parametrize("header", [b"Bearer one", b"bearer two", b"BEARER  one "])
def test_a_known_token_is_let_in_every_time(header: bytes) -> None:
    access = Access(["one", "two"])
    for _ in range(3):
        access.check(header)


@pytest.mark.parametrize("header", [None, b"", b"Bearer", b"Bearer on", b"Bearer one two", b"Basic one", b"one"])
def test_what_is_no_known_token_is_refused_every_time_also_after_one_that_is(header: bytes | None) -> None:
    access = Access(["one"])
    access.check(b"Bearer one")
    for _ in range(3):
        with pytest.raises(Unauthenticated, match="Authorization: Bearer TOKEN"):
            access.check(header)


def test_only_so_many_spellings_are_remembered_and_the_others_are_let_in_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 2)
    access = Access(["one"])
    for _ in range(2):
        for spaces in range(1, 6):
            access.check(b"Bearer" + b" " * spaces + b"one")
    assert len(access._let_in) == 2


def test_a_file_without_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# nobody yet\n\n")
    with pytest.raises(InvalidArgument, match="holds no token"):
        Access.from_file(str(tmp_path / "tokens"))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        Access.from_file(str(tmp_path / "gone"))
    Access.from_file("").check(None)

"""What the system refused is told as an error with a code, and with the file."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from rdukit.errors import DiskFull, InvalidArgument, NotFound, PermissionDenied, find_system_error
from rdukit.files.atomic import write_atomic
from support import shows

pytestmark = shows("errors")


def refusal(number: int, path: str | None = "/data/x") -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (refusal(errno.ENOSPC), DiskFull, "/data/x cannot be written: no space is left"),
        (refusal(errno.ENOSPC, None), DiskFull, "no space is left on the disk"),
        (refusal(errno.EDQUOT), DiskFull, "/data/x"),
        (sqlite3.OperationalError("database or disk is full"), DiskFull, "no space is left"),
        (OSError("Can't write data (file write failed: errno = 28)"), DiskFull, "no space is left"),
        (refusal(errno.EACCES), PermissionDenied, "/data/x: Permission denied"),
        (refusal(errno.EROFS), PermissionDenied, "/data/x: Read-only file system"),
        (refusal(errno.ENOENT), NotFound, "there is no file or folder /data/x"),
        (refusal(errno.ENOTDIR), InvalidArgument, "/data/x: Not a directory"),
    ],
)
def test_each_refusal_has_its_error_and_names_the_file(error: Exception, kind: type, words: str) -> None:
    found = find_system_error(error)
    assert type(found) is kind
    assert words in found.message


@pytest.mark.parametrize("error", [ValueError("x"), refusal(errno.ECONNRESET, None), refusal(errno.EACCES, None)])
def test_what_is_something_else_stays_what_it_is(error: Exception) -> None:
    assert find_system_error(error) is None


def test_a_file_that_cannot_be_written_for_space_is_named(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised, (tmp_path / "full").open("wb", buffering=0) as stream:
        stream.write(b"x")
    assert isinstance(find_system_error(raised.value), DiskFull)


def test_an_atomic_write_tells_its_own_path_and_not_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise refusal(errno.ENOSPC, None)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as raised:
        write_atomic(tmp_path / "latest.json", b"{}")
    assert raised.value.filename == str(tmp_path / "latest.json")
    assert list(tmp_path.iterdir()) == []

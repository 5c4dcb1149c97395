"""Waiting for the disk for many files at once."""

import errno
import os
from pathlib import Path

import pytest

from rdukit.files import durable
from rdukit.files.durable import LITTLE_BYTES, sync_files, sync_folders, takes_whole
from support import shows

pytestmark = shows("artifacts")

EXT4, NFS = 0xEF53, 0x6969


@pytest.mark.parametrize(
    ("kind", "release", "waiting", "is_whole"),
    [
        (EXT4, "6.1.0-13-amd64", 0, True),
        (EXT4, "5.17", LITTLE_BYTES, True),
        (EXT4, "10.0", LITTLE_BYTES + 1, False),
        (EXT4, "5.15.0-91-generic", 0, False),
        (EXT4, "4.18.0", 0, False),
        (EXT4, "unknown", 0, False),
        (EXT4, "6.1.0", None, False),
        (NFS, "6.1.0", 0, False),
        (None, "6.1.0", 0, False),
    ],
)
def test_a_file_system_is_synced_whole_where_that_is_told_and_little(
    kind: int | None, release: str, waiting: int | None, is_whole: bool
) -> None:
    assert takes_whole(kind, release, waiting) is is_whole


@pytest.mark.parametrize("is_whole", [True, False])
def test_each_file_tells_what_went_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    monkeypatch.setattr(durable, "takes_whole", lambda *_: is_whole)
    opened = [os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("a", "b")]
    assert sync_files(opened) == [None, None] and sync_files([]) == []
    sync_folders([str(tmp_path), "/tmp"])
    reading, writing = os.pipe()
    # A pipe is on no disk; a descriptor that is none fails for all.
    errors = sync_files([writing, *opened] if not is_whole else [10**6, *opened])
    assert [error and error.errno for error in errors] == [errno.EBADF if is_whole else errno.EINVAL, None, None]
    with pytest.raises(FileNotFoundError):
        sync_folders([str(tmp_path / "gone"), str(tmp_path / "other")])
    for descriptor in (*opened, reading, writing):
        os.close(descriptor)


def test_this_system_says_what_waits_to_be_written_and_where_files_lie(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert durable._type_of(descriptor) not in {None, 0}
    assert durable._type_of(10**6) is None
    assert (durable._waiting_bytes() or 0) >= 0 and durable._waiting_bytes() is not None
    os.close(descriptor)

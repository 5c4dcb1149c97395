"""Files of a folder wait for the disk together: in no order of events a digest has other bytes, or a row no content."""

import errno
import os
from io import BytesIO
from pathlib import Path

import pytest

from rdukit_platform.artifacts.store import ContentDiffers, ContentLost, PendingContent
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.artifacts.stores.folder_pending import MAX_BYTES, MAX_FILES
from support import shows
from support.platform.content import add_files
from support.platform.disk import recorded_disk

pytestmark = shows("artifacts")


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "artifacts")


def files(store: FolderStore, folder: str) -> list[Path]:
    return sorted(path for path in (store.folder / folder).rglob("*") if path.is_file())


def folder_of(added: PendingContent, *files: bytes) -> str:
    return add_files(added, ((f"f{place}", BytesIO(data)) for place, data in enumerate(files))).digest


@pytest.mark.parametrize("is_whole", [False, True])
def test_the_disk_has_the_bytes_before_their_name_and_the_name_before_it_is_told(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    added = store.begin()
    with recorded_disk(store.folder, monkeypatch, is_whole=is_whole) as disk:
        digests = [folder_of(added, b"%d" % number, b"same") for number in range(2)]
        assert (files(store, "blobs"), disk.placed, disk.waits) == ([], [], 0)
        store.keep(added)
    assert (len(disk.placed), len(set(disk.placed)), disk.hollow) == (6, 5, [])
    assert disk.named == set(disk.placed)
    # Each file, and each folder of names beside the two above them; or all of the bytes, and then all of the names.
    assert disk.waits == (2 if is_whole else 6 + len({path.parent for path in files(store, "blobs")}) + 2)
    assert {entry.path for digest in digests for entry in store.entries(digest)} == {"f0", "f1"}
    assert {path.stat().st_mode & 0o777 for path in files(store, "blobs")} == {0o444}
    assert files(store, "incoming") == []


@pytest.mark.parametrize("is_whole", [False, True])
def test_what_is_added_by_itself_is_on_the_disk_when_it_is_told(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    with recorded_disk(store.folder, monkeypatch, is_whole=is_whole) as disk:
        content = store.add_stream(BytesIO(b"hello"))
        assert (disk.placed, disk.hollow) == ([str(store.path(content.digest))], [])
        assert disk.named == set(disk.placed)
        # What is there already may be there without the disk: somebody else may not have waited yet.
        store.add_stream(BytesIO(b"hello"))
        assert (len(disk.placed), disk.hollow, disk.named) == (2, [], set(disk.placed))


def test_kept_content_mends_a_blob_that_somebody_has_changed(store: FolderStore) -> None:
    path = store.path(store.add_stream(BytesIO(b"hello")).digest)
    path.chmod(0o644)
    path.write_bytes(b"")
    added = store.begin()
    digest = added.add_stream(BytesIO(b"hello")).digest
    assert path.read_bytes() == b""
    store.keep(added)
    store.check(digest)


def test_what_is_dropped_leaves_nothing_and_what_was_kept_before_stays(store: FolderStore) -> None:
    kept, dropped = store.begin(), store.begin()
    digest = kept.add_stream(BytesIO(b"kept")).digest
    dropped.add_stream(BytesIO(b"dropped"))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ContentDiffers):
        dropped.add_stream(BytesIO(b"other"), "0" * 64)
    store.keep(kept)
    for added in (dropped, kept, kept):
        added.drop()
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert files(store, "incoming") == []
    assert files(store, "blobs") == [store.path(digest)]


def test_much_or_large_content_waits_for_the_disk_by_itself(store: FolderStore) -> None:
    added = store.begin()
    folder_of(added, *(b"%d" % number for number in range(3 * MAX_FILES)))
    assert (len(files(store, "blobs")), len(files(store, "incoming"))) == (3 * MAX_FILES, 1)
    added.add_stream(BytesIO(b"x" * MAX_BYTES))
    assert (len(files(store, "blobs")), len(files(store, "incoming"))) == (3 * MAX_FILES + 2, 0)
    added.add_stream(BytesIO(b"small"))
    assert len(files(store, "incoming")) == 1
    added.drop()


def test_content_that_the_disk_refuses_once_is_never_believed_and_takes_no_other_along(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = store.begin(), store.begin()
    kept, lost = good.add_stream(BytesIO(b"good")).digest, bad.add_stream(BytesIO(b"bad")).digest
    with recorded_disk(store.folder, monkeypatch, is_whole=False) as disk:
        disk.refusals[files(store, "incoming")[0].name] = OSError(errno.ENOSPC, "full")
        disk.refusals[files(store, "incoming")[1].name] = OSError(errno.ENOSPC, "full")
        with pytest.raises(OSError, match="full"):
            store.keep(bad)
        # The system says it once: the next wait for the same file would end well.
        with pytest.raises(ContentLost):
            store.keep(bad)
        disk.refusals.clear()
        store.keep(good)
        with pytest.raises(ContentLost):
            store.keep(bad)
    bad.drop()
    assert store.has(kept) and not store.has(lost)
    assert store.add_stream(BytesIO(b"bad")).digest == lost


def test_names_that_the_disk_refuses_are_not_believed(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    added = store.begin()
    added.add_stream(BytesIO(b"hello"))
    with recorded_disk(store.folder, monkeypatch, is_whole=False) as disk:
        disk.refusals["blobs"] = OSError(errno.EIO, "broken")
        with pytest.raises(OSError, match="broken"):
            store.keep(added)
        with pytest.raises(ContentLost):
            store.keep(added)


def test_a_place_that_is_refused_is_asked_for_again(store: FolderStore) -> None:
    added = store.begin()
    digest = folder_of(added, b"a", b"b")
    store.folder.joinpath("blobs").write_bytes(b"in the way")
    with pytest.raises(NotADirectoryError):
        store.keep(added)
    store.folder.joinpath("blobs").unlink()
    store.keep(added)
    assert len(store.entries(digest)) == 2

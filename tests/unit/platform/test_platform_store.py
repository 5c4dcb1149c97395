"""Content by its digest."""

import hashlib
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import ContentDamaged, InvalidArgument, NotFound
from rdukit_platform.artifacts.manifest import FolderEntry, check_relative
from rdukit_platform.artifacts.service import plain_name
from rdukit_platform.artifacts.stores.folder import FolderStore
from support import shows

pytestmark = shows("artifacts")


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "artifacts")


def test_a_file_is_found_by_its_digest_and_stored_once(store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    content = store.add_path(tmp_path / "a")
    assert content.digest == hashlib.sha256(b"hello").hexdigest()
    assert store.add_stream(BytesIO(b"hello")) == content
    assert b"".join(store.read(content.digest)) == b"hello"
    assert len([path for path in (store.folder / "blobs").rglob("*") if path.is_file()]) == 1


def test_a_folder_comes_back_as_it_was(store: FolderStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "one.txt").write_text("1")
    (source / "deep" / "two.txt").write_text("22")
    content = store.add_path(source)
    assert (content.bytes, content.is_folder) == (3, True)
    store.materialize(content.digest, True, tmp_path / "target")
    assert (tmp_path / "target" / "deep" / "two.txt").read_text() == "22"
    assert (tmp_path / "target" / "one.txt").stat().st_mode & 0o222 == 0
    assert store.add_path(tmp_path / "target") == content


def test_a_missing_blob_is_not_found(store: FolderStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        store.materialize("0" * 64, False, tmp_path / "x")
    with pytest.raises(NotFound):
        list(store.read("0" * 64))


def test_changed_content_is_noticed(store: FolderStore) -> None:
    content = store.add_stream(BytesIO(b"hello"))
    path = store.path(content.digest)
    path.chmod(0o644)
    path.write_bytes(b"hullo")
    with pytest.raises(ContentDamaged):
        list(store.read(content.digest))


def test_a_link_is_refused(store: FolderStore, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/hostname")
    with pytest.raises(InvalidArgument, match="links"):
        store.add_path(folder)
    with pytest.raises(InvalidArgument, match="links"):
        store.add_path(folder / "link")


def test_a_broken_upload_leaves_nothing(store: FolderStore) -> None:
    class Broken(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                raise OSError("connection lost")
            return super().read(1)

    with pytest.raises(OSError, match="connection lost"):
        store.add_stream(Broken(b"hello"))
    assert not [path for path in store.folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "a\\b", "a\0b"])
def test_a_path_that_leaves_its_folder_is_refused(store: FolderStore, path: str) -> None:
    with pytest.raises(InvalidArgument):
        store.add_manifest([FolderEntry(path, "0" * 64, 1)])


@given(st.text(max_size=30))
def test_an_accepted_path_stays_inside(text: str) -> None:
    try:
        accepted = check_relative(text)
    except InvalidArgument:
        return
    root = Path("/root/of/all")
    assert (root / accepted).is_relative_to(root)
    assert ".." not in (root / accepted).parts


def test_a_digest_that_is_a_path_is_refused(store: FolderStore) -> None:
    with pytest.raises(InvalidArgument):
        store.path("../../../etc/passwd")


def damage(store: FolderStore, digest: str) -> None:
    path = store.path(digest)
    path.chmod(0o644)
    path.write_bytes(b"other bytes")


def test_the_right_bytes_mend_a_damaged_blob(store: FolderStore, tmp_path: Path) -> None:
    file = store.add_stream(BytesIO(b"hello"))
    folder = store.add_manifest([FolderEntry("a", file.digest, 5)])
    for content in (file, folder):
        damage(store, content.digest)
        with pytest.raises(ContentDamaged):
            store.check(content.digest)
    store.add_stream(BytesIO(b"hello"))
    store.add_manifest([FolderEntry("a", file.digest, 5)])
    store.materialize(folder.digest, True, tmp_path / "target")
    assert (tmp_path / "target" / "a").read_bytes() == b"hello"


def test_a_blob_is_read_through_once_until_its_file_changes(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = store.add_stream(BytesIO(b"hello"))
    reads: list[str] = []
    whole = FolderStore.read
    monkeypatch.setattr(FolderStore, "read", lambda self, digest: reads.append(digest) or whole(self, digest))
    for _ in range(3):
        store.check(content.digest)
    assert reads == [content.digest]
    damage(store, content.digest)
    with pytest.raises(ContentDamaged):
        store.check(content.digest)


def test_what_a_job_gets_is_a_copy_that_is_checked(store: FolderStore, tmp_path: Path) -> None:
    content = store.add_stream(BytesIO(b"hello"))
    store.materialize(content.digest, False, tmp_path / "in" / "x.csv")
    (tmp_path / "in" / "x.csv").chmod(0o644)
    (tmp_path / "in" / "x.csv").write_bytes(b"written by a job")
    assert b"".join(store.read(content.digest)) == b"hello"
    damage(store, content.digest)
    with pytest.raises(ContentDamaged):
        store.materialize(content.digest, False, tmp_path / "again")


@pytest.mark.parametrize("paths", [["a", "a"], ["a", "a/b"], ["x/y/z", "x/y"]])
def test_paths_that_no_folder_can_hold_together_are_refused(store: FolderStore, paths: list[str]) -> None:
    content = store.add_stream(BytesIO(b"hello"))
    with pytest.raises(InvalidArgument):
        store.add_manifest([FolderEntry(path, content.digest, 5) for path in paths])


@given(st.text(max_size=300))
def test_a_file_name_is_one_plain_part_and_keeps_its_ending(text: str) -> None:
    name = plain_name(text)
    assert name is None or (check_relative(name) == name and "/" not in name and len(name.encode()) <= 255)
    assert (plain_name(text + "x.parquet") or "").endswith("x.parquet")

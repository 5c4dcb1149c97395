"""Manifests of folders: the same folder is the same content, and what no folder could hold is refused."""

import pytest

from rdukit.errors import ContentDamaged, InvalidArgument
from rdukit_platform.artifacts.manifest import FolderEntry, make_manifest, read_manifest, write_manifest
from support import shows

pytestmark = shows("artifact", "artifacts")

FILE = FolderEntry("b/x", "0" * 64, 3)
PROGRAM = FolderEntry("a", "1" * 64, 4, executable=True)


def test_a_manifest_is_read_as_it_was_written() -> None:
    made = make_manifest([FILE, PROGRAM], ["empty", "b/empty"])
    assert read_manifest(write_manifest(made)) == made
    assert (made.bytes, made.folders) == (7, ("b/empty", "empty"))


def test_a_folder_without_programs_and_empty_folders_has_the_digest_of_before() -> None:
    line = f'{{"files":[{{"bytes":3,"digest":"{"0" * 64}","path":"b/x"}}]}}'
    assert write_manifest(make_manifest([FILE])).decode() == line


@pytest.mark.parametrize(
    ("folders", "why"),
    [
        (["b"], "'b' is an empty folder of the folder, so 'b/x' cannot be inside it"),
        (["a"], "the same path"),
        (["a/b"], "'a' is a file of the folder"),
        (["e", "e"], "the same path"),
        (["../e"], "leaves its folder"),
        (["\udcff"], "not UTF-8"),
    ],
)
def test_folders_that_no_file_system_holds_are_refused(folders: list[str], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        make_manifest([FILE, PROGRAM], folders)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"files":[{"path":1}]}', b'{"files":3}', b'{"files":[],"folders":[1]}']
)
def test_what_is_no_manifest_is_told_as_damaged(data: bytes) -> None:
    with pytest.raises(ContentDamaged, match="not a folder's manifest"):
        read_manifest(data)

"""Trees of files: what is in a folder, exactly, or a refusal that names what cannot be stored."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.files.tree import make_executable, read_tree
from support import shows

pytestmark = shows("artifact")


def test_a_tree_has_files_programs_and_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "sub" / "empty").mkdir(parents=True)
    (tmp_path / "sub" / 'a"b\n').write_bytes(b"1")
    (tmp_path / ".hidden").write_bytes(b"")
    (tmp_path / "run.sh").write_bytes(b"")
    (tmp_path / "run.sh").chmod(0o755)
    found = read_tree(tmp_path)
    assert [(file.name, file.is_executable) for file in found.files] == [
        (".hidden", False), ("run.sh", True), ('sub/a"b\n', False),
    ]  # fmt: skip
    assert found.empty_folders == ("sub/empty",)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda f: (f / "link").symlink_to("/etc/hostname"), "link' is a link"),
        (lambda f: (f / "link").symlink_to("nowhere"), "link' is a link"),
        (lambda f: (f / "link").symlink_to(f), "link' is a link"),
        (lambda f: os.mkfifo(f / "pipe"), "pipe' is neither a file nor a folder"),
        (lambda f: open(os.fsencode(f) + b"/\xff\xfe", "w").close(), r"xff\\udcfe|udcff\\udcfe.* is not UTF-8"),
        (lambda f: os.mkdir(os.fsencode(f) + b"/\xff"), "is not UTF-8"),
    ],
)
def test_what_is_neither_file_nor_folder_is_refused_by_name(
    tmp_path: Path, make: Callable[[Path], object], why: str
) -> None:
    (tmp_path / "sub").mkdir()
    make(tmp_path / "sub")
    with pytest.raises(InvalidArgument, match=why):
        read_tree(tmp_path)


def test_a_program_may_be_run_by_those_who_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "f"
    for before, after in ((0o444, 0o555), (0o640, 0o750), (0o600, 0o700)):
        file.touch()
        file.chmod(before)
        make_executable(file)
        assert file.stat().st_mode & 0o777 == after
        file.unlink()

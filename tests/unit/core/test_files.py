"""Atomic writes: the old content or the new one, whatever happens in between."""

import json
import os
from pathlib import Path

import pytest

from rdukit.files.atomic import atomic_target, remove_tree, sha256_of, sha256_of_file, write_atomic, write_json_atomic
from support import shows

pytestmark = shows("security")


def test_a_write_creates_folders_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_the_mode_asked_for_is_the_mode_of_the_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "token", b"secret", mode=0o600)
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_an_error_inside_the_block_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail_half_way() -> None:
        with atomic_target(path) as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_json_is_sorted_indented_and_ends_with_a_newline(tmp_path: Path) -> None:
    write_json_atomic(tmp_path / "v.json", {"b": 1, "a": [2]})
    text = (tmp_path / "v.json").read_text()
    assert json.loads(text) == {"a": [2], "b": 1}
    assert text.startswith('{\n  "a"')
    assert text.endswith("}\n")


def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc" * 100_000)
    assert sha256_of_file(tmp_path / "f") == sha256_of(b"abc" * 100_000)
    assert sha256_of(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_link_that_takes_a_folders_place_while_a_tree_is_removed_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, top = tmp_path / "other", tmp_path / "top"
    for folder in (other, top):
        folder.mkdir(mode=0o755)
    (top / "folder").symlink_to(other)
    seen = [("folder", True)]  # as it was when the folder was read
    monkeypatch.setattr("rdukit.files.atomic._entries_of", lambda folder: seen)
    remove_tree(top)
    assert other.stat().st_mode & 0o777 == 0o755


def test_a_tree_is_removed_however_deep_closed_or_named_and_what_links_lead_to_stays(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "kept").mkdir(parents=True)
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(other)
    open(os.fsencode(top) + b"/\xff\n", "w").close()
    (top / "closed" / "in").mkdir(parents=True)
    (top / f".gone-{os.getpid()}-1" / "in").mkdir(parents=True)
    (top / "read" / "only").mkdir(parents=True)
    (top / "read" / "only" / "file").touch()
    for folder in ("read/only", "read"):
        (top / folder).chmod(0o500)
    (top / "closed").chmod(0)
    here = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 20, dir_fd=here)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    remove_tree(top)
    assert not top.exists() and (other / "kept").is_dir()
    remove_tree(top)
    (tmp_path / "file").touch()
    remove_tree(tmp_path / "file")
    top.symlink_to(other)
    remove_tree(top)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]

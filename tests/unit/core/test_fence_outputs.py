"""Outputs of boxes: files and folders, no more than they may be, and nothing else."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from rdukit.errors import OutputRefused
from rdukit.fence.outputs import MAX_DEPTH, OutputLimits, open_output
from support import shows

pytestmark = shows("job-boxes", "security")

LIMITS = OutputLimits(1000, 5)


def read(root: Path, path: Path, limits: OutputLimits = LIMITS) -> dict[str, int]:
    with open_output(root, path, limits) as found:
        return {file.path: len(file.stream.read()) for file in found.files}


def test_files_and_folders_are_taken(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "f").write_bytes(bytes(900))
    (folder / "g").write_bytes(b"")
    (folder / "empty").mkdir()
    before = os.listdir("/proc/self/fd")
    assert read(tmp_path, folder) == {"a/f": 900, "g": 0}
    assert read(tmp_path, folder / "a" / "f") == {"": 900}
    assert os.listdir("/proc/self/fd") == before


def make_socket(folder: Path) -> None:
    os.mknod(folder / "s", stat.S_IFSOCK | 0o600)  # the file alone: nothing is bound to it


def make_deep(folder: Path) -> None:
    for _ in range(MAX_DEPTH + 1):
        folder /= "d"
    folder.mkdir(parents=True)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda f: (f / "l").symlink_to("/etc/passwd"), "a symbolic link"),
        (lambda f: (f / "l").symlink_to(f), "a symbolic link"),
        (lambda f: ((f / "a").touch(), (f / "b").hardlink_to(f / "a")), "a hard link"),
        (lambda f: os.mkfifo(f / "p"), "a pipe"),
        (make_socket, "a socket"),
        (lambda f: (f / "a").write_bytes(bytes(1001)), "more than 1000 bytes"),
        (lambda f: [(f / str(n)).touch() for n in range(6)], "more than 5 files and folders"),
        (lambda f: (f / "a").open("w").close() or os.truncate(f / "a", 1 << 40), "bytes"),
        (lambda f: open(os.fsencode(f) + b"/\xff", "w").close(), "not valid UTF-8"),
        (make_deep, "folders in folders"),
    ],
)
def test_anything_else_is_refused_with_its_reason(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    make(folder)
    limits = OutputLimits(1000, 5 if "files and folders" in why else 1000)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OutputRefused, match=why):
        read(tmp_path, folder, limits)
    assert os.listdir("/proc/self/fd") == before


def test_what_is_not_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "made" / "a").mkdir(parents=True)
    before = os.listdir("/proc/self/fd")
    with open_output(tmp_path, tmp_path / "made", LIMITS):
        pass
    with pytest.raises(OutputRefused), open_output(tmp_path, tmp_path / "made", OutputLimits(1000, 0)) as found:
        next(found.files)
    assert os.listdir("/proc/self/fd") == before


def test_holes_are_refused_though_they_are_within_the_limit(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(2 << 30)
    with pytest.raises(OutputRefused, match="has holes: 2147483648 bytes, of which 0 are there"):
        read(tmp_path, tmp_path / "sparse", OutputLimits(None, None))


@pytest.mark.parametrize("name", ["../x", "out/../../x", "", "a/../../out", "no\0name", "missing"])
def test_an_output_is_in_the_folder_of_outputs(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    (out / "out").mkdir(parents=True)
    (tmp_path / "x").touch()
    with pytest.raises(OutputRefused, match=r"expected paths inside|does not exist"):
        read(out, Path(f"{out}/{name}") if name else out, LIMITS)


def test_a_link_on_the_way_to_an_output_is_not_followed(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    (elsewhere / "secret").mkdir(parents=True)
    (out / "way").symlink_to(elsewhere)
    with pytest.raises(OutputRefused, match="a symbolic link"):
        read(out, out / "way" / "secret", LIMITS)
    (out / "file").touch()
    with pytest.raises(OutputRefused, match=r"does not exist|is not a folder"):
        read(out, out / "file" / "x", LIMITS)


def test_what_is_changed_while_it_is_read_leads_nowhere_else(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    for folder in (out / "made" / "a", out / "made" / "b", elsewhere):
        folder.mkdir(parents=True)
        (folder / "f").write_bytes(b"own" if folder != elsewhere else b"another's")
    (out / "made" / "c").write_bytes(b"")
    with open_output(out, out / "made", LIMITS) as found:
        file = next(found.files)
        # The folder that is read is another one now, and so is the next.
        (out / "made" / "a").rename(out / "away")
        (out / "made" / "a").symlink_to(elsewhere)
        assert (file.path, file.stream.read()) == ("a/f", b"own")
        (out / "made" / "b").rename(out / "away too")
        (out / "made" / "b").symlink_to(elsewhere)
        with pytest.raises(OutputRefused, match="a symbolic link"):
            next(found.files)
    with open_output(out, out / "away", LIMITS) as found:
        stream = next(found.files).stream
        os.truncate(out / "away" / "f", 1 << 40)  # more than there is memory
        with pytest.raises(OutputRefused, match="more than 1000 bytes"):
            stream.read()

"""Archives unpack within limits, and nothing of them lands elsewhere."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rdukit.errors import InvalidArgument
from rdukit_modelbox.artifacts import unpack as unpack_module
from rdukit_modelbox.artifacts.screen import screen
from rdukit_modelbox.artifacts.unpack import UnpackLimits, check_zip, find_kind, unpack
from support import shows

pytestmark = shows("modelbox", "security")

LIMITS = UnpackLimits(1 << 20, 50)


def tar_of(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return stream.getvalue()


def zip_of(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zip_link() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


PLAIN = (("set/a.txt", b"one"), ("set/b/c.txt", b"two"))


@pytest.mark.parametrize(
    "data",
    [
        zip_of(*PLAIN), tar_of(*PLAIN), gzip.compress(tar_of(*PLAIN)), bz2.compress(tar_of(*PLAIN)),
        lzma.compress(tar_of(*PLAIN)),
    ],
    ids=["zip", "tar", "gz", "bz2", "xz"],
)  # fmt: skip
def test_archives_are_known_by_content_and_unpacked(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "no-suffix"
    path.write_bytes(data)
    assert find_kind(path) in {"zip", "tar"}
    unpack(path, tmp_path / "out", LIMITS)
    assert (tmp_path / "out/set/a.txt").read_bytes() == b"one"
    assert (tmp_path / "out/set/b/c.txt").read_bytes() == b"two"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (zip_of(("../evil", b"x")), "leads out"), (zip_of(("/evil", b"x")), "leads out"),
        (zip_of(("a/../../evil", b"x")), "leads out"), (zip_of(("a\\..\\evil", b"x")), "leads out"),
        (zip_of((zip_link(), b"/etc/passwd")), "link or device"), (tar_of(("../evil", b"x")), "leads out"),
        (tar_of(link("a", "/etc")), "link or device"), (tar_of(link("a", "b", tarfile.LNKTYPE)), "link or device"),
        (tar_of(link("a", "", tarfile.CHRTYPE)), "link or device"), (tar_of(link("a", "", tarfile.FIFOTYPE)), "link"),
        (tar_of(("a", b"1"), ("a", b"2")), "is repeated"), (tar_of(("a", b"1"))[:600], "not a readable archive"),
        (gzip.compress(tar_of(("a", b"1" * 5000)))[:60], "not a readable archive"),
        (b"PK\x03\x04junk", "not a readable archive"), (b"\x1f\x8bjunk", "not a readable archive"),
    ],
)  # fmt: skip
def test_what_leads_out_is_a_link_or_is_damaged_is_refused_and_leaves_nothing(
    tmp_path: Path, data: bytes, words: str
) -> None:
    path, folder = tmp_path / "a", tmp_path / "out"
    path.write_bytes(data)
    with pytest.raises(InvalidArgument, match=words):
        unpack(path, folder, LIMITS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize(
    "make",
    [
        lambda zeros: zip_of(("zeros", zeros)),
        lambda zeros: zip_of(*((f"zeros{n}", zeros[: len(zeros) // 8]) for n in range(8))),
        lambda zeros: gzip.compress(tar_of(("zeros", zeros))),
        lambda zeros: lzma.compress(tar_of(("zeros", zeros))),
        lambda zeros: gzip.compress(tar_of(*((f"{n}", b"") for n in range(len(zeros) // 1024)))),
    ],
)
def test_bombs_are_refused_by_size_and_by_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(make(bytes(300_000)))
    for limits, free in ((UnpackLimits(100_000, 10_000), 1 << 20), (UnpackLimits(1 << 30, 2), 1000)):
        monkeypatch.setattr(unpack_module.Budget.__init__, "__defaults__", (free,))
        with pytest.raises(InvalidArgument, match="unpacks to more than"):
            unpack(path, tmp_path / "out", limits)
        assert not (tmp_path / "out").exists()
    unpack(path, tmp_path / "out", UnpackLimits(1 << 30, 10_000))


def test_a_zip_that_lies_about_its_size_does_not_get_more_than_it_claims(tmp_path: Path) -> None:
    data = bytearray(zip_of(("a", bytes(100_000))))
    where = data.rindex(b"PK\x01\x02") + 24
    data[where : where + 4] = (10).to_bytes(4, "little")
    path = tmp_path / "liar.zip"
    path.write_bytes(data)
    with pytest.raises(InvalidArgument):
        unpack(path, tmp_path / "out", LIMITS)


def test_an_npz_bomb_is_refused_and_a_plain_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "zeros.npz", a=np.zeros(1 << 18))
    check_zip(tmp_path / "zeros.npz", UnpackLimits(1 << 30, 10))
    with pytest.raises(InvalidArgument, match="unpacks to more than"):
        check_zip(tmp_path / "zeros.npz", UnpackLimits(1 << 20, 10))


def test_pickles_are_refused_by_name_and_by_content(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "plain.csv").write_text("1,2\n")
    (folder / "high").write_bytes(b"\x80\x02 no pickle, only bytes")
    screen(folder, "input 'data'", [tmp_path], LIMITS)
    torch_zip = zip_of(("archive/data.pkl", b"x"), ("archive/data/0", b"y"))
    for name, data in (("a", pickle.dumps([1])), ("b.npy", pickle.dumps({}, 2)), ("c.bin", torch_zip), ("d.pt", b"x")):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(InvalidArgument, match=r"input 'data'.*is a pickle.*safetensors.*rdukit box convert"):
            screen(path, "input 'data'", [tmp_path], LIMITS)


def test_links_out_of_the_mounts_and_sockets_are_refused(tmp_path: Path) -> None:
    folder, outside = tmp_path / "mount/in", tmp_path / "outside"
    folder.mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("x")
    (folder / "here").write_text("x")
    (folder / "inner").symlink_to("here")
    screen(folder, "input 'data'", [tmp_path / "mount"], LIMITS)
    for target in (outside, outside / "secret", Path("/proc/self/environ")):
        (folder / "leads").symlink_to(target)
        with pytest.raises(InvalidArgument, match="outside this box's mounts"):
            screen(folder, "input 'data'", [tmp_path / "mount"], LIMITS)
        (folder / "leads").unlink()
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)  # the file alone: nothing is bound to it
    with pytest.raises(InvalidArgument, match="neither a file nor a folder"):
        screen(folder, "input 'data'", [tmp_path / "mount"], LIMITS)

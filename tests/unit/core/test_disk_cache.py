"""Kept files are whole or absent, and what goes first is what was used longest ago."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.files.disk_cache import (
    USE_RESOLUTION_S,
    CachedFile,
    choose_evicted,
    is_abandoned,
    list_cached,
    load_cached,
    remove_cached,
    seal,
    store_cached,
    sweep_temporary,
    unseal,
)
from rdukit.files.locks import claim_lock, shared_lock, sole_lock
from support import shows

pytestmark = shows("engine")

cached_files = st.lists(
    st.builds(
        CachedFile,
        st.integers(0, 99).map(lambda number: Path(f"/kept/{number}")),
        st.integers(0, 50),
        st.integers(0, 20).map(float),
        st.integers(0, 1),
    ),
    unique_by=lambda file: file.path,
)


@given(cached_files, st.integers(0, 500))
def test_what_stays_fits_and_no_file_goes_that_need_not(files: list[CachedFile], max_bytes: int) -> None:
    going = choose_evicted(files, max_bytes)
    staying = [file for file in files if file not in going]
    size = sum(file.size_bytes for file in staying)
    assert size <= max_bytes
    assert len(set(going)) == len(going)
    assert set(going) <= set(files)
    if going:
        assert size + going[-1].size_bytes > max_bytes
    else:
        assert sum(file.size_bytes for file in files) <= max_bytes


@given(cached_files, st.integers(0, 500))
def test_nothing_stays_that_is_older_than_what_goes(files: list[CachedFile], max_bytes: int) -> None:
    going = choose_evicted(files, max_bytes)
    staying = [file for file in files if file not in going and file.size_bytes]
    last = max(((file.rank, file.used_s) for file in going), default=(0, -1.0))
    assert all((file.rank, file.used_s) >= last for file in staying)


@given(cached_files, st.integers(0, 500), st.randoms())
def test_the_order_in_which_files_are_found_changes_nothing(
    files: list[CachedFile], max_bytes: int, random: object
) -> None:
    shuffled = list(files)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose_evicted(shuffled, max_bytes) == choose_evicted(files, max_bytes)


@given(st.binary(), st.data())
def test_a_flipped_bit_a_cut_and_an_addition_are_noticed(content: bytes, data: st.DataObject) -> None:
    sealed = seal(content)
    assert unseal(sealed) == content
    flipped = bytearray(sealed)
    flipped[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert unseal(bytes(flipped)) is None
    assert unseal(sealed[: data.draw(st.integers(0, len(sealed) - 1))]) is None
    assert unseal(sealed + b"\0") is None


def test_a_damaged_file_counts_as_absent_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a"
    store_cached(path, b"content")
    assert load_cached(path, 0.0) == b"content"
    path.write_bytes(path.read_bytes()[:-1])
    assert load_cached(path, 0.0) is None
    assert not path.exists()
    assert load_cached(path, 0.0) is None


def test_use_is_noted_once_an_hour(tmp_path: Path) -> None:
    path = tmp_path / "a"
    store_cached(path, b"content")
    os.utime(path, (1000.0, 1000.0))
    load_cached(path, 1000.0 + USE_RESOLUTION_S)
    assert path.stat().st_mtime == 1000.0
    load_cached(path, 1001.0 + USE_RESOLUTION_S)
    assert path.stat().st_mtime == 1001.0 + USE_RESOLUTION_S


def test_a_folder_counts_and_goes_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(bytes(5))
    (tmp_path / "a" / "d").write_bytes(bytes(7))
    os.utime(tmp_path / "a" / "d", (9e9, 9e9))
    (found,) = list_cached([tmp_path / "a", tmp_path / "absent"], rank=3)
    assert found == CachedFile(tmp_path / "a", 12, 9e9, 3)
    assert remove_cached([found]) == 12
    assert not (tmp_path / "a").exists()


def test_only_temporary_files_of_killed_writers_are_swept(tmp_path: Path) -> None:
    process = next(number for number in range(2**22, 1, -1) if not Path("/proc", str(number)).exists())
    mine = tmp_path / "x" / f".a.so.{os.getpid()}.0123abcd.part"
    killed = tmp_path / "x" / f".a.so.{process}.0123abcd.part"
    kept = tmp_path / "x" / "a.so"
    (tmp_path / "x").mkdir()
    for path in (mine, killed, kept):
        path.write_bytes(b"")
    now = killed.stat().st_mtime
    sweep_temporary(tmp_path, now + 30)
    assert killed.exists()
    sweep_temporary(tmp_path, now + 90)
    assert sorted(kept.parent.iterdir()) == sorted([mine, kept])
    sweep_temporary(tmp_path, now + 4000)
    assert sorted(kept.parent.iterdir()) == [kept]


@pytest.mark.parametrize(
    ("age_s", "is_running", "expected"),
    [(0.0, True, False), (0.0, False, False), (61.0, False, True), (61.0, True, False), (3601.0, True, True)],
)
def test_a_temporary_file_is_nobodys_when_its_process_is_gone_or_it_is_old(
    age_s: float, is_running: bool, expected: bool
) -> None:
    assert is_abandoned(age_s, is_running) is expected


def test_a_lock_file_that_a_killed_holder_left_is_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    with sole_lock(path) as held:
        assert held
    assert not path.exists()


def test_who_sweeps_holds_a_shared_lock_alone_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "building"
    with shared_lock(path), shared_lock(path), claim_lock(path) as alone:
        assert not alone
    with claim_lock(path) as alone:
        assert alone

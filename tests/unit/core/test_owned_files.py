"""Files and folders named after their owner: a later process removes what killed ones left, and nothing else."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from rdukit.files.owned import Owner, own_process, remove_of_ended, scratch_folder
from support import shows

pytestmark = shows("profile", "lost-ranks")


def missing_process() -> int:
    """The id of no process."""
    return next(number for number in range(2**22, 1, -1) if not Path("/proc", str(number)).exists())


def test_a_scratch_folder_is_private_and_goes_with_its_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder("some") as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
        with scratch_folder("some") as other:
            assert other != folder
            assert (folder / "file").exists(), "its owner runs"
    assert not any(tmp_path.iterdir())


def test_a_later_process_removes_the_folders_of_killed_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = own_process()
    again = Owner(own.pid, own.start_ticks - 1)  # its id was used once more
    left = [tmp_path / f"some-{owner.mark}-a" for owner in (again, Owner(missing_process(), 5))]
    for folder in left:
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").touch()
    with scratch_folder("some") as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_what_may_have_an_owner_stays(tmp_path: Path) -> None:
    ended = Owner(missing_process(), 5)
    place, _, process = ended.mark.partition("-")
    assert ended.has_ended()
    assert not own_process().has_ended()
    kept = [
        f"some-{own_process().mark}.json",  # it runs
        f"some-{'0' * len(place)}-{process}.json",  # on another machine
        f"some-{Owner(ended.pid, 0).mark}.json",  # its start could not be read
        f"other-{ended.mark}.json", "some-1-2.json", "some",
    ]  # fmt: skip
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / f"some-{ended.mark}.json").symlink_to("some")
    remove_of_ended(tmp_path, "some")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept), "the link went, not its target"
    remove_of_ended(tmp_path / "absent", "some")


def test_files_of_other_users_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    theirs = tmp_path / f"some-{Owner(missing_process(), 5).mark}"
    theirs.touch()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    remove_of_ended(tmp_path, "some")
    assert theirs.exists()
    monkeypatch.setattr(os, "geteuid", lambda: user)
    remove_of_ended(tmp_path, "some")
    assert not theirs.exists()


def test_nothing_is_removed_where_the_system_tells_no_boot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "read_text", deny)
    name = f"some-{Owner(missing_process(), 5).mark}"
    assert name.startswith("some-nowhere-")
    (tmp_path / name).touch()
    remove_of_ended(tmp_path, "some")
    assert (tmp_path / name).exists()


def test_unused_files_of_former_versions_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = ["some-ab12_xyz", "some-ab12_xy2", "some-longer_name", "other-ab12_xyz"]
    folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir(mode=0o700)
    (tmp_path / "some-abcdefgh").symlink_to("other-ab12_xyz")
    folders[1].chmod(0o755)  # no scratch folder has this mode
    now = time.time()
    with scratch_folder("some"):
        assert all(folder.exists() for folder in folders), "they were changed since this machine's boot"
    monkeypatch.setattr(time, "time", lambda: now + 40 * 86_400)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: 41 * 86_400.0)
    with scratch_folder("some"):
        assert all(folder.exists() for folder in folders), "this machine booted before their last change"
    monkeypatch.setattr(time, "clock_gettime", lambda clock: 9.0)
    with scratch_folder("some"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], "some-abcdefgh"])


def deny(path: Path) -> str:
    """Refuse to read, as a sandbox does."""
    raise PermissionError(path)

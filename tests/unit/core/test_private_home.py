"""What is done about a home folder: made private, mended, taken, or refused."""

import os
import stat
from pathlib import Path

import pytest

from rdukit.errors import PermissionDenied
from rdukit.files.atomic import write_atomic
from rdukit.files.home import Folder, HomeAction, close_contents, judge_home, make_folder, mend_home, private_home
from support import shows

pytestmark = shows("security")

OURS, ROOT, THEIRS = 1000, 0, 1001


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "above" / "home"
    monkeypatch.setenv("RDUKIT_HOME", str(folder))
    return folder


@pytest.fixture
def _open_umask() -> object:
    former = os.umask(0)
    yield
    os.umask(former)


@pytest.mark.parametrize(
    ("owner", "mode", "names", "step"),
    [
        (OURS, 0o700, [], HomeAction.TAKE),
        (OURS, 0o755, [], HomeAction.MEND),
        (OURS, 0o777, ["kernels", "notes.txt"], HomeAction.MEND),
        (OURS, 0o750, ["token"], HomeAction.MEND),
        (OURS, 0o755, ["thesis.tex"], HomeAction.MEND),
        (OURS, 0o775, ["thesis.tex"], HomeAction.REFUSE_CONTENT),
        (OURS, 0o1777, [], HomeAction.REFUSE_CONTENT),
        (ROOT, 0o755, [], HomeAction.TAKE),
        (ROOT, 0o2777, ["run"], HomeAction.TAKE),
        (THEIRS, 0o700, [], HomeAction.REFUSE_OWNER),
        (THEIRS, 0o777, ["kernels"], HomeAction.REFUSE_OWNER),
    ],
)
def test_a_folder_is_judged_by_owner_mode_and_content(
    owner: int, mode: int, names: list[str], step: HomeAction
) -> None:
    assert judge_home(Folder(owner, mode, frozenset(names)), OURS) is step


def test_root_does_not_run_what_lies_in_a_users_home() -> None:
    assert judge_home(Folder(OURS, 0o700, frozenset()), ROOT) is HomeAction.REFUSE_OWNER
    assert judge_home(None, ROOT) is HomeAction.MAKE


@pytest.mark.usefixtures("_open_umask")
def test_whoever_writes_the_first_file_makes_the_home_private(home: Path) -> None:
    write_atomic(home / "sections" / "x.json", b"{}")
    assert mode_of(home) == 0o700
    assert mode_of(home.parent) == 0o777, "what lies above is not ours"


@pytest.mark.usefixtures("_open_umask")
def test_a_folder_elsewhere_is_made_as_asked(home: Path, tmp_path: Path) -> None:
    make_folder(tmp_path / "output" / "deep")
    assert mode_of(tmp_path / "output") == 0o777
    assert not home.exists()


def test_a_loose_home_is_mended_with_a_word(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "kernels").mkdir(parents=True)
    home.chmod(0o777)
    assert private_home() == home
    assert mode_of(home) == 0o700
    assert "was open to other users" in caplog.text
    caplog.clear()
    private_home()
    assert caplog.text == ""


def test_a_folder_that_others_use_is_refused_and_stays_as_it_is(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "someone's").mkdir(parents=True)
    home.chmod(0o777)
    with pytest.raises(PermissionDenied, match="holds other files; set RDUKIT_HOME"):
        private_home()
    assert mode_of(home) == 0o777
    mend_home()
    assert "left as it is" in caplog.text


def test_looking_makes_no_home(home: Path) -> None:
    mend_home()
    assert not home.exists()


def test_open_files_and_folders_in_a_home_are_closed_and_links_are_not_followed(home: Path, tmp_path: Path) -> None:
    private_home()
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    for name, mode in (("artifacts", 0o755), ("tenants", 0o711), ("run", 0o700)):
        (home / name).mkdir()
        (home / name).chmod(mode)
    (home / "db.sqlite").write_text("")
    (home / "db.sqlite").chmod(0o644)
    (home / "link").symlink_to(outside)
    assert [path.name for path in close_contents(home)] == ["artifacts", "db.sqlite"]
    assert (mode_of(home / "artifacts"), mode_of(home / "db.sqlite"), mode_of(outside)) == (0o700, 0o600, 0o644)
    assert close_contents(home) == []

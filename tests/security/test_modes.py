"""Another user of the host reads and plants nothing in a home folder, whichever command made it."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import shows, wait_until
from support.platform.processes import platform_under_test, short_folder
from support.tiers import first_short

pytestmark = shows("security", "node", "cache")

BIN = Path(sys.executable).parent
BOX = Path(__file__).parents[1] / "integration" / "platform_box.py"
STRANGER = 12345

COMPILE = "from rdukit.pef.trust import sign; sign({'a': 1})"
KERNELS = "from rdukit_compiler.backend.kernel_cache import open_kernel_cache as o\nwith o('x').building(): pass"
LIMITS = """
from rdukit.files.atomic import write_atomic
from rdukit_runtime.engine.machine_limits import limits_file
write_atomic(limits_file(), b"")
"""
DATABASE = """
from rdukit_platform.db.engine import Database
from rdukit_platform.settings import checked_home
Database.of_home(checked_home())
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder / "home"))
        yield folder / "home"


def others_may(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode) & 0o077


def open_to_others(home: Path) -> list[str]:
    """The home, and what lies right in it, as far as others may do anything there."""
    return [str(path) for path in (home, *home.iterdir()) if not path.is_symlink() and others_may(path)]


def run(code: str, umask: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], umask=umask, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("code", first_short([DATABASE, COMPILE, KERNELS, LIMITS]))
def test_whatever_writes_first_leaves_the_home_closed(home: Path, code: str) -> None:
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert home.is_dir()
    assert others_may(home) == 0


def test_a_node_daemon_that_comes_first_leaves_the_home_closed(home: Path) -> None:
    command = [BIN / "rdukit", "node", "start", "--platform", "SN30-8"]
    with subprocess.Popen(command, umask=0, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        wait_until((home / "run" / "snd.sock").exists, 60.0, "the node's socket")
        assert others_may(home) == 0
        assert others_may(home / "run" / "snd.sock") == 0
        daemon.send_signal(signal.SIGTERM)


def test_a_platform_leaves_nothing_open(home: Path) -> None:
    former = os.umask(0)
    try:
        with platform_under_test(home, BOX) as platform:
            job = platform.submit("preprocess")
            assert platform.wait_end(job["id"])["state"] == "succeeded"
            assert open_to_others(home) == []
            secrets = [home / "token", home / "console.key", home / "db.sqlite", *home.glob("db.sqlite-*")]
            assert {path.name: others_may(path) for path in secrets if path.exists() and others_may(path)} == {}
            sockets = {path.name for path in home.rglob("*") if path.is_socket() and others_may(path)}
            assert sockets <= {"snml.sock"}, "SNML's asks each caller for a token, and lies in a closed folder"
    finally:
        os.umask(former)


@pytest.mark.long
def test_a_home_that_was_open_is_closed_by_the_next_command_with_a_word(home: Path) -> None:
    (home / "kernels").mkdir(parents=True)
    (home / "db.sqlite").write_text("")
    for path, mode in ((home, 0o777), (home / "kernels", 0o777), (home / "db.sqlite", 0o666)):
        path.chmod(mode)
    shown = subprocess.run([BIN / "rdukit", "cache", "show"], capture_output=True, text=True, check=False, timeout=120)
    assert others_may(home) == 0
    assert "was open to other users" in shown.stderr
    done = run(DATABASE)
    assert (done.returncode, open_to_others(home)) == (0, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to have a folder of another user")
@pytest.mark.parametrize("code", first_short([DATABASE, COMPILE, KERNELS]))
def test_a_stranger_who_made_the_home_first_is_not_trusted(home: Path, code: str) -> None:
    home.mkdir()
    os.chown(home, STRANGER, STRANGER)
    home.chmod(0o777)
    done = run(code)
    assert done.returncode != 0
    assert f"belongs to user {STRANGER}" in done.stderr
    assert list(home.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_reads_nothing_of_a_home(home: Path) -> None:
    assert run(COMPILE).returncode == 0
    home.parent.chmod(0o755)
    cat = shutil.which("cat")
    assert cat is not None
    tried = subprocess.run(
        [cat, home / "kernels" / "trust.key"], user=STRANGER, group=STRANGER, extra_groups=[], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert "Permission denied" in tried.stderr


def test_a_folder_of_everybody_is_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_folder() as folder:
        folder.chmod(0o1777)
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        done = run(COMPILE)
        assert "set RDUKIT_HOME to a new folder" in done.stderr
        assert stat.S_IMODE(folder.stat().st_mode) == 0o1777

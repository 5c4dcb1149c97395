"""Keep the home folder private: create it private, and close or refuse one that other users can enter.

It holds keys, tokens, the database and code that is executed. Its mode keeps other users out, so its contents may have
any mode.
"""

import logging
import os
import stat
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from rdukit.errors import PermissionDenied
from rdukit.settings import HOME, home_folder

logger = logging.getLogger(__name__)

PRIVATE: Final = 0o700
#: Mode bits that admit other users.
_OTHERS: Final = 0o077
_ROOT: Final = 0
#: Names in a home folder; any of them distinguishes it from a folder with another purpose.
MARKS: Final = frozenset({
    "artifacts", "boxes", "broker", "config.yaml", "console.key", "db.sqlite", "installing", "kernels", "logs",
    "machine", "pools", "restoring", "run", "sections", "snfm", "tenants", "token", "work",
})  # fmt: skip

#: Folders whose subfolders are mounted for other users, who need no access to the folders themselves.
_HANDED_OUT: Final = frozenset({"tenants"})


class HomeAction(Enum):
    """Actions on a home folder."""

    MAKE = auto()
    #: The folder is private, or belongs to root, who chooses the mode.
    TAKE = auto()
    #: The folder is ours, and other users may enter it.
    MEND = auto()
    #: The folder belongs to another user, who could decide what this process runs.
    REFUSE_OWNER = auto()
    #: Other users write to the folder, or it has unrelated files, so closing it could lock out its users.
    REFUSE_CONTENT = auto()


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder's owner, mode and names."""

    owner: int
    mode: int
    names: frozenset[str]


def judge_home(found: Folder | None, user: int) -> HomeAction:
    """Choose the action of ``user`` on the home folder (pure)."""
    if found is None:
        return HomeAction.MAKE
    if found.owner not in (user, _ROOT):
        return HomeAction.REFUSE_OWNER
    if not found.mode & _OTHERS or found.owner != user:
        return HomeAction.TAKE
    is_shared = found.mode & stat.S_ISVTX or (found.mode & 0o022 and found.names and not found.names & MARKS)
    return HomeAction.REFUSE_CONTENT if is_shared else HomeAction.MEND


def private_home() -> Path:
    """Return the home folder; create it if it is missing, and close it to other users.

    Raises:
        PermissionDenied: the folder belongs to another user, or others use it too.
        OSError: the folder cannot be created.
    """
    return _settle(home_folder(), may_make=True)


def mend_home() -> None:
    """Close the home folder to other users; never create or refuse it."""
    try:
        _settle(home_folder(), may_make=False)
    except (PermissionDenied, OSError) as error:
        logger.warning("home folder left as it is reason=%s", error)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; the home folder, and folders directly in it, are private."""
    if folder.is_dir():
        return
    home = home_folder()
    if folder == home or home in folder.parents:
        private_home()
        for name in folder.relative_to(home).parts[:1]:
            if name not in _HANDED_OUT:
                (home / name).mkdir(mode=PRIVATE, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def close_contents(home: Path) -> list[Path]:
    """Close direct children of our home folder to other users; return those that were open."""
    opened = []
    for path in sorted(home.iterdir()):
        found = path.lstat()
        is_folder = stat.S_ISDIR(found.st_mode)
        if path.name in _HANDED_OUT or not (is_folder or stat.S_ISREG(found.st_mode)):
            continue
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & _OTHERS:
            path.chmod(PRIVATE if is_folder else 0o600)
            opened.append(path)
    return opened


def _settle(home: Path, *, may_make: bool) -> Path:
    found = _look(home)
    step = judge_home(found, os.geteuid())
    if step is HomeAction.MAKE and may_make:
        home.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    elif step is HomeAction.MEND:
        assert found is not None
        home.chmod(PRIVATE)
        logger.warning("home folder was open to other users, closed now folder=%s mode=%04o", home, found.mode)
    elif step is HomeAction.REFUSE_OWNER:
        assert found is not None
        raise PermissionDenied(
            f"home folder {home} belongs to user {found.owner}, who could make this process of user {os.geteuid()} "
            f"run other code; run as user {found.owner}, or set {HOME.variable} to a folder of your own"
        )
    elif step is HomeAction.REFUSE_CONTENT:
        assert found is not None
        raise PermissionDenied(
            f"home folder {home} is open to other users (mode {found.mode:04o}) and holds other files; set "
            f"{HOME.variable} to a new folder, or close this one: chmod 700 {home}"
        )
    return home


def _look(home: Path) -> Folder | None:
    try:
        found = home.stat()
    except FileNotFoundError:
        return None
    mode = stat.S_IMODE(found.st_mode)
    # The names are needed only if the folder is open, which is rare.
    names = frozenset(os.listdir(home)) if mode & _OTHERS and found.st_uid == os.geteuid() else frozenset()
    return Folder(found.st_uid, mode, names)

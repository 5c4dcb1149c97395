"""The home folder is its owner's alone: who makes it first makes it so, and who finds it otherwise mends or refuses it.

It holds keys, tokens, the database and code that is run as it lies there. Its mode is what keeps other users out;
what is inside may have any.
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
#: Bits that let somebody else in.
_OTHERS: Final = 0o077
_ROOT: Final = 0
#: What lies in a home folder; any of it tells one from a folder that is something else's.
MARKS: Final = frozenset({
    "artifacts", "boxes", "broker", "config.yaml", "console.key", "db.sqlite", "installing", "kernels", "logs",
    "machine", "pools", "restoring", "run", "sections", "snfm", "tenants", "token", "work",
})  # fmt: skip

#: Folders whose insides are mounted for others, who need not be able to pass through.
_HANDED_OUT: Final = frozenset({"tenants"})


class HomeAction(Enum):
    """Actions on a home folder."""

    MAKE = auto()
    #: It is private, or root's, whose choice its mode is.
    TAKE = auto()
    #: It is ours, and others may look in.
    MEND = auto()
    #: It is another user's, who would decide what this process runs.
    REFUSE_OWNER = auto()
    #: Others write in it too, or it has other things than a home folder: closing it could take them from somebody.
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
    """Return the home folder, created if need be, and closed to other users.

    Raises:
        PermissionDenied: it belongs to another user, or it is a folder that others use too.
        OSError: it cannot be made.
    """
    return _settle(home_folder(), may_make=True)


def mend_home() -> None:
    """Close the home folder to other users; create nothing and refuse nothing."""
    try:
        _settle(home_folder(), may_make=False)
    except (PermissionDenied, OSError) as error:
        logger.warning("home folder left as it is reason=%s", error)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; the home folder, and what lies right in it, for its owner only."""
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
    """Close to others what lies right in our home folder. Returns what was open."""
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
            f"home folder {home} belongs to user {found.owner}, who could decide what this process of user "
            f"{os.geteuid()} runs; run as user {found.owner}, or set {HOME.variable} to a folder of your own"
        )
    elif step is HomeAction.REFUSE_CONTENT:
        assert found is not None
        raise PermissionDenied(
            f"home folder {home} is open to other users (mode {found.mode:04o}) and has other things in it; "
            f"set {HOME.variable} to a folder of its own, or close this one: chmod 700 {home}"
        )
    return home


def _look(home: Path) -> Folder | None:
    try:
        found = home.stat()
    except FileNotFoundError:
        return None
    mode = stat.S_IMODE(found.st_mode)
    # Names matter only where it is open; most times it is not.
    names = frozenset(os.listdir(home)) if mode & _OTHERS and found.st_uid == os.geteuid() else frozenset()
    return Folder(found.st_uid, mode, names)

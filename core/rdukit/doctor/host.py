"""Checks of the host: the home folder and its contents, the fence, free disk space, the C++ compiler."""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rdukit.cli.status import PartStatus, read_status
from rdukit.doctor.cli import Finding, FindingLevel, Topic
from rdukit.files.home import Folder, HomeAction, judge_home
from rdukit.pef.trust import key_path
from rdukit.settings import HOME, home_folder

#: Files below the home folder that only their owner may read.
SECRETS: Final = ("token", "login.json", "contexts.json", "console.key", "db.sqlite", "config.yaml", "run/admin.token")
MIN_FREE_BYTES: Final = 1 << 30
#: Free bytes below which workers start no job.
FULL_BYTES: Final = 16 << 20
_ROOT: Final = 0


def check_host() -> Iterator[Finding]:
    """Check the home folder, its secrets, the folders above it, the fence, the disk and the C++ compiler."""
    home = home_folder()
    found = _look(home)
    yield home_finding(home, found, os.geteuid())
    yield from above_findings([(path, _look(path)) for path in home.parents], os.geteuid())
    if found is not None:
        yield from secret_findings([(path, _mode_of(path)) for path in (key_path(), *(home / n for n in SECRETS))])
        yield disk_finding(home, shutil.disk_usage(home).free)
    yield compiler_finding(shutil.which(os.environ.get("CXX") or "g++"))
    yield _fence()
    yield from (part_finding(part, home) for part in read_status())


def part_finding(part: PartStatus, home: Path) -> Finding:
    """Judge the status of a part; a part that was not started is good (pure)."""
    level = {
        "running": FindingLevel.GOOD, "stopped": FindingLevel.GOOD, "starting": FindingLevel.WARN,
        "degraded": FindingLevel.BAD,
    }.get(part.state, FindingLevel.UNKNOWN)  # fmt: skip
    todo = "" if level is FindingLevel.GOOD else f"see its log in {home / 'logs'}"
    return Finding(f"{part.part}.state", level, part.text, todo, Topic.MACHINE)


def home_finding(home: Path, found: Folder | None, user: int) -> Finding:
    """Judge the home folder's owner and mode (pure)."""
    step = judge_home(found, user)
    if found is None:
        return Finding(
            "home.mode",
            FindingLevel.GOOD,
            f"home folder {home} does not exist yet; rdukit will create it as a private folder",
        )
    said = f"home folder {home} belongs to user {found.owner}, mode {found.mode:04o}"
    if step is HomeAction.REFUSE_OWNER:
        return Finding("home.mode", FindingLevel.BAD, said, f"set {HOME.variable} to a folder of your own")
    if step is HomeAction.TAKE and not found.mode & 0o077:
        return Finding("home.mode", FindingLevel.GOOD, said)
    return Finding("home.mode", FindingLevel.BAD, f"{said}: other users can read it", f"chmod 700 {home}")


def above_findings(above: Iterable[tuple[Path, Folder | None]], user: int) -> Iterator[Finding]:
    """Report folders above the home folder in which other users could rename it (pure)."""
    open_ones = [
        path
        for path, found in above
        if found is not None
        and (found.owner not in (user, _ROOT) or (found.mode & 0o022 and not found.mode & stat.S_ISVTX))
    ]
    if not open_ones:
        yield Finding("home.above", FindingLevel.GOOD, "no other user can replace the home folder")
    for path in open_ones:
        what = f"other users can rename entries of {path}, and so replace the home folder with their own"
        yield Finding(
            "home.above", FindingLevel.BAD, what, f"move the home folder ({HOME.variable}), or: chmod go-w {path}"
        )


def secret_findings(secrets: Iterable[tuple[Path, int | None]]) -> Iterator[Finding]:
    """Report keys and tokens that only the home folder's mode protects from other users (pure)."""
    loose = [(path, mode) for path, mode in secrets if mode is not None and mode & 0o077]
    if not loose:
        yield Finding("home.secrets", FindingLevel.GOOD, "only their owner can read keys, tokens and database")
    for path, mode in loose:
        yield Finding("home.secrets", FindingLevel.BAD, f"{path} has mode {mode:04o}", f"chmod 600 {path}")


def disk_finding(home: Path, free_bytes: int) -> Finding:
    """Judge the free disk space (pure)."""
    what, todo = f"{home} has {free_bytes / (1 << 30):.1f} GiB of free space", "make room, or move the home folder"
    if free_bytes < FULL_BYTES:
        return Finding("disk.free", FindingLevel.BAD, f"{what}: no job begins", todo, Topic.MACHINE)
    if free_bytes < MIN_FREE_BYTES:
        return Finding("disk.free", FindingLevel.WARN, what, todo, Topic.MACHINE)
    return Finding("disk.free", FindingLevel.GOOD, what, topic=Topic.MACHINE)


def compiler_finding(path: str | None) -> Finding:
    """Judge the C++ compiler that builds native kernels; rdukit runs without one (pure)."""
    if path is None:
        what = "no C++ compiler: kernels are portable, which is slower"
        return Finding("compiler", FindingLevel.WARN, what, "install g++, or name a compiler in CXX", Topic.MACHINE)
    return Finding("compiler", FindingLevel.GOOD, f"{path} builds native kernels", topic=Topic.MACHINE)


def _fence() -> Finding:
    from rdukit.fence.probe import what_holds

    fence = what_holds()
    if fence.way is None:
        todo = "allow user namespaces to this user, or run jobs' boxes as containers (worker.box_backend)"
        return Finding("fence", FindingLevel.WARN, f"tenants' programs cannot be fenced here: {fence.why}", todo)
    if fence.missing:
        return Finding(
            "fence", FindingLevel.GOOD, f"tenants' programs are fenced ({fence.way}), except for {fence.why}"
        )
    return Finding("fence", FindingLevel.GOOD, f"tenants' programs are fenced ({fence.way})")


def _look(path: Path) -> Folder | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return Folder(found.st_uid, stat.S_IMODE(found.st_mode), frozenset())


def _mode_of(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.lstat().st_mode)
    except OSError:
        return None

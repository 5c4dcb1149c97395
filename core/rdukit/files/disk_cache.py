"""Cache on disk, for files that can be built again: a file is complete or absent, and the least recently used goes.

A cached file ends with the SHA-256 of its content, so a file that a full or failing disk damaged counts as absent. The
digest is at the end because the system's loader accepts bytes after a library, but none before it.
"""

import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.files.atomic import sha256_of, write_atomic

logger = logging.getLogger(__name__)

#: Separator between the content and its digest.
_MARK: Final = b"\nsha256:"

_SEAL_BYTES: Final = len(_MARK) + 64

#: Seconds between two updates of a file's time of use: an update at each use would cost a write each time.
USE_RESOLUTION_S: Final = 3600.0

#: Seconds after which a temporary file is abandoned: if its process has ended, and if a process with its id runs, which
#: may be another one.
_ABANDONED_S: Final = (60.0, 3600.0)


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file, or a folder that is evicted as one, with its size and its time of last use in seconds since the epoch."""

    path: Path
    size_bytes: int
    used_s: float
    #: Files of a lower rank are evicted before all files of a higher rank.
    rank: int = 0


def choose_evicted(files: Iterable[CachedFile], max_bytes: int) -> list[CachedFile]:
    """Choose the files to evict so that the rest has at most ``max_bytes``: lowest rank first, then least recently
    used.

    Pure; files of equal rank and time are ordered by their paths. No more files are evicted than necessary.
    """
    ordered = sorted(files, key=lambda file: (file.rank, file.used_s, file.path))
    excess = sum(file.size_bytes for file in ordered) - max_bytes
    going = []
    for file in ordered:
        if excess <= 0:
            break
        if file.size_bytes:
            going.append(file)
            excess -= file.size_bytes
    return going


def seal(content: bytes) -> bytes:
    """Append the digest of ``content``."""
    return content + _MARK + sha256_of(content).encode()


def unseal(data: bytes) -> bytes | None:
    """Return the content of sealed data; None if it is damaged."""
    content, digest = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    return content if digest == _MARK + sha256_of(content).encode() else None


def store_cached(path: Path, content: bytes) -> None:
    """Write ``content``, sealed; a reader sees the file before or the file after.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    write_atomic(path, seal(content))


def load_cached(path: Path, now_s: float) -> bytes | None:
    """Return a cached file's content and mark it as used at ``now_s``; None if it is missing or damaged.

    A damaged file is removed if possible. Never raises: unreadable files are built again.
    """
    try:
        content = unseal(path.read_bytes())
        if content is None:
            logger.warning("cached file is damaged and will be rebuilt: path=%s", path)
            path.unlink(missing_ok=True)
            return None
    except FileNotFoundError:
        return None
    except OSError as cause:
        logger.warning("cached file cannot be used: path=%s reason=%s", path, cause)
        return None
    mark_used(path, now_s)
    return content


def mark_used(path: Path, now_s: float) -> None:
    """Set a file's time of use, unless it was set within the last hour."""
    try:
        if now_s - path.stat().st_mtime > USE_RESOLUTION_S:
            os.utime(path, (now_s, now_s))
    except OSError:  # removed meanwhile, or a folder that only others may write
        logger.debug("cached file cannot be marked as used: path=%s", path)


def list_cached(paths: Iterable[Path], rank: int = 0) -> list[CachedFile]:
    """Return the size and time of use of each path that still exists; a folder counts as all of its files."""
    return [found for path in paths if (found := _find_measured(path, rank)) is not None]


def remove_cached(files: Iterable[CachedFile]) -> int:
    """Remove files and folders as far as possible; return the bytes of those removed."""
    freed = 0
    for file in files:
        if file.path.is_dir() and not file.path.is_symlink():
            shutil.rmtree(file.path, ignore_errors=True)
        else:
            try:
                file.path.unlink(missing_ok=True)
            except OSError as cause:
                logger.debug("cached file cannot be removed: path=%s reason=%s", file.path, cause)
                continue
        freed += file.size_bytes
    return freed


def sweep_temporary(folder: Path, now_s: float) -> None:
    """Remove temporary files of ``rdukit.files.atomic`` that killed writers left below ``folder``."""
    for path in folder.rglob(".*.part"):
        process = path.name.split(".")[-3:-2]
        try:
            if is_abandoned(now_s - path.stat().st_mtime, bool(process) and _is_running(process[0])):
                path.unlink()
        except OSError:
            continue


def is_abandoned(age_s: float, is_running: bool) -> bool:
    """Return whether a temporary file is abandoned, by its age and its process."""
    gone_s, reused_s = _ABANDONED_S
    return age_s > (reused_s if is_running else gone_s)


def _is_running(process: str) -> bool:
    return process.isdecimal() and Path("/proc", process).exists()


def _find_measured(path: Path, rank: int) -> CachedFile | None:
    try:
        status = path.stat()
        if not path.is_dir():
            return CachedFile(path, status.st_size, status.st_mtime, rank)
        parts = list(_files_below(path))
    except OSError:  # another process removed it
        return None
    return CachedFile(path, sum(s for s, _ in parts), max((used for _, used in parts), default=status.st_mtime), rank)


def _files_below(folder: Path) -> Iterator[tuple[int, float]]:
    for path in folder.rglob("*"):
        try:
            status = path.stat(follow_symlinks=False)
        except OSError:
            continue
        if path.is_file():
            yield status.st_size, status.st_mtime

"""The daemon's listening UNIX socket: one daemon per path; remains of a dead one are removed."""

import contextlib
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rdukit.errors import Conflict, InvalidArgument
from rdukit.files.home import make_folder

logger = logging.getLogger(__name__)

_MAX_SOCKET_PATH: Final = 107
#: Backlog of the socket: clients connect in bursts, and a longer queue has no cost.
_BACKLOG: Final = 1024


@contextlib.contextmanager
def listening(path: Path, mode: int = 0o600) -> Iterator[socket.socket]:
    """Listen at the UNIX socket ``path`` within the block, by default for this user only; then remove it.

    A lock file next to it, which the kernel unlocks when the process dies, distinguishes a running daemon from a dead
    one's socket.

    Raises:
        Conflict: a daemon serves this socket already, or the path is something else.
        InvalidArgument: the path is too long for a UNIX socket, or not usable.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise InvalidArgument(f"socket path {path} is longer than {_MAX_SOCKET_PATH} bytes; use --socket with another")
    try:
        make_folder(path.parent)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as cause:
        raise InvalidArgument(f"cannot listen at {path}: {cause}; use --socket with a folder of yours") from cause
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    identity: tuple[int, int] | None = None
    try:
        _lock(lock, path)
        _remove_stale(path)
        former = os.umask(~mode & 0o777)
        try:
            server.bind(str(path))
        except OSError as cause:
            raise InvalidArgument(f"cannot listen at {path}: {cause}; use --socket with another path") from cause
        finally:
            os.umask(former)
        identity = find_identity(path)
        server.listen(_BACKLOG)
        server.setblocking(False)
        yield server
    finally:
        server.close()
        if identity is not None and find_identity(path) == identity:  # not somebody else's new file
            path.unlink(missing_ok=True)
        os.close(lock)


def _lock(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as cause:
        pid = os.pread(lock, 32, 0).decode(errors="replace").strip()
        raise Conflict(
            f"a node daemon{f' (process {pid})' if pid else ''} already serves {path}; use it, stop it, or start this "
            "one with another --socket",
            socket=str(path),
        ) from cause
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Conflict(f"{path} exists and is not a socket; move it away or use another --socket")
    logger.warning("event=stale-socket path=%s", path)
    path.unlink()


def find_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a socket's path; None: there is nothing that this process can see."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino

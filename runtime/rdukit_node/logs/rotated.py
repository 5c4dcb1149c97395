"""One log file to which many processes append, and which any of them rotates.

Each line is one ``write`` under an exclusive ``flock`` on the file that has the name at that moment. So lines are never
torn, lost or written into a rotated file. A process that cannot get the lock (a stopped process holds it) writes
without it, because appending is atomic. Logging never fails or blocks the
program: lost lines are counted, and reported once on stderr.

Source: ours; the runtime reference 2.1 recommends rotation.
"""

import errno
import fcntl
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

from rdukit.files.home import make_folder
from rdukit_node.logs.lines import LIBRARY, LogLevel, LogLine, time_text

#: Seconds of trying for the lock, and seconds without further tries after a failure.
PATIENCE_S: Final = 1.0
_IMPATIENT_S: Final = 30.0
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LogFile:
    """A log file, opened at the first line. Threads and forks may share it."""

    def __init__(
        self, path: Path, mode: int = 0o644, max_bytes: int = 0, keep: int = 1, patience_s: float = PATIENCE_S
    ) -> None:
        """Describe the file; nothing is opened yet.

        Args:
            mode: permissions of a new file.
            max_bytes: size at which it is rotated; 0: never.
            keep: number of rotated files, ``.1`` the newest.
            patience_s: longest wait for another process's lock.
        """
        self.path: Final = path
        self._mode: Final = mode
        self._max_bytes: Final = max_bytes
        self._keep: Final = max(1, keep)
        self._patience_s: Final = patience_s
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may log in the middle of a line
        #: A line is under way.
        self._is_busy = False
        self._descriptor = -1
        #: Lines lost since the last written one, and whether a part of a line was written.
        self._lost = 0
        self._is_torn = False
        self._has_complained = False
        #: No rotation before this size, after a forbidden one; no wait for the lock before this time.
        self._rotate_from = self._max_bytes
        self._impatient_until = 0.0

    def write(self, *lines: str) -> bool:
        """Append lines, given without their ends, at once. Returns whether they were; never raises ``OSError``."""
        if self._pid != os.getpid():
            # A fork shares the parent's file position and locks: it opens the file for itself.
            inherited = self._descriptor
            self._reset()
            if inherited >= 0:
                os.close(inherited)
        with self._lock:
            try:
                if self._is_busy:
                    self._append_aside(lines)
                else:
                    self._append(lines)
            except OSError as error:
                self._lost += len(lines)
                self._complain(error)
                if not self._is_busy:
                    self._close()
                return False
        return True

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        with self._lock:
            self._close()

    def _append_aside(self, lines: tuple[str, ...]) -> None:
        """Append from a signal handler that interrupted another line, without changing that line's state."""
        descriptor = self._open()
        try:
            os.write(descriptor, _encode(lines))
        finally:
            os.close(descriptor)

    def _append(self, lines: tuple[str, ...]) -> None:
        self._is_busy = True
        is_locked = False
        try:
            is_locked = self._open_current()
            if is_locked and self._is_too_large():
                self._rotate()
            data = _encode(lines)
            if self._lost:
                text = f"{self._lost} lines lost"
                note = LogLine(time_text(time.time()), LogLevel.WARNING, LIBRARY, self._pid, "log", text)
                data = _encode((str(note),)) + data
            if self._is_torn:
                data = b"\n" + data
            written = os.write(self._descriptor, data)
            if written < len(data):
                self._is_torn = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._lost, self._is_torn = 0, False
        finally:
            if is_locked and self._descriptor >= 0:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._is_busy = False

    def _open_current(self) -> bool:
        """Open the file that has the name now. Returns whether this process has its lock."""
        while True:
            if self._descriptor < 0:
                self._descriptor = self._open()
            is_locked = self._try_lock()
            if self._is_current():
                return is_locked
            self._close()

    def _open(self) -> int:
        try:
            return os.open(self.path, _FLAGS & ~os.O_CREAT)
        except FileNotFoundError:
            make_folder(self.path.parent)
            descriptor = os.open(self.path, _FLAGS, self._mode)
            if os.fstat(descriptor).st_uid == os.geteuid():
                os.fchmod(descriptor, self._mode)  # the umask removed permissions that a shared log needs
            return descriptor

    def _try_lock(self) -> bool:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                now = time.monotonic()
                if now < self._impatient_until:
                    return False
                if now >= deadline:
                    self._impatient_until = now + _IMPATIENT_S
                    return False
                time.sleep(0.0005)
            except OSError:
                return False  # a file system without locks

    def _is_current(self) -> bool:
        try:
            named = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._descriptor)
        return (named.st_ino, named.st_dev) == (mine.st_ino, mine.st_dev)

    def _is_too_large(self) -> bool:
        return self._max_bytes > 0 and os.fstat(self._descriptor).st_size >= self._rotate_from

    def _rotate(self) -> None:
        """Rename the files, oldest first, and have a new one open. Closing the old one releases its lock."""
        try:
            newest_free = next(
                (number for number in range(1, self._keep) if not self._numbered(number).exists()), self._keep
            )
            for number in range(newest_free - 1, 0, -1):
                self._numbered(number).replace(self._numbered(number + 1))
            self.path.replace(self._numbered(1))
        except OSError:
            # The rotation is not permitted, or the disk is full: the old file is used on, and a much later try follows.
            self._rotate_from = os.fstat(self._descriptor).st_size + self._max_bytes
            return
        self._rotate_from = self._max_bytes
        former = self._descriptor
        self._descriptor = -1
        try:
            self._open_current()
        finally:
            os.close(former)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _complain(self, error: OSError) -> None:
        if not self._has_complained:
            self._has_complained = True
            say(f"cannot write the log {self.path}: {error.strerror or error}; the program continues without it")


def _encode(lines: tuple[str, ...]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")


def say(text: str) -> None:
    """Print a line on stderr, if anybody listens."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # nobody listens

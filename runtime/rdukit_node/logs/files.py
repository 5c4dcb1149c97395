"""``sn.log``, which all applications of a node append to, and ``snd.log``, the daemon's own.

Logging fails no program: ``rotated.py`` writes the lines, ``lines.py`` has their grammar.

Source: runtime reference 2.1; modes of the files are ours.
"""

import collections
import logging
import os
import pwd
import sys
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Final, TextIO

from rdukit.errors import InvalidArgument
from rdukit.settings import JSON, LOG_FORMAT, Setting, resolve
from rdukit_node.logs.lines import (
    DAEMON,
    LIBRARY,
    LogLevel,
    LogLine,
    application_level,
    level_named,
    log_id_line,
    time_text,
)
from rdukit_node.logs.rotated import LogFile, say
from rdukit_node.settings import ROOT, node_paths

LOG_MAX_BYTES: Final = Setting("log.max_bytes", 50_000_000, "Size at which sn.log and snd.log are rotated.", int)
LOG_KEEP: Final = Setting("log.keep", 8, "Number of rotated files kept for each log.", int)
LOG_DAEMON_LEVEL: Final = Setting("log.daemon_level", "INFO", "Level of snd.log: DEBUG … EMERG.", str)

logger = logging.getLogger(__name__)

#: Seconds for which the daemon's lines wait for others, and largest number of waiting lines.
_BATCH_S: Final = 0.05
_MAX_WAITING: Final = 100_000


class ApplicationLog:
    """A program's way into ``sn.log``. Lines below the level cost a comparison."""

    def __init__(self, program: str, file: LogFile, level: LogLevel) -> None:
        """``program``: its name in the "Log ID" line."""
        self.program: Final = program
        self.level: Final = level
        self._file = file
        self._announced_by = 0

    @property
    def path(self) -> Path:
        """Path of the log."""
        return self._file.path

    def log_id(self) -> str:
        """Return the "Log ID" line of this process, for the user's terminal."""
        return log_id_line(_user(), self.program, os.getpid(), self.path)

    def announce(self, stream: TextIO | None = None) -> None:
        """Print the "Log ID" line to the user's terminal (stderr), once per process; in a log of JSON as an event."""
        if self._announced_by != os.getpid():
            self._announced_by = os.getpid()
            self._file.write()  # creates the file, even if all lines are below the level
            if resolve(LOG_FORMAT) == JSON:
                logger.info(self.log_id())
            else:
                print(self.log_id(), file=stream or sys.stderr, flush=True)

    def is_on(self, level: LogLevel) -> bool:
        """Return whether lines of ``level`` are written."""
        return level >= self.level

    def log(self, level: LogLevel, function: str, text: str) -> None:
        """Write one line if its level is on; from ERR on to the console as well."""
        if level < self.level:
            return
        line = str(LogLine(time_text(time.time()), level, LIBRARY, os.getpid(), function, text))
        self._file.write(line)
        if level >= LogLevel.ERR:
            if resolve(LOG_FORMAT) == JSON:
                logger.error("%s: %s", function, text)
            else:
                say(line)

    def debug(self, function: str, text: str) -> None:
        """Log at DEBUG."""
        self.log(LogLevel.DEBUG, function, text)

    def info(self, function: str, text: str) -> None:
        """Log at INFO."""
        self.log(LogLevel.INFO, function, text)

    def notice(self, function: str, text: str) -> None:
        """Log at NOTICE."""
        self.log(LogLevel.NOTICE, function, text)

    def warning(self, function: str, text: str) -> None:
        """Log at WARNING."""
        self.log(LogLevel.WARNING, function, text)

    def err(self, function: str, text: str) -> None:
        """Log at ERR."""
        self.log(LogLevel.ERR, function, text)

    def crit(self, function: str, text: str) -> None:
        """Log at CRIT."""
        self.log(LogLevel.CRIT, function, text)

    def alert(self, function: str, text: str) -> None:
        """Log at ALERT."""
        self.log(LogLevel.ALERT, function, text)

    def emerg(self, function: str, text: str) -> None:
        """Log at EMERG."""
        self.log(LogLevel.EMERG, function, text)


def application_log(program: str, path: Path | None = None) -> ApplicationLog:
    """Return the shared log of all applications; the same object for the same program and place. Opens nothing yet.

    An unknown level in ``$SF_RNT_LOG_LEVEL`` is reported once, and NOTICE is used: logging never fails a program.

    Args:
        path: default: ``sn.log`` of the node in force.
    """
    return _application_log(program, path or node_paths().sn_log)


@lru_cache(maxsize=8)
def _application_log(program: str, path: Path) -> ApplicationLog:
    try:
        level = application_level(os.environ)
    except InvalidArgument as error:
        say(f"{error.message}; using {LogLevel.NOTICE.name}")
        level = LogLevel.NOTICE
    # Under a root folder programs of several users share the file; a home folder belongs to one.
    mode = 0o666 if resolve(ROOT) else 0o644
    return ApplicationLog(program, _log_file(path, mode), level)


class LogFileHandler(logging.Handler):
    """Writes records of ``logging`` into a log file, in the grammar, without blocking callers.

    Lines wait a moment and a thread writes them together, so a slow disk does not stop the daemon. Records from ERR on
    are written at once, with those that wait before them; a killed process loses its last other ones.
    """

    def __init__(self, file: LogFile, module: str, level: LogLevel) -> None:
        """Set the second word in brackets to ``module``."""
        super().__init__(_LOGGING_LEVELS[level])
        self._file = file
        self._module = module
        #: Unwritten lines, oldest first; dropped if the disk takes none for very long.
        self._waiting: collections.deque[str] = collections.deque(maxlen=_MAX_WAITING)
        self._flushing = threading.RLock()  # a signal handler may log in the middle
        self._is_wanted = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Accept one record; its traceback stays on the same line."""
        level = level_of(record.levelno)
        try:
            self._waiting.append(self.format(record) if self.formatter else self._in_grammar(record, level))
        except Exception:  # noqa: BLE001 - a record that cannot be formatted fails no caller
            self.handleError(record)
            return
        if level >= LogLevel.ERR:
            self.flush()
        elif not self._is_wanted.is_set():
            self._is_wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_often, name="log", daemon=True)
                self._thread.start()

    def _in_grammar(self, record: logging.LogRecord, level: LogLevel) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        return str(LogLine(time_text(record.created), level, self._module, os.getpid(), record.funcName or "-", text))

    def flush(self) -> None:
        """Write what waits. Lines keep their order: only one thread does this at a time."""
        with self._flushing:
            lines = []
            while self._waiting:
                lines.append(self._waiting.popleft())
            if lines:
                self._file.write(*lines)

    def close(self) -> None:
        """Write what waits and close the file."""
        self._is_closed = True
        self._is_wanted.set()
        self.flush()
        self._file.close()
        super().close()

    def _write_often(self) -> None:
        while not self._is_closed:
            self._is_wanted.wait()
            time.sleep(_BATCH_S)
            self._is_wanted.clear()
            self.flush()


def configure_daemon_log(path: Path) -> LogFileHandler:
    """Send log records of the process to ``path`` (mode 0600), from the level ``log.daemon_level`` on.

    With ``log.format`` json a line is an object. A stream handler on the same file is silenced.

    Returns:
        The handler, which ``logging.getLogger().removeHandler`` and ``close`` undo.
    Raises:
        InvalidArgument: the setting names no level.
    """
    level = level_named(resolve(LOG_DAEMON_LEVEL))
    handler = LogFileHandler(_log_file(path, 0o600), DAEMON, level)
    root = logging.getLogger()
    if resolve(LOG_FORMAT) == JSON:
        from rdukit.telemetry.logs import JsonLines

        handler.setFormatter(JsonLines())
    for other in root.handlers[:]:
        if isinstance(other, logging.StreamHandler) and _leads_to(other.stream, path):
            root.removeHandler(other)
    root.addHandler(handler)
    if root.level == logging.NOTSET or root.level > handler.level:
        # Other handlers keep the records that they showed.
        for other in root.handlers:
            if other is not handler and other.level < root.level:
                other.setLevel(root.level)
        root.setLevel(handler.level)
    return handler


def _leads_to(stream: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except (OSError, ValueError):  # no file yet, or a stream without a descriptor
        return False


def level_of(number: int) -> LogLevel:
    """Return the level of a record of ``logging``."""
    return next((level for level, least in reversed(_LOGGING_LEVELS.items()) if number >= least), LogLevel.DEBUG)


_LOGGING_LEVELS: Final = {
    LogLevel.DEBUG: 0, LogLevel.INFO: 20, LogLevel.NOTICE: 25, LogLevel.WARNING: 30, LogLevel.ERR: 40,
    LogLevel.CRIT: 50,
    LogLevel.ALERT: 60, LogLevel.EMERG: 70,
}  # fmt: skip


def _log_file(path: Path, mode: int) -> LogFile:
    return LogFile(path, mode, resolve(LOG_MAX_BYTES), resolve(LOG_KEEP))


def _user() -> str:
    try:
        return os.environ.get("LOGNAME") or os.environ.get("USER") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        return str(os.getuid())

"""The log of the node's daemon, which a thread writes: its form, its mode, and when lines are there."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit_node.logs import files as log_files
from rdukit_node.logs.files import LOG_KEEP, LOG_MAX_BYTES, LogFileHandler, configure_daemon_log
from rdukit_node.logs.lines import LogLevel, parse_line
from rdukit_node.logs.rotated import LogFile
from support import shows

pytestmark = shows("node", "observability")


@pytest.fixture(autouse=True)
def fresh_logs() -> Iterator[None]:
    """Levels and paths are looked up anew in each test."""
    log_files._application_log.cache_clear()
    yield
    log_files._application_log.cache_clear()


def texts(path: Path) -> list[str]:
    lines = [parse_line(line) for line in path.read_text().splitlines()]
    assert None not in lines
    return [line.text for line in lines if line is not None]


def test_the_daemons_log_is_its_users_alone_and_in_the_grammar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_MAX_BYTES.variable, "1000000")
    monkeypatch.setenv(LOG_KEEP.variable, "2")
    root = logging.getLogger()
    before = (root.level, list(root.handlers), [handler.level for handler in root.handlers])
    handler = configure_daemon_log(tmp_path / "snd.log")
    logger = logging.getLogger("rdukit_runtime.test")
    try:
        logger.debug("event=unseen")
        logger.info("event=grant lease=%s", "lease-1")
        try:
            raise OSError("the disk is full")
        except OSError:
            logger.exception("event=failed")
    finally:
        root.removeHandler(handler)
        handler.close()
        root.setLevel(before[0])
        for other, level in zip(before[1], before[2], strict=True):
            other.setLevel(level)
    assert (tmp_path / "snd.log").stat().st_mode & 0o777 == 0o600
    lines = [parse_line(line) for line in (tmp_path / "snd.log").read_text().splitlines()]
    assert [(line.level, line.module, line.pid) for line in lines if line] == [
        (LogLevel.INFO, "SND", os.getpid()),
        (LogLevel.ERR, "SND", os.getpid()),
    ]
    assert lines[0] is not None
    assert lines[1] is not None
    assert lines[0].text == "event=grant lease=lease-1"
    assert lines[0].function == "test_the_daemons_log_is_its_users_alone_and_in_the_grammar"
    assert lines[1].text.startswith(r"event=failed\nTraceback")


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_daemons_log_has_each_line_once_as_an_object_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("RDUKIT_LOG_FORMAT", form)
    root, path = logging.getLogger(), tmp_path / "snd.log"
    level = root.level
    with path.open("a") as stderr:  # as where a supervisor sends a daemon's stderr to the file that is its log
        stream = logging.StreamHandler(stderr)
        root.addHandler(stream)
        handler = configure_daemon_log(path)
        try:
            logging.getLogger("rdukit_node.test").warning("event=grant lease=%s", "lease-1")
        finally:
            root.removeHandler(handler)
            handler.close()
            root.setLevel(level)
        assert stream not in root.handlers
    (line,) = path.read_text().splitlines()
    if form == "json":
        told = json.loads(line)
        said = (told["level"], told["logger"], told["message"])
        assert said == ("WARNING", "rdukit_node.test", "event=grant lease=lease-1")
    else:
        assert parse_line(line) is not None


def test_an_error_is_written_at_once_after_what_came_before(tmp_path: Path) -> None:
    handler = LogFileHandler(LogFile(tmp_path / "snd.log"), "SND", LogLevel.INFO)
    for number, text in ((logging.INFO, "first"), (logging.WARNING, "second"), (logging.ERROR, "third")):
        handler.handle(logging.LogRecord("n", number, "p", 1, text, (), None))
    assert texts(tmp_path / "snd.log") == ["first", "second", "third"]
    handler.handle(logging.LogRecord("n", logging.INFO, "p", 1, "last", (), None))
    handler.close()
    assert texts(tmp_path / "snd.log")[-1] == "last"

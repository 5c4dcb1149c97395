"""sn.log and snd.log: grammar, levels, rotation, and what happens when they cannot be written."""

import fcntl
import io
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit_node.logs import files as log_files
from rdukit_node.logs.files import ApplicationLog, LogFileHandler, application_log, level_of
from rdukit_node.logs.lines import LogLevel, LogLine, application_level, log_id_line, parse_line, time_text
from rdukit_node.logs.rotated import LogFile
from support import shows

pytestmark = shows("isolation", "node", "settings")


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


def test_a_line_is_of_the_documented_form() -> None:
    line = LogLine("2024-03-05T10:41:09", LogLevel.INFO, "LIB", 41207, "sn_create_session", "PEF File: pef/mlp/mlp.pef")
    # Source: runtime reference 2.1.
    assert str(line) == "2024-03-05T10:41:09 : [INFO][LIB][41207]: sn_create_session: PEF File: pef/mlp/mlp.pef"
    assert parse_line(f"{line}\n") == line
    assert len(time_text(0.9)) == len("2024-03-05T10:41:09")


def test_the_log_id_names_user_program_and_process() -> None:
    line = log_id_line("jdoe", "python", 41207, Path("/var/log/sambaflow/runtime/sn.log"))
    assert line == "Log ID initialized to: [jdoe][python][41207] at /var/log/sambaflow/runtime/sn.log"


@given(st.text(), st.text())
def test_no_text_breaks_a_line_in_two(function: str, text: str) -> None:
    line = str(LogLine("2024-03-05T10:41:09", LogLevel.ERR, "LIB", 1, function, text))
    assert len(line.splitlines()) == 1
    parsed = parse_line(line.encode(errors="backslashreplace").decode())
    assert parsed is not None
    assert (parsed.level, parsed.pid) == (LogLevel.ERR, 1)


def test_a_very_long_text_is_cut() -> None:
    assert len(str(LogLine("t", LogLevel.INFO, "LIB", 1, "f", "x" * 10**6))) < 20_000


@pytest.mark.parametrize("line", ["", "2024 : [LOUD][LIB][1]: f: t", "2024 : [INFO][LIB][x]: f: t", "Log ID"])
def test_other_lines_are_not_of_the_grammar(line: str) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize(
    ("text", "level"),
    [("", LogLevel.NOTICE), ("debug", LogLevel.DEBUG), ("ERROR", LogLevel.ERR), (" EMERG ", LogLevel.EMERG)],
)
def test_the_environment_sets_the_level(text: str, level: LogLevel) -> None:
    assert application_level({"SF_RNT_LOG_LEVEL": text}) is level


def test_a_level_that_does_not_exist_is_refused_with_the_legal_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"^\$SF_RNT_LOG_LEVEL: unknown log level .*'LOUD'; expected DEBUG, INFO"):
        application_level({"SF_RNT_LOG_LEVEL": "LOUD"})


@pytest.mark.parametrize("level", LogLevel)
def test_levels_form_a_hierarchy(level: LogLevel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = ApplicationLog("python", LogFile(tmp_path / "sn.log"), level)
    for method in (log.debug, log.info, log.notice, log.warning, log.err, log.crit, log.alert, log.emerg):
        method("f", method.__name__.upper())
    assert texts(tmp_path / "sn.log") == [each.name for each in LogLevel if each >= level]
    # From ERR on they go to the console as well, with the process id.
    console = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in console] == [
        each.name for each in LogLevel if each >= max(level, LogLevel.ERR)
    ]
    assert all(f"[{os.getpid()}]" in line for line in console)


def test_nothing_is_opened_before_the_first_line(tmp_path: Path) -> None:
    sn_log = ApplicationLog("python", LogFile(tmp_path / "logs/sn.log"), LogLevel.NOTICE)
    sn_log.info("f", "below the level")
    assert not (tmp_path / "logs").exists()
    sn_log.notice("f", "at the level")
    assert texts(sn_log.path) == ["at the level"]


def test_the_applications_log_is_found_by_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RDUKIT_ROOT", str(tmp_path))
    monkeypatch.setenv("SF_RNT_LOG_LEVEL", "LOUD")
    log = application_log("python")
    assert application_log("python") is log
    assert log.path == tmp_path / "var/log/sambaflow/runtime/sn.log"
    assert (log.level, capsys.readouterr().err.count("expected DEBUG")) == (LogLevel.NOTICE, 1)
    former = os.umask(0o077)
    try:
        log.notice("f", "t")
    finally:
        os.umask(former)
    assert log.path.stat().st_mode & 0o777 == 0o666  # for programs of all users


def test_the_log_id_is_announced_once_a_process(tmp_path: Path) -> None:
    log, stream = ApplicationLog("python", LogFile(tmp_path / "sn.log"), LogLevel.NOTICE), io.StringIO()
    log.announce(stream)
    log.announce(stream)
    assert stream.getvalue() == f"{log.log_id()}\n"
    assert f"][python][{os.getpid()}] at {tmp_path}/sn.log" in stream.getvalue()


def test_a_file_is_rotated_at_its_size_and_old_ones_dropped(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "sn.log", max_bytes=100, keep=3)
    for number in range(60):
        assert file.write(f"{number:09}")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["sn.log", "sn.log.1", "sn.log.2", "sn.log.3"]
    kept = [
        line
        for name in ("sn.log.3", "sn.log.2", "sn.log.1", "sn.log")
        for line in (tmp_path / name).read_text().split()
    ]
    assert kept == [f"{number:09}" for number in range(20, 60)]


def test_a_file_that_somebody_else_rotated_is_left(tmp_path: Path) -> None:
    first, second = (LogFile(tmp_path / "sn.log") for _ in range(2))
    first.write("one")
    (tmp_path / "sn.log").rename(tmp_path / "sn.log.1")
    second.write("two")
    first.write("three")
    (tmp_path / "sn.log").unlink()
    first.write("four")
    assert (tmp_path / "sn.log.1").read_text() == "one\n"
    assert (tmp_path / "sn.log").read_text() == "four\n"


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    log = ApplicationLog("python", LogFile(tmp_path / "logs/sn.log"), LogLevel.NOTICE)
    log.notice("f", "first")
    log.notice("f", "second")
    said = capsys.readouterr().err
    assert said == f"cannot write the log {log.path}: Not a directory; the program continues without it\n"
    (tmp_path / "logs").unlink()
    log.notice("f", "third")
    assert texts(log.path) == ["2 lines lost", "third"]


def test_a_full_disk_fails_no_program(capsys: pytest.CaptureFixture[str]) -> None:
    file = LogFile(Path("/dev/full"))
    assert [file.write("a line") for _ in range(3)] == [False] * 3
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_a_link_or_a_pipe_in_the_logs_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "pipe")
    assert not LogFile(tmp_path / "link").write("x")
    assert not LogFile(tmp_path / "pipe").write("x")
    assert (tmp_path / "target").read_text() == ""


def test_a_process_that_was_stopped_with_the_lock_stops_no_other(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "sn.log", max_bytes=1, patience_s=0.0)
    file.write("one")
    with (tmp_path / "sn.log").open("a") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        assert file.write("two")
    assert (tmp_path / "sn.log").read_text() == "one\ntwo\n"
    assert file.write("three")
    assert (tmp_path / "sn.log").read_text() == "three\n"


def test_a_record_that_cannot_be_formatted_fails_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = LogFileHandler(LogFile(tmp_path / "snd.log"), "SND", LogLevel.INFO)
    handler.handle(logging.LogRecord("n", logging.INFO, "p", 1, "event=%d", ("no number",), None))
    handler.close()
    assert "TypeError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "level"),
    [
        (5, LogLevel.DEBUG),
        (10, LogLevel.DEBUG),
        (20, LogLevel.INFO),
        (25, LogLevel.NOTICE),
        (30, LogLevel.WARNING),
        (50, LogLevel.CRIT),
    ],
)
def test_levels_of_logging_have_their_counterparts(number: int, level: LogLevel) -> None:
    assert level_of(number) is level


def test_a_signal_handler_may_log_in_the_middle_of_a_line(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "sn.log", max_bytes=2_000, keep=1_000)
    handled: list[int] = []

    def handle(*_: object) -> None:
        handled.append(file.write("handler"))  # not a sum: a signal may come in the middle of this one too

    former = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        written = sum(file.write("main") for _ in range(5_000))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    lines = "".join(path.read_text() for path in tmp_path.iterdir()).splitlines()
    assert (written, lines.count("main"), lines.count("handler")) == (5_000, 5_000, sum(handled))
    assert sum(handled) > 10
    assert len(lines) == 5_000 + sum(handled)


def test_the_file_that_a_program_is_told_of_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SF_RNT_LOG_LEVEL", "EMERG")
    words = io.StringIO()
    log = application_log("quiet", tmp_path / "logs" / "sn.log")
    log.announce(words)
    path = Path(words.getvalue().strip().rpartition(" at ")[2])
    assert path.is_file() and path.read_bytes() == b""

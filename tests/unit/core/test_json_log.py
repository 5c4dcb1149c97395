"""The log as JSON: one object a line, whatever is logged, with the ids of what it belongs to."""

import json
import logging
import threading

import pytest

from rdukit.system.process import configure_logging
from rdukit.telemetry.logs import begin_logs_with_rank, log_ids
from rdukit.telemetry.model import SpanContext
from rdukit.telemetry.spans import within
from support import shows

pytestmark = shows("observability")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    return logging.getLogger("rdukit.test")


def test_lines_are_objects_with_the_ids_of_request_and_trace(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RDUKIT_LOG_FORMAT", "json")
    configure_logging("INFO")
    with within(SpanContext(TRACE, SPAN)), log_ids(request_id="req-1", tenant="ten-1"):
        with log_ids(job="job-1"):
            logger.info("a=%s\nb", 'x"y')
        try:
            raise ValueError("no")
        except ValueError:
            logger.exception("broke")
    logger.warning("after")
    first, second, third = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["message"] == 'a=x"y\nb'
    ids = {"request_id": "req-1", "tenant": "ten-1", "trace_id": TRACE, "span_id": SPAN}
    assert first.items() >= (ids | {"job": "job-1", "level": "INFO", "logger": "rdukit.test"}).items()
    assert second.items() >= ids.items()
    assert "ValueError: no" in second["exception"]
    assert set(third) == {"ts", "level", "logger", "message", "service", "pid"}
    assert third["ts"].endswith("Z")


def test_lines_of_another_thread_have_none_of_them(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RDUKIT_LOG_FORMAT", "json")
    configure_logging("INFO")
    with log_ids(job="job-1"):
        thread = threading.Thread(target=logger.info, args=("elsewhere",))
        thread.start()
        thread.join()
    assert "job" not in json.loads(capsys.readouterr().err)


def test_text_stays_as_it_was(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO")
    with log_ids(job="job-1"):
        logger.info("attempt begins job=%s", "job-1")
    assert capsys.readouterr().err.endswith(" INFO rdukit.test attempt begins job=job-1\n")


def test_messages_of_a_launchs_process_begin_with_its_rank_and_those_of_others_do_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    make = logging.getLogRecordFactory()
    try:
        begin_logs_with_rank(3)
        begin_logs_with_rank(1)  # a process keeps its rank of the launch
        logging.getLogger("rdukit_runtime.process_group").warning("event=no-token: %d %%", 5)
        logging.getLogger("asyncio").warning("slow")
    finally:
        logging.setLogRecordFactory(make)
    assert caplog.messages == ["rank 3: event=no-token: 5 %", "slow"]

"""A compile shows bars in a terminal, and nothing of the kind elsewhere."""

import io

import pytest

from rdukit_compiler.reports import ConsoleReporter
from support import shows

pytestmark = shows("surface")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_appears_in_a_terminal_and_the_cursor_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with ConsoleReporter() as reporter:
        reporter.progress("kernels", 1, 3)
        assert "compiling: kernels" in terminal.getvalue()
        assert "1/3" in terminal.getvalue()
        reporter.progress("kernels", 3, 3)
    assert terminal.getvalue().count("\x1b[?25h") == terminal.getvalue().count("\x1b[?25l") == 1


def test_the_cursor_comes_back_when_a_compile_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    reporter = ConsoleReporter()
    reporter.progress("kernels", 1, 3)
    reporter.__exit__(ValueError, ValueError("broken"), None)
    assert "\x1b[?25h" in terminal.getvalue()


def test_nothing_is_shown_where_there_is_no_terminal_or_the_program_wants_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ConsoleReporter() as reporter:
        reporter.progress("kernels", 1, 3)
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with ConsoleReporter(quiet=True) as reporter:
        reporter.progress("kernels", 1, 3)
    assert terminal.getvalue() == ""

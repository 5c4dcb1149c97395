"""``--watch``: a page is shown again where it is another, until it says that nothing more is to come."""

import sys

import click
import pytest
from click.testing import CliRunner

from rdukit.cli.app import run_command
from rdukit.cli.watch import follow, watchable
from rdukit.errors import NotFound, Unavailable
from support import shows

pytestmark = shows("jobs")


class Shows:
    def __init__(self, *pages: str | Exception) -> None:
        self.pages = list(pages)

    def __call__(self) -> bool:
        page = self.pages.pop(0)
        if isinstance(page, BaseException):
            raise page
        click.echo(click.style(page, fg="green"))
        return not self.pages


def test_a_page_is_printed_again_where_it_is_another(capsys: pytest.CaptureFixture[str]) -> None:
    naps: list[float] = []
    follow(Shows("queued", "queued", "running", "succeeded"), naps.append)
    assert capsys.readouterr().out == "queued\nrunning\nsucceeded\n"
    assert len(naps) == 3


def test_a_terminal_has_one_page_in_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    follow(Shows("two\nlines", "one"), lambda _: None)
    said = capsys.readouterr().out
    assert said.count("\x1b[2J") == 1 and said.count("\x1b[H") == 2 and said.endswith("\x1b[J")
    assert "\x1b[32m" in said and "lines\x1b[0m\x1b[K\n" in said


def test_a_gateway_that_restarts_is_waited_for_and_another_error_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    follow(Shows("one", Unavailable("no gateway answers"), "two"), lambda _: None)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("one\ntwo\n", "no gateway answers; looking again\n")
    with pytest.raises(Unavailable):
        follow(Shows(Unavailable("never there")), lambda _: None)
    with pytest.raises(NotFound):
        follow(Shows("one", NotFound("gone")), lambda _: None)


def test_the_option_is_the_commands_and_without_it_there_is_one_look() -> None:
    pages = Shows("one", "two")

    @click.command()
    @watchable
    def show() -> bool:
        return pages()

    assert CliRunner().invoke(show, [], standalone_mode=False).output == "one\n"
    assert CliRunner().invoke(show, ["--watch"], standalone_mode=False).output == "two\n"


def test_ctrl_c_ends_it_well(capsys: pytest.CaptureFixture[str]) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    follow(Shows("one", "two"), stop)
    assert capsys.readouterr().out == "one\n"


@pytest.mark.parametrize("watch", [[], ["--watch"]])
def test_that_nothing_more_is_to_come_is_no_failure(watch: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Shows("succeeded")

    @click.command()
    @watchable
    def show() -> bool:
        return pages()

    monkeypatch.setattr(sys, "argv", ["rdukit", *watch])
    with pytest.raises(SystemExit) as ended:
        run_command(show)
    assert ended.value.code == 0

"""``--watch``: repeat a command and show its output when it changes."""

import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import wraps
from typing import Any, Final, TypeVar

import click

from rdukit.errors import Unavailable

F = TypeVar("F", bound=Callable[..., Any])

#: Seconds between two runs of the command.
LOOK_S: Final = 2.0
#: Terminal codes: go to the screen's first line; clear to the end of the line; clear below.
_HOME, _REST, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR: Final = "\x1b[2J"


class _Page(io.StringIO):
    """Captures the output of a command. Claims to be a terminal if stdout is one, so that states keep their colours."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        """Return whether stdout is a terminal."""
        return self._is_terminal


def watchable(command: F) -> F:
    """Give a command the option ``--watch``; apply this decorator directly to the function.

    With the option the function is called repeatedly, until Ctrl-C or until it returns ``True``, which means that its
    output is final. On a terminal the output replaces the page; elsewhere it is printed whenever it has changed. If the
    gateway becomes unreachable after its first answer, the command waits for it.
    """

    @wraps(command)
    def maybe_watch(*args: Any, watch: bool, **options: Any) -> None:
        # the result of a command would become its exit status
        if watch:
            follow(lambda: command(*args, **options))
        else:
            command(*args, **options)

    option: Any = click.option("--watch", is_flag=True, help=f"Refresh every {LOOK_S:g} s until Ctrl-C.")
    found: F = option(maybe_watch)
    return found


def follow(show: Callable[[], Any], sleep: Callable[[float], None] = time.sleep) -> None:
    """Call ``show`` repeatedly until it returns ``True``, or until Ctrl-C.

    Raises:
        RdukitError: as ``show`` does; ``Unavailable`` the first time only.
    """
    out, is_terminal, shown, has_answered = sys.stdout, sys.stdout.isatty(), "", False
    try:
        while True:
            page, talk = _Page(is_terminal=is_terminal), _Page(is_terminal=is_terminal)
            is_over, text = False, ""
            try:
                with redirect_stdout(page), redirect_stderr(talk):
                    is_over = show() is True
                text, has_answered = page.getvalue(), True
            except Unavailable as away:
                if not has_answered:
                    raise
                click.echo(f"{away.message}; looking again", err=True)
            if text and text != shown:
                if is_terminal:
                    out.write(_on_screen(text + talk.getvalue(), is_first=not shown))
                else:
                    out.write(text)
                    sys.stderr.write(talk.getvalue())
                out.flush()
                shown = text
            if is_over:
                return
            sleep(LOOK_S)
    except KeyboardInterrupt:
        return


def _on_screen(text: str, *, is_first: bool) -> str:
    """Return the characters that replace a terminal's page by a text, without flicker."""
    lines = "".join(f"{line}{_REST}\n" for line in text.splitlines())
    return f"{_CLEAR if is_first else ''}{_HOME}{lines}{_BELOW}"

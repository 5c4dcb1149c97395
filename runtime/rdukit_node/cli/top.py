"""``rdukit node top``: a node at a glance, live, as ``top_frame`` draws it.

rich is imported only when this command runs: the import takes longer than other commands.

Source: ours.
"""

import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from rdukit.errors import InvalidArgument, Unavailable
from rdukit.snd import SndClient
from rdukit_node.cli.output import connect, is_terminal, node_options
from rdukit_node.telemetry.picture import Picture, SlotNumbers, application_key, make_picture, of_job
from rdukit_node.telemetry.sampling import Reading, holders, take_reading

_FIRST_WINDOW_S: Final = 0.3
_MAX_S: Final = 3600.0
_DEFAULT_WIDTH: Final = 80


@click.command()
@click.option("--interval", "interval_s", type=float, default=1.0, show_default=True, help="Seconds between refreshes.")
@click.option("--once", is_flag=True, help="Print one screen as plain text and exit.")
@click.option("--width", type=click.IntRange(min=40), default=None, help="Number of columns (default: the terminal's).")
@click.option("--job", metavar="ID", help="Show all tiles and faults, but only applications and requests of this job.")
@node_options
def top(interval_s: float, once: bool, width: int | None, job: str | None, socket_file: Path | None) -> None:
    """Watch a node: tiles, holders, health, DDR, PCIe, faults, waiting requests.

    A letter and a colour stand for an application; the bar next to the letter shows how busy the tile is, ✗ a tile out
    of service. Ctrl-C ends.

    Example: rdukit node top --interval 2

    Example: rdukit node top --once --width 100
    """
    if not 0.1 <= interval_s <= _MAX_S:
        raise InvalidArgument(f"--interval is {interval_s}; expected 0.1 to {_MAX_S:.0f} seconds")
    if once or not is_terminal():
        _print_once(socket_file, width, job)
        return
    try:
        _watch(socket_file, interval_s, width, job)
    except KeyboardInterrupt:
        return


def _print_once(socket_file: Path | None, width: int | None, job: str | None) -> None:
    from rich.console import Console

    from rdukit_node.cli.top_frame import draw

    with connect(socket_file) as node:
        before = take_reading(node)
        time.sleep(_FIRST_WINDOW_S)
        picture = _picture(node, before, take_reading(node), SlotNumbers(), job)
    columns = width or shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns
    console = Console(width=columns, color_system=None, force_terminal=False, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(draw(picture, columns))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    click.echo("\n".join(lines).encode(_encoding(), "replace").decode(_encoding()))


def _watch(socket_file: Path | None, interval_s: float, width: int | None, job: str | None) -> None:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

    from rdukit_node.cli.top_frame import draw, draw_down

    console = Console(highlight=False, markup=False, width=width)
    latest: Picture | str | None = None

    def frame() -> RenderableType:
        if latest is None:
            return Text("asking the node …", "dim")
        if isinstance(latest, str):
            return draw_down(latest, console.width)
        return draw(latest, console.width, console.height)

    # Without this a SIGTERM would leave the terminal on its other screen.
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with Live(get_renderable=frame, console=console, screen=True, vertical_overflow="crop"):
            for picture in _pictures(socket_file, interval_s, job):
                latest = picture
    finally:
        signal.signal(signal.SIGTERM, former)


def _pictures(socket_file: Path | None, interval_s: float, job: str | None) -> Iterator[Picture | str]:
    """Yield pictures without end, or the reason why there is no picture at present."""
    slots = SlotNumbers()
    while True:
        try:
            with connect(socket_file) as node:
                before = take_reading(node)
                time.sleep(min(_FIRST_WINDOW_S, interval_s))
                while True:
                    after = take_reading(node)
                    yield _picture(node, before, after, slots, job)
                    before = after
                    time.sleep(interval_s)
        except Unavailable as error:
            yield error.message
            time.sleep(min(1.0, interval_s))


def _picture(node: SndClient, before: Reading, after: Reading, slots: SlotNumbers, job: str | None) -> Picture:
    keys: dict[str, Any] = {application_key(holder): None for holder in holders(after).values()}
    picture = make_picture(before, after, node.call("faults", limit=1000)["faults"], slots.assign(list(keys)))
    return picture if job is None else of_job(picture, job)


def _encoding() -> str:
    return sys.stdout.encoding or "utf-8"

"""Running sntilestat, snddrstat or snpciestat: sampling a node as planned, and where the samples go."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from rdukit.errors import InvalidArgument
from rdukit_node.cli.intervals import Options, Plan, Tool, document, fit_lines, make_plan
from rdukit_node.cli.output import connect, csv_text, is_terminal, json_line, time_text
from rdukit_node.telemetry.reading import take_reading
from rdukit_node.telemetry.sampling import Reading


def run_tool(tool: Tool, options: Options) -> None:
    """Sample and print, as often as asked for.

    Raises:
        Unavailable: no daemon answers, or it went away.
    """
    plan = make_plan(options, is_terminal())
    try:
        if plan.is_live:
            _redraw(tool, options, plan)
        else:
            _print_all(tool, options, plan)
    except KeyboardInterrupt:
        if plan.count is None:  # there is no other way to end it
            return
        raise


def _samples(tool: Tool, options: Options, plan: Plan) -> Iterator[tuple[Reading, Reading]]:
    with connect(options.socket) as node:
        before = take_reading(node, tool.has_components)
        taken = 0
        due = time.monotonic()
        while plan.count is None or taken < plan.count:
            due += plan.first_window_s if taken == 0 else plan.interval_s
            time.sleep(max(0.0, due - time.monotonic()))
            after = take_reading(node, tool.has_components)
            yield before, after
            before = after
            taken += 1


def _print_all(tool: Tool, options: Options, plan: Plan) -> None:
    with ExitStack() as stack:
        # Grows line by line while the tool runs: a file that is renamed into place at the end would show nothing.
        file = None
        if options.csv_file not in (None, "-"):
            file = stack.enter_context(_open_for_writing(Path(str(options.csv_file))))
        for number, (before, after) in enumerate(_samples(tool, options, plan)):
            rows = tool.rows(before, after, options)
            if options.csv_file is not None:
                stamped = [{"time": time_text(after.time_ns), **row} for row in rows]
                text = csv_text(("time", *tool.columns), stamped, has_header=number == 0)
                if text:
                    _write(text, file or sys.stdout)
            if options.as_json:
                _write(json_line(document(tool, before, after, rows)), sys.stdout)
            elif options.csv_file is None:
                head = [""] if number else []
                head += [time_text(after.time_ns)] if options.has_timestamps else []
                _write("\n".join([*head, *tool.lines(rows)]), sys.stdout)


def _open_for_writing(path: Path) -> TextIO:
    try:
        return path.open("w")
    except OSError as cause:
        raise InvalidArgument(f"--csv {path}: the file cannot be written: {cause.strerror}") from cause


def _write(text: str, stream: TextIO) -> None:
    stream.write(text + "\n")
    stream.flush()


def _redraw(tool: Tool, options: Options, plan: Plan) -> None:
    from rich.console import Console  # only the live mode needs it
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    shown: list[str] = [f"{tool.name}: first sample in {plan.first_window_s:g} s"]

    def frame() -> Text:
        lines = fit_lines(shown, console.width, console.height, tool.key)
        return Text("\n".join(lines), no_wrap=True, overflow="crop")

    # Without this a SIGTERM would leave the terminal on its other screen.
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with Live(get_renderable=frame, console=console, screen=True, vertical_overflow="crop"):
            for before, after in _samples(tool, options, plan):
                stamp = f"{after.status['node']} ({after.status['platform']})  {time_text(after.time_ns)}"
                shown = [stamp, "", *tool.lines(tool.rows(before, after, options))]
    finally:
        signal.signal(signal.SIGTERM, former)
    if plan.count is not None:  # the screen with the last one is gone
        sys.stdout.write("\n".join(shown) + "\n")

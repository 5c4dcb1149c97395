"""The record of a training, over all its attempts: ``metrics.jsonl``, the same as CSV and for TensorBoard, and its
losses as an SVG picture.

A step: ``step`` (counted from 1), ``loss``, ``lr``, ``samples_per_s``, and for texts ``tokens_per_s``. An evaluation:
``step``, ``split`` and its scores. Lines after an attempt's last checkpoint are dropped when the next one starts. The
picture follows the viewer's light or dark scheme, as that of ``rdukit.pef.picture`` does. Source: ours.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rdukit.files.atomic import write_atomic
from rdukit.files.svg import svg_document, svg_text
from rdukit.strict_json import json_text

FILE_NAME = "metrics.jsonl"
CSV_NAME: Final = "metrics.csv"
#: End of the event file's name.
_ENDING: Final = ".training"


class TrainingJournal:
    """Appends to the file in ``folder``; lines up to ``step`` are kept, later ones removed first."""

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / FILE_NAME
        kept = [line for line in read_lines(self.path) if int(str(line["step"])) <= step]
        write_atomic(self.path, "".join(_text(line) for line in kept).encode())
        #: Steps and splits with an evaluation; an attempt that only finishes another evaluates its last step again.
        self._evaluated = {(line["step"], line["split"]) for line in kept if "split" in line}
        self._stream = self.path.open("a")

    def record(self, line: Mapping[str, object]) -> None:
        """Add one line; it may wait in memory until ``flush``."""
        self._stream.write(_text(line))

    def record_evaluation(self, step: int, split: str, scores: Mapping[str, float]) -> None:
        """Add the line of an evaluation, unless that step has one of the split."""
        if (step, split) not in self._evaluated:
            self._evaluated.add((step, split))
            self.record({"step": step, "split": split, **scores})

    def flush(self) -> None:
        """Flush the file to the operating system, before a checkpoint is written."""
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


def read_lines(path: Path) -> Iterator[dict[str, object]]:
    """Return the whole lines of a journal; a half-written last one is left out."""
    if not path.is_file():
        return
    for text in path.read_text().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            return
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            return
        yield line


def write_csv(source: Path, target: Path) -> None:
    """Write a journal as CSV with a column for each name, in the order in which they first occur."""
    lines = list(read_lines(source))
    names = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    table.writerows(lines)
    write_atomic(target, text.getvalue().encode())


def write_curves(source: Path, folder: Path) -> Path:
    """Write a journal as ``metrics.csv`` and as an event file for TensorBoard; returns the folder."""
    write_events(source, folder)
    write_csv(source, folder / CSV_NAME)
    return folder


def write_events(source: Path, folder: Path) -> Path:
    """Write a journal as an event file for TensorBoard, in the place of an earlier one; returns the folder.

    TensorBoard shows ``train/loss``, ``train/lr`` …, and ``dev/loss``, ``test/accuracy`` … of the evaluations. Numbers
    that are not finite are omitted.
    """
    from tensorboardX.summary import scalar
    from tensorboardX.writer import FileWriter

    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob(f"events.out.tfevents.*{_ENDING}"):
        earlier.unlink()
    writer = FileWriter(str(folder), filename_suffix=_ENDING)
    try:
        for line in read_lines(source):
            step, split = int(str(line["step"])), str(line.get("split", "train"))
            for name, value in line.items():
                if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                    writer.add_summary(scalar(f"{split}/{name}", value), step)
    finally:
        writer.close()
    return folder


def _text(line: Mapping[str, object]) -> str:
    return json_text(line) + "\n"


WIDTH: Final = 760
HEIGHT: Final = 360
LEFT: Final = 70
TOP: Final = 56
RIGHT: Final = 24
BOTTOM: Final = 44
#: With more steps than this, the picture shows means of equal parts.
POINTS: Final = 300

Point = tuple[float, float]

_LIGHT: Final = """\
  .train { fill: none; stroke: #0969da; stroke-width: 1.5; }
  .held { fill: none; stroke: #bc4c00; stroke-width: 1.5; } .dot { fill: #bc4c00; }
  .key-train { fill: #0969da; } .key-held { fill: #bc4c00; }
"""
_DARK: Final = """\
    .train { stroke: #4493f8; } .held { stroke: #db6d28; } .dot { fill: #db6d28; }
    .key-train { fill: #4493f8; } .key-held { fill: #db6d28; }
"""


def draw_loss_curve(lines: Iterable[Mapping[str, object]], title: str) -> str:
    """Return a complete SVG document from a journal's lines, or with a note if no loss is finite."""
    found: dict[str, list[Point]] = {}
    for line in lines:
        loss = line.get("loss")
        if isinstance(loss, int | float) and math.isfinite(loss):
            found.setdefault(str(line.get("split", "")), []).append((float(str(line["step"])), float(loss)))
    steps = found.pop("", [])
    # The split that the training was watched on: another one is reported once, at its end.
    split, held = max(found.items(), key=lambda item: len(item[1]), default=("", []))
    everything = [*steps, *held]
    if not everything:
        return _document([svg_text(LEFT, TOP + 20, "dim", "no losses were recorded")], title)
    last = max(step for step, _ in everything)
    drawn = thin_out(steps)
    low, high, gap = nice_limits([loss for _, loss in (*drawn, *held)])

    def place(point: Point) -> Point:
        x = LEFT + point[0] / max(last, 1.0) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (point[1] - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    parts = []
    for number in range(round((high - low) / gap) + 1):
        value = low + number * gap
        y = place((0.0, value))[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(svg_text(LEFT - 8, y + 4, "dim right", f"{value:g}"))
    for share in (0.0, 0.5, 1.0):
        step = round(last * share)
        parts.append(svg_text(place((step, low))[0], HEIGHT - BOTTOM + 18, "dim middle", str(step)))
    parts += _line("train", [place(point) for point in drawn])
    parts += _line("held", [place(point) for point in held])
    parts += [f'<circle class="dot" cx="{x}" cy="{y}" r="3"/>' for x, y in map(place, held)]
    parts.append(svg_text(LEFT, TOP - 10, "key-train", "loss of the steps"))
    if held:
        parts.append(svg_text(LEFT + 160, TOP - 10, "key-held", f"loss on {split}"))
    parts.append(svg_text(WIDTH - RIGHT, HEIGHT - 8, "dim right", "optimizer steps"))
    return _document(parts, title)


def thin_out(points: Sequence[Point]) -> list[Point]:
    """Return at most ``POINTS`` points: the means of equal parts, in order."""
    size = -(-len(points) // POINTS)
    if size <= 1:
        return list(points)
    parts = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def nice_limits(values: Sequence[float]) -> tuple[float, float, float]:
    """(low, high, gap): round numbers around ``values``, four to nine gaps of 1, 2 or 5 times a power of ten."""
    low, high = min(values), max(values)
    span = max(high - low, abs(high) * 0.1, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / 4))
    gap = next(power * factor for factor in (10, 5, 2, 1) if span / (power * factor) >= 3 or factor == 1)
    bottom = math.floor(low / gap) * gap
    top = math.ceil(high / gap) * gap
    return bottom, top if top > bottom else bottom + gap, gap


def _line(style: str, points: Sequence[Point]) -> list[str]:
    if len(points) < 2:
        return []
    return [f'<polyline class="{style}" points="{" ".join(f"{x},{y}" for x, y in points)}"/>']


def _document(parts: Sequence[str], title: str) -> str:
    return svg_document([svg_text(LEFT, 26, "title", title), *parts], WIDTH, HEIGHT, title, _LIGHT, _DARK)

"""``metrics.jsonl``: a line per step and per evaluation of a training, over all its attempts.

A step: ``step`` (counted from 1), ``loss``, ``lr``, ``samples_per_s``, for texts ``tokens_per_s``. An evaluation:
``step``, ``split`` and its scores. What an attempt wrote after its last checkpoint goes when the next one starts.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rdukit.files.atomic import write_atomic
from rdukit.strict_json import json_text

FILE_NAME = "metrics.jsonl"


class TrainingJournal:
    """Appends to the file in ``folder``; lines up to ``step`` are kept, later ones removed first."""

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / FILE_NAME
        kept = [line for line in read_lines(self.path) if int(str(line["step"])) <= step]
        write_atomic(self.path, "".join(_text(line) for line in kept).encode())
        #: Steps with an evaluation; an attempt that only finishes another evaluates its last step again.
        self._evaluated = {line["step"] for line in kept if "split" in line}
        self._stream = self.path.open("a")

    def record(self, line: Mapping[str, object]) -> None:
        """Add one line; it may wait in memory until ``flush``."""
        self._stream.write(_text(line))

    def record_evaluation(self, step: int, split: str, scores: Mapping[str, float]) -> None:
        """Add the line of an evaluation, unless that step has one."""
        if step not in self._evaluated:
            self._evaluated.add(step)
            self.record({"step": step, "split": split, **scores})

    def flush(self) -> None:
        """Hand everything to the operating system; before a checkpoint is written."""
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


def read_lines(path: Path) -> Iterator[dict[str, object]]:
    """The whole lines of a journal; a half-written last one is left out."""
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


def _text(line: Mapping[str, object]) -> str:
    return json_text(line) + "\n"

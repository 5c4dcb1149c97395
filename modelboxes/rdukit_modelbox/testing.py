"""For tests: a verb's surroundings without a box's process."""

from collections.abc import Callable, Mapping
from pathlib import Path

from rdukit_modelbox.box import Box, Verb, find_box_file, load_box
from rdukit_modelbox.context import Progress, VerbResult
from rdukit_modelbox.parameters import check_parameters
from rdukit_modelbox.verbs import load_verb


class RecordingContext:
    """A ``VerbContext`` that keeps what it is told, and is never cancelled; ``look`` sees each progress."""

    def __init__(self, box: Box, look: Callable[[Progress], None] | None = None) -> None:
        self._box = box
        self._look = look
        self.told: list[Progress] = []
        self.lines: list[str] = []

    @property
    def box(self) -> Box:
        """The box whose verb runs."""
        return self._box

    def progress(self, progress: Progress) -> None:
        """Keep it."""
        self.told.append(progress)
        if self._look is not None:
            self._look(progress)

    def log(self, text: str) -> None:
        """Keep the line."""
        self.lines.append(text)

    def check_cancelled(self) -> None:
        """Never."""


def run_verb(
    box: str, verb: str, output: Path, inputs: Mapping[str, Path] | None = None,
    look: Callable[[Progress], None] | None = None, **parameters: object,
) -> VerbResult:  # fmt: skip
    """Run a verb in this process, its parameters checked as a box checks them; ``box`` as on the command line."""
    loaded = load_box(find_box_file(box))
    checked = check_parameters(loaded, Verb(verb), parameters)
    output.mkdir(parents=True, exist_ok=True)
    return load_verb(Verb(verb))(RecordingContext(loaded, look), checked, inputs or {}, output)

"""Helpers for tests: a verb without a box's process, and what a running box does."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rdukit.box.client import BoxClient
from rdukit.errors import Cancelled
from rdukit_modelbox.contract.box import Box, Verb, find_box_file, load_box
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.contract.metrics import find_undeclared
from rdukit_modelbox.verbs import load_verb
from rdukit_modelbox.verbs.context import Progress, VerbResult

#: What the kernel calls the process that a forked box forks its operations from.
FORK_SERVER_NAME: Final = "rdukit-verbs"


class RecordingContext:
    """A ``VerbContext`` that keeps what it is told; ``look`` sees each progress."""

    def __init__(self, box: Box, look: Callable[[Progress], None] | None = None, cancel_at: int = 0) -> None:
        """``cancel_at``: at which question whether it is cancelled it is, from 1; 0: never."""
        self._box = box
        self._look = look
        self._questions_left = cancel_at
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
        """Raises ``Cancelled`` at the chosen question."""
        self._questions_left -= 1
        if self._questions_left == 0:
            raise Cancelled("cancelled")


def run_verb(
    box: str, verb: str, output: Path, inputs: Mapping[str, Path] | None = None,
    look: Callable[[Progress], None] | None = None, **parameters: object,
) -> VerbResult:  # fmt: skip
    """Run a verb in this process, its parameters checked as a box checks them; ``box`` as on the command line."""
    loaded = load_box(find_box_file(box))
    checked = check_parameters(loaded, Verb(verb), parameters)
    output.mkdir(parents=True, exist_ok=True)
    done = load_verb(Verb(verb))(RecordingContext(loaded, look), checked, inputs or {}, output)
    assert find_undeclared(loaded, Verb(verb), done.figures) == [], "every run of every test declares what it reports"
    return done


def succeed(client: BoxClient, verb: str, *arguments: Any, **more: Any) -> dict[str, Any]:
    """The ended operation of a verb that a running box is asked for as with ``BoxClient.submit``.

    Raises:
        AssertionError: it did not succeed; shows the operation.
    """
    ended = client.wait(client.submit(verb, *arguments, **more)["id"])
    assert ended["state"] == "succeeded", ended
    return ended


def children_of(pid: int) -> list[int]:
    """Process ids of a process's children now. Linux."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def working_children_of(pid: int) -> list[int]:
    """Process ids of what works for a box now: its models, and its operations, which a child of it forks."""
    children = children_of(pid)
    forking = [child for child in children if Path(f"/proc/{child}/comm").read_text().strip() == FORK_SERVER_NAME]
    return [child for child in children if child not in forking] + [one for f in forking for one in children_of(f)]

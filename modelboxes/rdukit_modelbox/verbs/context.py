"""The context of a verb: the box, a place to report to, and whether it was cancelled."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rdukit.strict_json import as_words, find_number
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.box import Box


@dataclass(frozen=True, slots=True)
class Progress:
    """A verb's progress. ``throughput`` is samples a second on this host; ``eta_s`` seconds until the stage ends."""

    stage: str
    step: int
    total: int
    loss: float | None = None
    throughput: float | None = None
    eta_s: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return the progress without unknown figures; floats that JSON lacks become words."""
        values = {
            "stage": self.stage,
            "step": self.step,
            "total": self.total,
            "loss": self.loss,
            "throughput": self.throughput,
            "eta_s": self.eta_s,
        }
        return {key: as_words(value) for key, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Progress":
        """Return the inverse of ``to_json``."""
        figures = {name: find_number(value.get(name)) for name in ("loss", "throughput", "eta_s")}
        return cls(value["stage"], value["step"], value["total"], **figures)


class VerbContext(Protocol):
    """Context of one running verb."""

    @property
    def box(self) -> Box:
        """The box whose verb runs."""
        ...

    def progress(self, progress: Progress) -> None:
        """Report the progress; may be called at each step, and some calls are skipped."""
        ...

    def log(self, text: str) -> None:
        """Write one line to the operation's log."""
        ...

    def check_cancelled(self) -> None:
        """Call between steps.

        Raises:
            Cancelled: somebody cancelled the operation.
        """
        ...


@dataclass(frozen=True, slots=True)
class VerbResult:
    """Figures of a finished verb and the paths of its output slots."""

    figures: Mapping[str, object]
    outputs: Mapping[str, Path]


class VerbFunction(Protocol):
    """A verb: parameters and inputs are checked already, ``output`` is a folder that exists."""

    def __call__(
        self,
        context: VerbContext,
        parameters: Mapping[str, ParameterValue],
        inputs: Mapping[str, Path],
        output: Path,
    ) -> VerbResult: ...

"""The interface of tasks to the verbs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, Self

from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.preprocessing.datasets import DEV
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.verbs.context import VerbContext, VerbResult
from rdukit_serving.shape import Shape
from rdukit_zoo.registry import ModelEntry

#: Split on which a training is reported; ``DEV`` is the split for watching it.
TEST: Final = "test"
#: An array for each input of the training program, the batch first.
Batch = tuple[NDArray[Any], ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a model on a split. ``loss`` is the mean per sample, or per token of a text."""

    loss: float
    samples: int
    #: Fraction of samples; ``None`` if the task has no such figure.
    accuracy: float | None = None
    perplexity: float | None = None
    #: Further figures of the task by name.
    others: Mapping[str, float] = field(default_factory=dict)
    #: Further values of a report, such as a confusion matrix, which are not metrics.
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, float]:
        """Return the scores that the task has, without the number of samples."""
        named = {"loss": self.loss, "accuracy": self.accuracy, "perplexity": self.perplexity, **self.others}
        return {name: value for name, value in named.items() if value is not None}

    def figures(self) -> dict[str, float]:
        """Return the scores with their names in a training's result and log, where ``loss`` is that of its steps."""
        named = self.to_json()
        return {"held_out_loss": named.pop("loss"), **named}


class TaskData(Protocol):
    """A data set as the program's inputs."""

    @property
    def digest(self) -> str:
        """Return a digest of all its numbers."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes, in their order; empty if they are numbers, or there are none."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the features of a row in their order; empty if there are none, or none have names."""
        ...

    @property
    def tokenizer(self) -> str:
        """Return the ``tokenizer_digest``; empty if unknown."""
        ...

    @property
    def tokens_per_sample(self) -> int:
        """Return the number of tokens in a sample; 0 if there are none."""
        ...

    def count(self, split: str) -> int:
        """Return the number of samples in a split; 0 if there is no such split."""
        ...

    def batches(self, batch_size: int, seed: int, epoch: int, start: int) -> Iterator[Batch]:
        """Yield full training batches of an epoch from number ``start``; seed and epoch determine the order."""
        ...

    def with_validation(self, share: float) -> Self:
        """Return the data set with a share of its training samples as the split ``dev``: see ``validation_rows``."""
        ...

    def keep_with(self, checkpoint: Path) -> None:
        """Add further files for serving to a checkpoint folder, such as the tokenizer."""
        ...


class Task(Protocol):
    """A kind of model."""

    def open_data(self, entry: ModelEntry, shape: Shape, folder: Path) -> TaskData:
        """Return the data set in ``folder``, for a model.

        Raises:
            NotFound, InvalidArgument: the data set is missing or damaged, or does not fit this shape by ``data_rules``.
        """
        ...

    def evaluate(self, program: ModelProgram, data: TaskData, split: str, context: VerbContext, stage: str) -> Scores:
        """Run forward over a complete, non-empty split in evaluation mode; state is unchanged.

        Raises:
            InvalidArgument: padding of the last batch changes its answers.
            Cancelled: between two batches.
        """
        ...

    def infer(
        self, context: VerbContext, shape: Shape, parameters: Mapping[str, ParameterValue],
        inputs: Mapping[str, Path], output: Path,
    ) -> VerbResult:  # fmt: skip
        """Run the infer verb."""
        ...


def with_names(shape: Shape, data: TaskData) -> Shape:
    """Return a PEF's shape with the data set's classes, columns and tokenizer added to the model's identity."""
    assert shape.identity is not None
    named = replace(shape.identity, classes=data.classes, columns=data.columns, tokenizer=data.tokenizer)
    return replace(shape, identity=named)


def reported_split(data: TaskData) -> str | None:
    """Return the split whose figures a training reports: ``test`` if it exists, else ``dev``; ``None`` without both."""
    return next((split for split in (TEST, DEV) if data.count(split)), None)


def watched_split(data: TaskData) -> str | None:
    """Return the split that a training evaluates on its way: ``dev`` if it exists, else ``test``; ``None`` without
    both.
    """
    return next((split for split in (DEV, TEST) if data.count(split)), None)


def require_samples(data: TaskData, split: str) -> None:
    """Refuse a split without samples, as it has no figures.

    Raises:
        InvalidArgument: the split has no samples.
    """
    if not data.count(split):
        raise InvalidArgument(
            f"the data set has no samples in a {split} split; preprocess again, or choose another split"
        )


def measured(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Select a program's figures for a report: time on this host, and projected for the emulated RDU."""
    return {name: figures[name] for name in ("host_seconds", "emulated_seconds", "emulated_cycles") if name in figures}

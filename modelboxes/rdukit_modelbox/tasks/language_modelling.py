"""Tokens → the next token."""

from collections.abc import Mapping
from pathlib import Path

from rdukit.errors import InvalidArgument
from rdukit_modelbox.context import VerbContext, VerbResult
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.program import ModelProgram
from rdukit_modelbox.tasks.base import Scores, TaskData
from rdukit_modelbox.tasks.continuations import write_continuations
from rdukit_modelbox.tasks.perplexity import judge_program, write_perplexity
from rdukit_modelbox.tasks.texts import TextData, open_texts
from rdukit_serving.shape import SERVE, Shape


class LanguageModelling:
    """The task; see ``Task``."""

    def open_data(self, shape: Shape, folder: Path) -> TextData:
        """A data set that preprocess made of texts."""
        return open_texts(shape, folder)

    def evaluate(self, program: ModelProgram, data: TaskData, split: str, context: VerbContext, stage: str) -> Scores:
        """Mean loss of the predicted tokens, and its exponential."""
        assert isinstance(data, TextData)
        return judge_program(program, data, split, context, stage)

    def infer(
        self, context: VerbContext, shape: Shape, parameters: Mapping[str, ParameterValue],
        inputs: Mapping[str, Path], output: Path,
    ) -> VerbResult:  # fmt: skip
        """The perplexity of a data set, or with ``figure=continuations`` continuations of prompts.

        Raises:
            InvalidArgument: data set, prompts or checkpoint are not of the PEF's model, or it cannot generate.
            Cancelled: between two texts.
        """
        data, split = open_texts(shape, inputs["dataset"]), str(parameters.get("split", "dev"))
        if "prompts" not in inputs and not data.count(split):
            raise InvalidArgument(
                f"the data set has no sequences in its {split} split; preprocess with dev_ratio above 0"
            )
        if str(parameters.get("figure", "perplexity")) == "continuations":
            shape.require(SERVE, "figure=continuations")
            return write_continuations(context, data, split, parameters, inputs, output)
        return write_perplexity(context, shape, data, split, parameters, inputs, output)

"""Infer: a data set through a trained checkpoint; what it writes depends on the model's task."""

from collections.abc import Mapping
from pathlib import Path

from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.models import read_shape
from rdukit_modelbox.tasks import task_of
from rdukit_modelbox.verbs.context import VerbContext, VerbResult


def run_infer(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write the task's outputs.

    Raises:
        InvalidArgument: data set or checkpoint are not of the PEF's model.
        Cancelled: between two batches.
    """
    shape = read_shape(context.box, inputs["pef"])
    return task_of(shape.task).infer(context, shape, parameters, inputs, output)

"""Infer: run a data set through a trained checkpoint; the model's task determines the output."""

from collections.abc import Mapping
from pathlib import Path

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.models import entry_of, read_shape
from rdukit_modelbox.tasks import task_of
from rdukit_modelbox.verbs.context import VerbContext, VerbResult
from rdukit_serving.shape import SERVE


def run_infer(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write the task's outputs.

    Raises:
        InvalidArgument: data set or checkpoint are not of the PEF's model, or the PEF takes no data set.
        Cancelled: between two batches.
    """
    shape = read_shape(context.box, inputs["pef"])
    if shape.purpose == SERVE and entry_of(context.box).serving is not None:
        raise InvalidArgument(
            "this PEF serves requests and does not accept the data set (the model has its own serving); expected a "
            "PEF compiled with purpose=train"
        )
    return task_of(shape.task).infer(context, shape, parameters, inputs, output)

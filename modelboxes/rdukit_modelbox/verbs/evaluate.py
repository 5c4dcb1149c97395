"""Evaluate: the figures of a checkpoint on a data set, equal to those of its training, without training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rdukit.files.atomic import write_json_atomic
from rdukit.units import plain
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.models import entry_of, read_shape
from rdukit_modelbox.tasks import task_of
from rdukit_modelbox.tasks.base import Task, TaskData, measured, reported_split, require_samples, with_names
from rdukit_modelbox.tasks.baselines import baselines_of
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.verbs.context import VerbContext, VerbResult
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.shape import TRAIN
from rdukit_zoo.registry import ModelEntry

#: Value of ``split``: the split that trainings report.
HELD_OUT: Final = "held_out"


def run_evaluate(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path,
    model: tuple[Task, ModelEntry] | None = None,
) -> VerbResult:  # fmt: skip
    """Write ``<output>/report.json``, with a classifier's confusion matrix, F1 and AUC.

    Figures have the names that a training's result gives them.

    Adapters in the checkpoint (LoRA) are loaded as the PEF's own, or merged if the PEF has none.

    Args:
        model: task and model in place of the box's, with the same parameters.
    Raises:
        InvalidArgument: data set or checkpoint are not of the PEF's model, the data set lacks the split, or the PEF was
            compiled to serve.
        PefMismatch: the PEF cannot evaluate the model.
        Cancelled: between two batches.
    Source: ours: the published contract evaluates only inside Train, and Infer returns figures with its predictions.
    """
    shape = read_shape(context.box, inputs["pef"])
    shape.require(TRAIN, "evaluate")
    task, entry = model or (task_of(shape.task), entry_of(context.box))
    data = task.open_data(entry, shape, inputs["dataset"])
    split = _split_of(data, str(parameters.get("split", HELD_OUT)))
    step, kept = load_parameters(inputs["checkpoint"], str(parameters.get("use", "newest")), with_names(shape, data))
    program = ModelProgram(shape, entry=entry)
    program.load(inputs["pef"])
    try:
        program.parameters_to_device(kept)
        scores = task.evaluate(program, data, split, context, "evaluate")
        spent = measured(program.report())
    finally:
        program.close()
    simple = baselines_of(context.box, data, split)
    figures = {
        "split": split,
        **scores.figures(),
        **simple,
        "samples": scores.samples,
        "checkpoint_step": step,
        **spent,
    }
    write_json_atomic(output / "report.json", {"box": context.box.name, **figures, **scores.details})
    words = ", ".join(f"{name} {plain(value)}" for name, value in {**scores.figures(), **simple}.items())
    context.log(f"{words} on {scores.samples} {split} samples")
    return VerbResult(figures, {"report": output / "report.json"})


def _split_of(data: TaskData, asked: str) -> str:
    split = reported_split(data) or "dev or test" if asked == HELD_OUT else asked
    require_samples(data, split)
    return split

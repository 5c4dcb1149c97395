"""Base of tasks on named arrays: data set, batched evaluation and infer verb.

A subclass has its figures (``meter``) and its picture of results (``draw``); the model's ``make_inputs`` names the
arrays. Axes: N samples, B batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import atomic_target, write_json_atomic
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.models import entry_of
from rdukit_modelbox.preprocessing.arrays import KIND, ArrayDataset, array_forms, open_arrays, sizes_made_for
from rdukit_modelbox.preprocessing.data_rules import check_sizes
from rdukit_modelbox.preprocessing.datasets import read_manifest
from rdukit_modelbox.tasks.base import Scores, TaskData, measured, require_samples, with_names
from rdukit_modelbox.tasks.class_report import ClassMeter
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.verbs.context import Progress, VerbContext, VerbResult
from rdukit_serving.device.parameters import Tensors, load_parameters
from rdukit_serving.shape import Shape
from rdukit_zoo.metrics import Meter
from rdukit_zoo.registry import ModelEntry

Arrays = Mapping[str, NDArray[Any]]


class ArrayTask:
    """A task whose data are named arrays; see ``Task``. A subclass defines ``meter`` and ``draw``."""

    def meter(self, program: ModelProgram) -> Meter:
        """Return the meter that computes this task's figures for a model."""
        raise NotImplementedError

    def draw(self, given: Arrays, output: NDArray[Any], channels: Sequence[str] = ()) -> Image.Image:
        """Return a picture of samples [N, ...], a batch, and of the model's output for them. ``channels`` are the names
        of the output's channels, if the model has them.
        """
        raise NotImplementedError

    def parameters(self, program: ModelProgram, kept: Tensors) -> Tensors:
        """Return the checkpoint's tensors that the model has; by default all, and unknown ones are refused."""
        return kept

    def weight(self, given: Arrays) -> int:
        """Return the number of values that a batch's mean loss is over; by default its samples."""
        return len(next(iter(given.values())))

    def answers(self, output: NDArray[Any]) -> NDArray[Any]:
        """Return the part of a batch's output that is stored; by default all."""
        return output

    def open_data(self, entry: ModelEntry, shape: Shape, folder: Path) -> ArrayDataset:
        """Open the data set in ``folder`` for a model.

        Raises:
            NotFound, InvalidArgument: the data set is missing or damaged, or its arrays or values do not fit the model.
        """
        check_sizes(sizes_made_for(read_manifest(folder, KIND), entry, shape.sizes), shape.sizes)
        return open_arrays(folder, array_forms(entry, shape.sizes, shape.choices))

    def evaluate(self, program: ModelProgram, data: TaskData, split: str, context: VerbContext, stage: str) -> Scores:
        """Return loss and figures of a split, each over all its samples.

        Raises:
            InvalidArgument: padding of the last batch changes its answers, or the model has no loss.
            Cancelled: between two batches.
        """
        assert isinstance(data, ArrayDataset)
        meter, losses = self.meter(program), MeanLoss()
        for given, loss, output in run_batches(program, data, split, context, stage):
            meter.add(output, given)
            losses.add(loss, self.weight(given))
        if losses.mean is None:
            raise InvalidArgument("the PEF's graph has no loss; compile with purpose=train")
        details = meter.report(data.classes) if isinstance(meter, ClassMeter) else {}
        return Scores(loss=losses.mean, samples=data.count(split), others=meter.figures(), details=details)

    def infer(
        self, context: VerbContext, shape: Shape, parameters: Mapping[str, ParameterValue],
        inputs: Mapping[str, Path], output: Path,
    ) -> VerbResult:  # fmt: skip
        """Write ``<output>/predictions.npy``, ``<output>/report.json`` and ``<output>/picture.png``.

        Raises:
            NotFound, InvalidArgument: the data set or the checkpoint are not of the PEF's model.
            Cancelled: between two batches.
        """
        entry = entry_of(context.box)
        data = self.open_data(entry, shape, inputs["dataset"])
        step, kept = load_parameters(
            inputs["checkpoint"], str(parameters.get("use", "newest")), with_names(shape, data)
        )
        split = str(parameters["split"])
        require_samples(data, split)
        program = ModelProgram(shape, entry=entry)
        program.load(inputs["pef"])
        try:
            program.parameters_to_device(self.parameters(program, kept))
            meter, first, losses = self.meter(program), None, MeanLoss()
            with atomic_target(output / "predictions.npy") as path, path.open("wb") as stream:
                for given, loss, made in run_batches(program, data, split, context, "infer"):
                    kept_B = self.answers(made)
                    if first is None:
                        header = {
                            "descr": "<f4",
                            "fortran_order": False,
                            "shape": (data.count(split), *kept_B.shape[1:]),
                        }
                        np.lib.format.write_array_header_1_0(stream, header)
                        first = given, made
                    stream.write(np.ascontiguousarray(kept_B, "<f4").tobytes())
                    meter.add(made, given)
                    losses.add(loss, self.weight(given))
            figures = program.report()
        finally:
            program.close()
        made_files = {"predictions": output / "predictions.npy", "report": output / "report.json"}
        if first is not None:
            with atomic_target(output / "picture.png") as path:
                self.draw(*first, entry.output_channels).save(path, "png")
            made_files["picture"] = output / "picture.png"
        found = {
            **({} if losses.mean is None else {"loss": losses.mean}), **meter.figures(), "samples": data.count(split),
            "checkpoint_step": step, **measured(figures),
        }  # fmt: skip
        units = {"unit": entry.output_unit} if entry.output_unit else {}
        write_json_atomic(output / "report.json", {"box": context.box.name, "split": split, **units, **found})
        context.log(", ".join(f"{name} {value:.4g}" for name, value in meter.figures().items()) or "done")
        return VerbResult(found, made_files)


class MeanLoss:
    """Mean loss of a split, as the weighted mean of its batches' losses."""

    def __init__(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, loss: float | None, weight: int) -> None:
        """Add a batch; batches without a loss or with weight 0 are ignored."""
        if loss is not None and weight:
            self._sum += loss * weight
            self._weight += weight

    @property
    def mean(self) -> float | None:
        """Return the mean over all values; ``None`` without any."""
        return self._sum / self._weight if self._weight else None


def run_batches(
    program: ModelProgram, data: ArrayDataset, split: str, context: VerbContext, stage: str
) -> Iterator[tuple[dict[str, NDArray[Any]], float | None, NDArray[Any]]]:
    """Run forward over a split, in evaluation mode.

    Yields for each batch: its samples by name, their loss if there is one, the output. Padding rows of the last batch
    are removed.
    """
    size, names = program.shape.batch_size, [str(tensor.sn_name) for tensor in program.inputs]
    total = -(-data.count(split) // size)
    has_loss = program.shape.outputs[0] == "loss"
    for step, (count, given) in enumerate(data.held_out(split, size), 1):
        context.check_cancelled()
        made = program.forward_filled([given[name] for name in names], count)
        output = made[-1].reshape(size, *made[-1].shape[1:])[:count].numpy()
        counted = {name: values[:count] for name, values in given.items()}
        loss = None
        if has_loss:
            loss = float(made[0].mean()) if count == size else program.loss_of_rows([counted[name] for name in names])
        context.progress(Progress(stage, step, total))
        yield counted, loss, output

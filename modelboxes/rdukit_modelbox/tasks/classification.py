"""Rows → one of several classes. Axes: N samples, F features, C classes, B batch."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit.strict_json import json_text
from rdukit_modelbox.context import VerbContext, VerbResult
from rdukit_modelbox.datasets import Dataset, Samples, check_dataset_fits, load_dataset
from rdukit_modelbox.evaluation import evaluate
from rdukit_modelbox.evaluation_figures import Evaluation
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.models import entry_of
from rdukit_modelbox.program import ModelProgram
from rdukit_modelbox.tasks.base import Batch, Scores, TaskData
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.shape import Shape


class RowData:
    """A data set of labelled rows in memory, as ``TaskData``."""

    tokens_per_sample = 0

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.digest = dataset.digest

    def split(self, name: str) -> Samples | None:
        """The split called ``name``; None if this data set has none."""
        return self.dataset.split(name) if name in {"train", "test"} else None

    def count(self, split: str) -> int:
        """Samples in it."""
        samples = self.split(split)
        return 0 if samples is None else len(samples)

    def batches(self, batch_size: int, seed: int, epoch: int, start: int) -> Iterator[Batch]:
        """See ``TaskData``."""
        samples = self.dataset.train
        order_N = np.random.default_rng([seed, epoch]).permutation(len(samples))
        for index in range(start, len(samples) // batch_size):
            chosen_B = order_N[index * batch_size : (index + 1) * batch_size]
            yield samples.features_NF[chosen_B], samples.labels_N[chosen_B]

    def keep_with(self, checkpoint: Path) -> None:
        """Nothing: rows are served as they come."""


class Classification:
    """The task; see ``Task``."""

    def open_data(self, shape: Shape, folder: Path) -> RowData:
        """A data set that preprocess made of rows with labels."""
        dataset = load_dataset(folder)
        check_dataset_fits(dataset, shape.features, shape.classes)
        return RowData(dataset)

    def evaluate(self, program: ModelProgram, data: TaskData, split: str, context: VerbContext, stage: str) -> Scores:
        """Cross entropy and accuracy."""
        assert isinstance(data, RowData)
        samples = data.split(split)
        assert samples is not None
        found = evaluate(program, samples, context, stage)
        return Scores(loss=found.loss, samples=len(samples), accuracy=found.accuracy)

    def infer(
        self, context: VerbContext, shape: Shape, parameters: Mapping[str, ParameterValue],
        inputs: Mapping[str, Path], output: Path,
    ) -> VerbResult:  # fmt: skip
        """Write ``<output>/predictions.jsonl`` and ``<output>/report.json``."""
        data = self.open_data(shape, inputs["dataset"])
        step, kept = load_parameters(inputs["checkpoint"], str(parameters.get("use", "newest")))
        split = str(parameters["split"])
        samples = data.dataset.split(split)
        program = ModelProgram(shape, entry=entry_of(context.box))
        program.load(inputs["pef"])
        try:
            program.parameters_to_device(kept)
            found = evaluate(program, samples, context, "infer")
            figures = program.report()
        finally:
            program.close()
        emulated = {"seconds": figures["emulated_seconds"], "cycles": figures["emulated_cycles"]}
        host = {"seconds": figures["host_seconds"]}
        report = {
            "box": context.box.name,
            "split": split,
            "samples": len(samples),
            "loss": found.loss,
            "accuracy": found.accuracy,
            "confusion": {"rows": "true class", "columns": "predicted class", "counts": found.confusion},
            "checkpoint_step": step,
            "emulated": {"about": "projection of the emulated RDU, not measured", **emulated},
            "host": {"about": "measured on the machine that ran it", **host},
        }
        write_atomic(output / "predictions.jsonl", prediction_lines(samples, found))
        write_json_atomic(output / "report.json", report)
        context.log(f"accuracy {found.accuracy:.4f} on {len(samples)} samples of the {split} split")
        return VerbResult(
            {
                "accuracy": found.accuracy,
                "loss": found.loss,
                "samples": len(samples),
                "checkpoint_step": step,
                "host_seconds": host["seconds"],
                "emulated_seconds": emulated["seconds"],
                "emulated_cycles": emulated["cycles"],
            },
            {"predictions": output / "predictions.jsonl", "report": output / "report.json"},
        )


def prediction_lines(samples: Samples, found: Evaluation) -> bytes:
    """One JSON object a line: index, label, predicted class, its probability."""
    rows = zip(samples.labels_N.tolist(), found.predicted_N.tolist(), found.probability_N.tolist(), strict=True)
    lines = [
        json_text({"index": i, "label": label, "predicted": given, "probability": round(probability, 6)})
        for i, (label, given, probability) in enumerate(rows)
    ]
    return "".join(line + "\n" for line in lines).encode()

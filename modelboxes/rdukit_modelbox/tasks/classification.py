"""Classification of rows: the data, loss, accuracy and confusion, and the infer verb.

Axes: N samples, F features, C classes, B batch.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_atomic, write_json_atomic
from rdukit.pef.checkpoint_files import TABLE_FILE
from rdukit.strict_json import json_text
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.models import entry_of
from rdukit_modelbox.preprocessing.data_rules import ValueLimit, check_sizes, check_values, divide_rows
from rdukit_modelbox.preprocessing.datasets import DEV, SPLITS, Dataset, Samples, load_dataset
from rdukit_modelbox.tasks.base import Batch, Scores, TaskData, require_samples, with_names
from rdukit_modelbox.tasks.class_report import class_report
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.tasks.row_numbers import judge_numbers, require_target, write_numbers
from rdukit_modelbox.verbs.context import Progress, VerbContext, VerbResult
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.shape import Shape
from rdukit_zoo.registry import ModelEntry


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Predicted classes [N] with their probabilities [N], and the confusion matrix [true][predicted]."""

    predicted_N: NDArray[np.int64]
    probability_N: NDArray[np.float32]
    confusion: list[list[int]]
    accuracy: float
    #: Mean cross entropy, in nats.
    loss: float


def judge(logits_NC: NDArray[np.float32], labels_N: NDArray[np.int64], classes: int) -> Evaluation:
    """Compare the highest logit with the label. Pure; no samples give accuracy and loss 0."""
    predicted = logits_NC.argmax(axis=1).astype(np.int64)
    shifted_NC = logits_NC - logits_NC.max(axis=1, keepdims=True) if len(logits_NC) else logits_NC
    sums_N = np.exp(shifted_NC).sum(axis=1)
    each = np.arange(len(predicted))
    chosen_N = np.exp(shifted_NC[each, predicted]) / sums_N
    losses_N = np.log(sums_N) - shifted_NC[each, labels_N]
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (labels_N, predicted), 1)
    count = len(labels_N)
    correct = int((predicted == labels_N).sum())
    return Evaluation(
        predicted, chosen_N.astype(np.float32), confusion.tolist(),
        accuracy=correct / count if count else 0.0, loss=float(losses_N.mean(dtype=np.float64)) if count else 0.0,
    )  # fmt: skip


def run_samples(
    program: ModelProgram, samples: Samples, context: VerbContext, stage: str = "evaluate"
) -> NDArray[np.float32]:  # fmt: skip
    """Run forward over all samples, in evaluation mode; the last batch is padded, which changes no answer.

    Returns:
        [N, C] float32, before a softmax.
    Raises:
        InvalidArgument: padding would change answers, because rows of a batch depend on each other.
        Cancelled: between two batches.
    """
    batch, count = program.shape.batch_size, len(samples)
    total = -(-count // batch)
    started = time.perf_counter()
    parts: list[NDArray[np.float32]] = []
    for step in range(total):
        context.check_cancelled()
        parts.append(program.logits_of(samples.features_NF[step * batch : (step + 1) * batch]))
        elapsed = max(time.perf_counter() - started, 1e-9)
        done = min(count, (step + 1) * batch)
        context.progress(
            Progress(stage, step + 1, total, throughput=done / elapsed, eta_s=elapsed / (step + 1) * (total - step - 1))
        )
    return np.concatenate(parts) if parts else np.zeros((0, program.shape.classes), np.float32)


class RowData:
    """A data set of labelled rows in memory, as ``TaskData``."""

    tokens_per_sample = 0

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        self.dataset = dataset
        self._folder = folder
        self.digest = dataset.digest
        self.classes, self.columns = dataset.names, dataset.columns
        self.tokenizer = ""
        #: Rows of the stored training split to train on, and to validate with; None: all are trained on.
        self._rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def split(self, name: str) -> Samples | None:
        """Return the split called ``name``; None if this data set has none."""
        if self._rows is None or name not in {"train", "dev"}:
            return self.dataset.find_split(name)
        return self.dataset.train.take(self._rows[0 if name == "train" else 1])

    def with_validation(self, share: float) -> "RowData":
        """See ``TaskData``."""
        made = RowData(self.dataset, self._folder)
        made._rows = divide_rows(len(self.dataset.train), share)
        return made

    def count(self, split: str) -> int:
        """Return the number of samples in a split."""
        if self._rows is not None and split in {"train", "dev"}:
            return len(self._rows[0 if split == "train" else 1])
        samples = self.dataset.find_split(split)
        return 0 if samples is None else len(samples)

    def batches(self, batch_size: int, seed: int, epoch: int, start: int) -> Iterator[Batch]:
        """See ``TaskData``."""
        samples, count = self.dataset.train, self.count("train")
        order_N = np.random.default_rng([seed, epoch]).permutation(count)
        order_N = order_N if self._rows is None else self._rows[0][order_N]
        for index in range(start, count // batch_size):
            chosen_B = order_N[index * batch_size : (index + 1) * batch_size]
            yield samples.features_NF[chosen_B], samples.labels_N[chosen_B]

    def keep_with(self, checkpoint: Path) -> None:
        """Copy the preprocessing of a table; other rows are served unchanged."""
        path = self._folder / TABLE_FILE
        if path.is_file():
            write_atomic(checkpoint / TABLE_FILE, path.read_bytes())


class Classification:
    """The task; see ``Task``."""

    def open_data(self, entry: ModelEntry, shape: Shape, folder: Path) -> RowData:
        """Return a data set that preprocess made of rows with labels."""
        dataset = load_dataset(folder)
        require_target(dataset.target, shape.classes)
        check_sizes({"num_features": dataset.features, "num_classes": dataset.classes}, shape.sizes)
        limit = ValueLimit(shape.classes, "num_classes")
        for split in (*SPLITS, DEV):
            samples = dataset.find_split(split)
            if samples is not None:
                check_values(f"the {split} split's label", samples.labels_N, limit)
        return RowData(dataset, folder)

    def evaluate(self, program: ModelProgram, data: TaskData, split: str, context: VerbContext, stage: str) -> Scores:
        """Compute cross entropy and accuracy; of numbers their errors in the label's unit."""
        assert isinstance(data, RowData)
        samples = data.split(split)
        assert samples is not None
        outputs_NC = run_samples(program, samples, context, stage)
        if data.dataset.target is not None:
            numbers = judge_numbers(outputs_NC[:, 0], samples.labels_N, data.dataset.target)
            details = {"residuals": numbers.residuals()}
            return Scores(loss=numbers.loss, samples=len(samples), others=numbers.figures(), details=details)
        found = judge(outputs_NC, samples.labels_N, program.shape.classes)
        details = class_report(outputs_NC, samples.labels_N, data.classes)
        return Scores(loss=found.loss, samples=len(samples), accuracy=found.accuracy, details=details)

    def infer(
        self, context: VerbContext, shape: Shape, parameters: Mapping[str, ParameterValue],
        inputs: Mapping[str, Path], output: Path,
    ) -> VerbResult:  # fmt: skip
        """Write ``<output>/predictions.jsonl`` and ``<output>/report.json``; for a table as ``predict_table`` does.

        Raises:
            InvalidArgument: there is neither a data set nor a table, or both.
        """
        if ("table" in inputs) == ("dataset" in inputs):
            raise InvalidArgument("infer needs either the input dataset or the input table", field="inputs")
        if "table" in inputs:
            from rdukit_modelbox.tasks.table_prediction import predict_table  # pyarrow

            return predict_table(context, shape, parameters, inputs, output)
        entry = entry_of(context.box)
        data = self.open_data(entry, shape, inputs["dataset"])
        step, kept = load_parameters(
            inputs["checkpoint"], str(parameters.get("use", "newest")), with_names(shape, data)
        )
        split = str(parameters["split"])
        require_samples(data, split)
        samples = data.dataset.split(split)
        program = ModelProgram(shape, entry=entry)
        program.load(inputs["pef"])
        try:
            program.parameters_to_device(kept)
            outputs_NC = run_samples(program, samples, context, "infer")
            figures = program.report()
        finally:
            program.close()
        if data.dataset.target is not None:
            numbers = judge_numbers(outputs_NC[:, 0], samples.labels_N, data.dataset.target)
            return write_numbers(context, numbers, split, step, figures, output)
        found = judge(outputs_NC, samples.labels_N, shape.classes)
        emulated = {"seconds": figures["emulated_seconds"], "cycles": figures["emulated_cycles"]}
        host = {"seconds": figures["host_seconds"]}
        report = {
            "box": context.box.name,
            "split": split,
            "samples": len(samples),
            "loss": found.loss,
            "accuracy": found.accuracy,
            "confusion": {"rows": "true class", "columns": "predicted class", "counts": found.confusion},
            **class_report(outputs_NC, samples.labels_N, data.classes),
            "checkpoint_step": step,
            "emulated": {"about": "projection of the emulated RDU, not measured", **emulated},
            "host": {"about": "measured on the machine that ran the verb", **host},
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
    """Write one JSON object a line: index, label, predicted class, its probability."""
    rows = zip(samples.labels_N.tolist(), found.predicted_N.tolist(), found.probability_N.tolist(), strict=True)
    lines = [
        json_text({"index": i, "label": label, "predicted": given, "probability": round(probability, 6)})
        for i, (label, given, probability) in enumerate(rows)
    ]
    return "".join(line + "\n" for line in lines).encode()

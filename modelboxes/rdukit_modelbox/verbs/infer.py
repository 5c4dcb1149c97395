"""Infer: classify a split of a data set with a trained checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path

from rdukit.files import write_atomic, write_json_atomic
from rdukit_modelbox.checkpoints import load_checkpoint
from rdukit_modelbox.context import VerbContext, VerbResult
from rdukit_modelbox.datasets import Samples, check_dataset_fits, load_dataset
from rdukit_modelbox.evaluation import evaluate
from rdukit_modelbox.evaluation_figures import Evaluation
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.program import Program, read_shape


def run_infer(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write ``<output>/predictions.jsonl`` and ``<output>/report.json``.

    Raises:
        InvalidArgument: data set or checkpoint are not of the PEF's model.
        Cancelled: between two batches.
    """
    shape = read_shape(context.box, inputs["pef"])
    dataset = load_dataset(inputs["dataset"])
    check_dataset_fits(dataset, shape.features, shape.classes)
    checkpoint = load_checkpoint(inputs["checkpoint"])
    samples = dataset.split(str(parameters["split"]))
    program = Program(shape)
    program.load(inputs["pef"])
    try:
        program.parameters_to_device(checkpoint.parameters)
        found = evaluate(program, samples, context, "infer")
        figures = program.report()
    finally:
        program.close()
    emulated = {"seconds": figures["emulated_seconds"], "cycles": figures["emulated_cycles"]}
    host = {"seconds": figures["host_seconds"]}
    report = {
        "box": context.box.name,
        "split": str(parameters["split"]),
        "samples": len(samples),
        "accuracy": found.accuracy,
        "confusion": {"rows": "true class", "columns": "predicted class", "counts": found.confusion},
        "checkpoint_step": checkpoint.step,
        "emulated": {"about": "projection of the emulated RDU, not measured", **emulated},
        "host": {"about": "measured on the machine that ran it", **host},
    }
    write_atomic(output / "predictions.jsonl", prediction_lines(samples, found))
    write_json_atomic(output / "report.json", report)
    context.log(f"accuracy {found.accuracy:.4f} on {len(samples)} samples of the {parameters['split']} split")
    return VerbResult(
        {
            "accuracy": found.accuracy,
            "samples": len(samples),
            "checkpoint_step": checkpoint.step,
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
        json.dumps({"index": i, "label": label, "predicted": given, "probability": round(probability, 6)})
        for i, (label, given, probability) in enumerate(rows)
    ]
    return "".join(line + "\n" for line in lines).encode()

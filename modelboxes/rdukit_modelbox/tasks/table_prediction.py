"""Predictions for a table, as the infer verb makes them: the table's rows and two columns more.

Axes: N rows of a block, F features, C classes.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from itertools import islice
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import atomic_target, write_json_atomic
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.models import entry_of
from rdukit_modelbox.preprocessing.row_run import TABLES
from rdukit_modelbox.preprocessing.sources import RowErrors, SourceFile, find_sources
from rdukit_modelbox.preprocessing.table_rows import BLOCK_ROWS, NumberedRow, column_names, rows_of
from rdukit_modelbox.tasks.base import measured
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.verbs.context import Progress, VerbContext, VerbResult
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.raw_inputs.answers import NumberPrediction, Prediction
from rdukit_serving.raw_inputs.layout import ColumnFault
from rdukit_serving.raw_inputs.preprocessing import TablePreprocessing, open_preprocessing
from rdukit_serving.shape import Shape

#: Name of the file that is written.
PREDICTIONS: Final = "predictions.csv"


def predict_table(
    context: VerbContext, shape: Shape, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path],
    output: Path,
) -> VerbResult:  # fmt: skip
    """Write ``<output>/predictions.csv``, the rows of the input ``table`` with their predictions, and a report.

    Raises:
        NotFound: the checkpoint was not trained on a table, or there is nothing at the input.
        InvalidArgument: a column is missing, or a row cannot be used; names file, line, column and what is expected.
        PefMismatch: the checkpoint's preprocessing is of another model.
        Cancelled: between two blocks.
    """
    table = open_preprocessing(inputs["checkpoint"], shape.features, shape.classes)
    sources = find_sources(inputs["table"], "**/*", "auto", TABLES)
    added: tuple[str, ...] = (f"predicted_{table.layout.label}",)
    if table.target is None:
        added += (f"predicted_{table.layout.label}_probability",)
    names = column_names(sources[0])
    for source in sources:
        _check_columns(source, names, added, table)
    step, kept = load_parameters(inputs["checkpoint"], str(parameters.get("use", "newest")), shape)
    program = ModelProgram(shape, entry=entry_of(context.box))
    program.load(inputs["pef"])
    counts: Counter[str] = Counter()
    try:
        program.parameters_to_device(kept)
        with atomic_target(output / PREDICTIONS) as path, path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow([*names, *added])
            for rows, predictions in _predictions(context, program, table, sources, set(names)):
                for (_, row), found in zip(rows, predictions, strict=True):
                    values = ["" if row[name] is None else row[name] for name in names]
                    if isinstance(found, NumberPrediction):
                        writer.writerow([*values, repr(found.value)])
                        counts["numbers"] += 1
                    else:
                        writer.writerow([*values, found.label, f"{found.probability:.6f}"])
                        counts[found.label] += 1
        figures = measured(program.report())
    finally:
        program.close()
    result = {"samples": counts.total(), "checkpoint_step": step, **figures}
    report = {"box": context.box.name, "table": [s.name for s in sources], "predicted": dict(counts), **result}
    write_json_atomic(output / "report.json", report)
    context.log(f"{counts.total()} rows predicted: " + ", ".join(f"{n} {label}" for label, n in counts.most_common(10)))
    return VerbResult(result, {"predictions": output / PREDICTIONS, "report": output / "report.json"})


def _check_columns(
    source: SourceFile, names: tuple[str, ...], added: tuple[str, ...], table: TablePreprocessing
) -> None:
    found = column_names(source)
    if set(found) != set(names):
        raise InvalidArgument(f"{source.name} has the columns {', '.join(found)}; expected {', '.join(names)}")
    if taken := [name for name in added if name in found]:
        raise InvalidArgument(f"{source.name} already has a column {taken[0]!r}, which infer adds; rename it")
    try:
        table.check_columns(found, allows_others=True)
    except InvalidArgument as error:
        raise InvalidArgument(f"{source.name}: {error.message}", **error.detail) from None


def _predictions(
    context: VerbContext, program: ModelProgram, table: TablePreprocessing, sources: tuple[SourceFile, ...],
    names: Set[str],
) -> Iterator[tuple[list[NumberedRow], list[Prediction]]]:  # fmt: skip
    size = program.shape.batch_size
    total, before = sum(source.bytes for source in sources), 0
    for source in sources:
        consumed = [0]
        each = rows_of(source, RowErrors(skips=False, may_skip=False), consumed)
        while rows := list(islice(each, BLOCK_ROWS)):
            context.check_cancelled()
            for line, row in rows:
                if row.keys() != names:
                    raise InvalidArgument(
                        f"{source.name}:{line} has the columns {', '.join(row)}; expected {', '.join(names)}",
                        file=source.name, line=line,
                    )  # fmt: skip
            try:
                features_NF = table.features_of([row for _, row in rows])
            except ColumnFault as fault:
                line = rows[fault.row][0]
                raise InvalidArgument(
                    f"{source.name}:{line}, column {fault.column!r}: {fault.reason}; expected {fault.legal}",
                    file=source.name, line=line, column=fault.column,
                ) from None  # fmt: skip
            found: list[Prediction] = []
            for at in range(0, len(features_NF), size):
                found += table.predictions(program.logits_of(features_NF[at : at + size]))
            yield rows, found
            context.progress(Progress("predict", before + consumed[0] >> 10, total >> 10))
        before += source.bytes
